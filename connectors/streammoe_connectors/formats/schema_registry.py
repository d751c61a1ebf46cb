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

FRAME_BYTES = 5
"""Length of the prefix that a registry's serializers write: a byte 0, and the schema's number in 4 bytes."""
_TIMEOUT_SECONDS = 3.0  # of a request
_RETRY_PAUSES_SECONDS = (0.2, 0.8)  # before further attempts; after those the source retries
_MAX_RESPONSE_BYTES = 1 << 22
_MAX_REFERENCES = 100  # of a schema, including indirect ones
_UNKNOWN_CACHE_SECONDS = 60.0
"""How long an unknown number is not requested again; schemas may be registered late."""
_MAX_CACHED_UNKNOWN = 10_000
_NOT_FOUND_CODES = frozenset({40401, 40402, 40403})  # a subject, a version, a schema
_HTTP_NOT_FOUND = 404
_HTTP_BUSY = frozenset({408, 425, 429})


class UnknownSchemaError(Exception):
    """The registry has no such schema, or one of another type."""


class RegisteredSchema(NamedTuple):
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
        self._opener = urllib.request.build_opener(_NoRedirectHandler)
        self._unknown: dict[int, tuple[float, str]] = {}

    def avro(self, number: int) -> RegisteredSchema:
        """Fetch the Avro schema of this number; only its absence is cached, for a minute.

        Raises:
            UnknownSchema: there is none.
            RetriableSourceError: the registry does not respond, or is temporarily unavailable.
            SourceError: the registry denies access, or the address is not that of a registry.
        """
        until, detail = self._unknown.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise UnknownSchemaError(detail)
        try:
            response = self._get(f"/schemas/ids/{number}")
            if response.get("schemaType", "AVRO") != "AVRO":
                raise UnknownSchemaError(
                    f"schema {number} in {self.name} is of type {response['schemaType']!r}, not AVRO"
                )
            references: dict[tuple[str, str], str] = {}
            self._collect_references(response, references, ())
            return RegisteredSchema(self._text(response), tuple(references.values()))
        except UnknownSchemaError as error:
            if len(self._unknown) >= _MAX_CACHED_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = (time.monotonic() + _UNKNOWN_CACHE_SECONDS, str(error))
            raise

    def _collect_references(
        self, response: dict[str, Any], texts: dict[tuple[str, str], str], ancestors: tuple[object, ...]
    ) -> None:
        """Add the schemas that a response refers to, each after its own references, to `texts`."""
        references = response.get("references") or []
        if not isinstance(references, list):
            raise self._invalid_response("references that are not a list")
        for reference in references:
            if not isinstance(reference, dict):
                raise self._invalid_response("a reference that is not an object")
            subject, version = str(reference.get("subject")), str(reference.get("version"))
            name = (subject, version)
            if name in texts:
                continue
            if name in ancestors or len(texts) + len(ancestors) >= _MAX_REFERENCES:
                raise UnknownSchemaError(
                    f"schema {subject!r}, version {version}, in {self.name} refers to itself, or is one of more than "
                    f"{_MAX_REFERENCES} schemas referred to"
                )
            part = self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}")
            self._collect_references(part, texts, (*ancestors, name))
            texts[name] = self._text(part)

    def _text(self, response: dict[str, Any]) -> str:
        text = response.get("schema")
        if not isinstance(text, str):
            raise self._invalid_response("no schema")
        return text

    def _get(self, path: str) -> dict[str, Any]:
        """Request a path, with a bounded number of attempts."""
        for pause in _RETRY_PAUSES_SECONDS:
            try:
                return self._request(path)
            except RetriableSourceError:
                self._sleep(pause)
        return self._request(path)

    def _request(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self._base + path, headers=self._headers)  # noqa: S310 - http or https, by the settings
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as http_response:
                content = http_response.read(_MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._error_of(path, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RetriableSourceError(
                f"schema registry {self.name} does not respond ({reason}); check that it runs, and that "
                "source.schema_registry is its address"
            ) from None
        if len(content) > _MAX_RESPONSE_BYTES:
            raise self._invalid_response(f"more than {_MAX_RESPONSE_BYTES} bytes")
        try:
            response = json.loads(content)
        except (ValueError, RecursionError):
            response = None
        if not isinstance(response, dict):
            raise self._invalid_response("no JSON object")
        return response

    def _error_of(self, path: str, error: urllib.error.HTTPError) -> Exception:
        if error.code == _HTTP_NOT_FOUND and _error_code(error) in _NOT_FOUND_CODES:
            return UnknownSchemaError(f"schema registry {self.name} has nothing at {path}")
        message = f"schema registry {self.name} responds with status {error.code} to {path}"
        if error.code >= 500 or error.code in _HTTP_BUSY:
            return RetriableSourceError(f"{message}; see its log")
        return SourceError(
            f"{message}; source.schema_registry must be the registry's own address (redirects are not followed), with "
            "user and password if required"
        )

    def _invalid_response(self, what: str) -> SourceError:
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


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return None, so that a redirect counts as a failure."""


def _error_code(error: urllib.error.HTTPError) -> object:
    try:
        response = json.loads(error.read(_MAX_RESPONSE_BYTES))
    except (ValueError, RecursionError, OSError, http.client.HTTPException):
        return None
    return response.get("error_code") if isinstance(response, dict) else None
