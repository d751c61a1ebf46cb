"""A client for schema registries with Confluent's HTTP interface."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from streammoe.errors import RetriableSourceError, SourceError

_TIMEOUT = 3.0  # seconds per request
_PAUSES = (0.2, 0.8)  # seconds before further attempts; after those the source retries
_LARGEST = 1 << 22  # bytes of a response
_MOST_REFERENCES = 100  # of a schema, including indirect ones
_UNKNOWN_FOR = 60.0  # seconds before an unknown number is requested again, since schemas may be registered late
_MOST_UNKNOWN = 10_000
_ABSENT_CODES = frozenset({40401, 40402, 40403})  # a subject, a version, a schema
_HTTP_NOT_FOUND = 404
_HTTP_BUSY = frozenset({408, 425, 429})


class UnknownSchema(Exception):  # noqa: N818 - says what is wrong with the record, not with the program
    """The registry has no such schema, or one of another type."""


class Registered(NamedTuple):
    """A registered schema."""

    text: str
    references: tuple[str, ...]
    """Texts of the referenced schemas, each after its own references."""


class Registry:
    """A client of a registry.

    Requests use the proxies named in the environment (``https_proxy``, ``no_proxy``), if any.

    Args:
        address: of the registry, with user and password if required.
        sleep: waits between attempts.
    """

    def __init__(self, address: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        parts = urlsplit(address)
        self.name = without_password(address)
        """Address for messages."""
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._sleep = sleep
        # A redirect could send the password anywhere.
        self._opener = urllib.request.build_opener(_NoRedirection)
        self._unknown: dict[int, tuple[float, str]] = {}

    def avro(self, number: int) -> Registered:
        """Fetch the Avro schema of this number; only its absence is cached, for a minute.

        Raises:
            UnknownSchema: there is none.
            RetriableSourceError: the registry does not respond, or is temporarily unavailable.
            SourceError: the registry denies access, or the address is not that of a registry.
        """
        until, detail = self._unknown.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise UnknownSchema(detail)
        try:
            answer = self._get(f"/schemas/ids/{number}")
            if answer.get("schemaType", "AVRO") != "AVRO":
                raise UnknownSchema(f"schema {number} in {self.name} is of type {answer['schemaType']!r}, not AVRO")
            references: dict[tuple[str, str], str] = {}
            self._collect(answer, references, ())
            return Registered(self._text(answer), tuple(references.values()))
        except UnknownSchema as error:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = (time.monotonic() + _UNKNOWN_FOR, str(error))
            raise

    def _collect(self, answer: dict[str, Any], found: dict[tuple[str, str], str], within: tuple[object, ...]) -> None:
        """Add the schemas that `answer` refers to, each after its own references, to `found`."""
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._invalid("references that are not a list")
        for reference in references:
            if not isinstance(reference, dict):
                raise self._invalid("a reference that is not an object")
            subject, version = str(reference.get("subject")), str(reference.get("version"))
            name = (subject, version)
            if name in found:
                continue
            if name in within or len(found) + len(within) >= _MOST_REFERENCES:
                raise UnknownSchema(
                    f"schema {subject!r}, version {version}, in {self.name} refers to itself, or is one of more than "
                    f"{_MOST_REFERENCES} schemas referred to"
                )
            part = self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}")
            self._collect(part, found, (*within, name))
            found[name] = self._text(part)

    def _text(self, answer: dict[str, Any]) -> str:
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._invalid("no schema")
        return text

    def _get(self, path: str) -> dict[str, Any]:
        """Request a path, with a bounded number of attempts."""
        for pause in _PAUSES:
            try:
                return self._request(path)
            except RetriableSourceError:
                self._sleep(pause)
        return self._request(path)

    def _request(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310 - http or https, by the settings
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as response:
                content = response.read(_LARGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(path, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RetriableSourceError(
                f"schema registry {self.name} does not respond ({reason}); check that it runs, and that "
                "source.schema_registry is its address"
            ) from None
        if len(content) > _LARGEST:
            raise self._invalid(f"more than {_LARGEST} bytes")
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._invalid("no JSON object")
        return answer

    def _failure(self, path: str, error: urllib.error.HTTPError) -> Exception:
        if error.code == _HTTP_NOT_FOUND and _error_code(error) in _ABSENT_CODES:
            return UnknownSchema(f"schema registry {self.name} has nothing at {path}")
        message = f"schema registry {self.name} responds with status {error.code} to {path}"
        if error.code >= 500 or error.code in _HTTP_BUSY:
            return RetriableSourceError(f"{message}; see its log")
        return SourceError(
            f"{message}; source.schema_registry must be the registry's own address (redirects are not followed), with "
            "user and password if required"
        )

    def _invalid(self, what: str) -> SourceError:
        return SourceError(
            f"schema registry {self.name} responds with {what}; source.schema_registry must be the address of a "
            "registry with Confluent's interface"
        )


def without_password(address: str) -> str:
    """Remove user and password from an address.

    >>> without_password("https://user:password@host:8081/path")
    'https://host:8081/path'
    """
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return None, so that a redirect counts as a failure."""


def _error_code(error: urllib.error.HTTPError) -> object:
    try:
        answer = json.loads(error.read(_LARGEST))
    except (ValueError, RecursionError, OSError, http.client.HTTPException):
        return None
    return answer.get("error_code") if isinstance(answer, dict) else None
