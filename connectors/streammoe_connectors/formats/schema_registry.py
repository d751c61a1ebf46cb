"""A client for schema registries with Confluent's HTTP interface."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from streammoe.errors import RetriableSourceError, SourceError
from streammoe_connectors.http_client import ClientTls, HttpClient, Response, TlsFailure, Unreachable, is_protected

FRAME_BYTES = 5
"""Length of the prefix that a registry's serializers write: a byte 0, and the schema's number in 4 bytes."""
_LOGGER = logging.getLogger("streammoe.source")
_TIMEOUT_SECONDS = 3.0  # of a request
_RETRY_PAUSES_SECONDS = (0.2, 0.8)  # before further attempts; after those the source retries
_MAX_RESPONSE_BYTES = 1 << 22
_MAX_SCHEMA_BYTES = 1 << 23  # of a schema and all that it refers to
_MAX_REFERENCES = 100  # of a schema, including indirect ones
_UNKNOWN_CACHE_SECONDS = 60.0
"""How long an unknown number is not requested again; schemas may be registered late."""
_MAX_CACHED_UNKNOWN = 10_000
_NOT_FOUND_CODES = frozenset({40401, 40402, 40403})  # a subject, a version, a schema
_HTTP_UNAUTHORIZED, _HTTP_FORBIDDEN, _HTTP_NOT_FOUND, _HTTP_NOT_IMPLEMENTED = 401, 403, 404, 501
_HTTP_BUSY = frozenset({408, 425, 429})
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")

Kind = Literal["AVRO", "PROTOBUF"]
"""The type of a schema, by its name in registries."""


class UnknownSchemaError(Exception):
    """The registry has no such schema, or one of another type."""


class Reference(NamedTuple):
    """A schema that another one refers to."""

    name: str
    """By which the other one refers to it: the full name of a type, or the path of an import."""
    text: str


class RegisteredSchema(NamedTuple):
    """A registered schema: an Avro schema as JSON, or the descriptor of a ``.proto`` file, serialized, in base 64."""

    text: str
    references: tuple[Reference, ...]
    """The referenced schemas, each after its own references."""


class Registry:
    """A client of a registry.

    Args:
        address: of the registry; a user and a password in it are not used.
        authorization: returns the header that logs in, if any; called for each request.
        tls: for an https address.
        sleep: waits between attempts.

    Raises:
        ConfigError: a certificate cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        authorization: Callable[[], str | None] = lambda: None,
        tls: ClientTls | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(address)
        self.name = without_password(address)
        """Address for messages."""
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._authorization = authorization
        self._sleep = sleep
        self._http = HttpClient(
            tls or ClientTls("source.schema_registry"), timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_RESPONSE_BYTES
        )
        self._unknown: dict[int, tuple[float, str]] = {}
        self._warned_of_exposure = False

    def schema(self, number: int, kind: Kind) -> RegisteredSchema:
        """Fetch the schema of this number; only its absence is cached, for a minute.

        Raises:
            UnknownSchema: there is none, or it is of another type.
            RetriableSourceError: the registry does not respond, or is temporarily unavailable.
            SourceError: the registry denies access, the address is not that of a registry, or it cannot serialize the
                descriptors of Protobuf.
        """
        until, detail = self._unknown.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise UnknownSchemaError(detail)
        try:
            response = self._get(f"/schemas/ids/{number}{_query(kind)}")
            if response.get("schemaType", "AVRO") != kind:
                raise UnknownSchemaError(
                    f"schema {number} in {self.name} is of type {response.get('schemaType', 'AVRO')!r}, not {kind}"
                )
            text = self._text(response, kind)
            references: dict[tuple[str, str, str], Reference] = {}
            self._collect_references(response, kind, references, ())
            if len(text) + sum(len(reference.text) for reference in references.values()) > _MAX_SCHEMA_BYTES:
                raise UnknownSchemaError(
                    f"schema {number} in {self.name} has more than {_MAX_SCHEMA_BYTES} bytes, with those that it "
                    "refers to"
                )
            return RegisteredSchema(text, tuple(references.values()))
        except UnknownSchemaError as error:
            if len(self._unknown) >= _MAX_CACHED_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = (time.monotonic() + _UNKNOWN_CACHE_SECONDS, str(error))
            raise

    def _collect_references(
        self,
        response: dict[str, Any],
        kind: Kind,
        found: dict[tuple[str, str, str], Reference],
        ancestors: tuple[object, ...],
    ) -> None:
        """Add the schemas that a response refers to, each after its own references, to `found`."""
        references = response.get("references") or []
        if not isinstance(references, list):
            raise self._invalid_response("references that are not a list")
        for reference in references:
            if not isinstance(reference, dict):
                raise self._invalid_response("a reference that is not an object")
            name, subject, version = (str(reference.get(part)) for part in ("name", "subject", "version"))
            # A file has the name by which it is imported; in Avro a schema has names of its own, and each once.
            key = (name if kind == "PROTOBUF" else "", subject, version)
            if key in found:
                continue
            if key in ancestors or len(found) + len(ancestors) >= _MAX_REFERENCES:
                raise UnknownSchemaError(
                    f"schema {subject!r}, version {version}, in {self.name} refers to itself, or is one of more than "
                    f"{_MAX_REFERENCES} schemas referred to"
                )
            part = self._get_version(subject, version, kind)
            self._collect_references(part, kind, found, (*ancestors, key))
            found[key] = Reference(name, self._text(part, kind))

    def _get_version(self, subject: str, version: str, kind: Kind) -> dict[str, Any]:
        """Request a version of a subject."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"
        part = self._get(f"{path}{_query(kind)}")
        if kind == "PROTOBUF" and not _is_base64(part.get("schema")) and isinstance(part.get("id"), int):
            # Some registries serialize schemas only where they are requested by number.
            by_number = self._get(f"/schemas/ids/{part['id']}{_query(kind)}&subject={quote(subject, safe='')}")
            part["schema"] = by_number.get("schema")
        return part

    def _text(self, response: dict[str, Any], kind: Kind) -> str:
        text = response.get("schema")
        if not isinstance(text, str):
            raise self._invalid_response("no schema")
        if kind == "PROTOBUF" and not _is_base64(text):
            raise self._not_serialized()
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
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        login = self._authorization()
        if login is not None:
            headers["Authorization"] = login
            self._warn_if_exposed()
        try:
            answer = self._http.send(self._base + path, headers)
        except TlsFailure as error:
            raise SourceError(f"schema registry {self.name}: {error}") from None
        except Unreachable as error:
            raise RetriableSourceError(
                f"schema registry {self.name} does not respond ({error}); check that it runs, and that "
                "source.schema_registry is its address"
            ) from None
        if answer.status != 200:
            raise self._error_of(path, answer, has_login=login is not None)
        if len(answer.body) > _MAX_RESPONSE_BYTES:
            raise self._invalid_response(f"more than {_MAX_RESPONSE_BYTES} bytes")
        response = _json(answer.body)
        if not isinstance(response, dict):
            raise self._invalid_response("no JSON object")
        return response

    def _warn_if_exposed(self) -> None:
        if not self._warned_of_exposure and not is_protected(self._base):
            self._warned_of_exposure = True
            _LOGGER.warning(
                "source.schema_registry %s: THE LOGIN CROSSES THE NETWORK IN PLAIN TEXT; use an https:// address",
                self.name,
            )

    def _error_of(self, path: str, answer: Response, *, has_login: bool) -> Exception:
        status = answer.status
        code = response.get("error_code") if isinstance(response := _json(answer.body), dict) else None
        if status == _HTTP_NOT_FOUND and code in _NOT_FOUND_CODES:
            return UnknownSchemaError(f"schema registry {self.name} has nothing at {path}")
        if status == _HTTP_NOT_IMPLEMENTED and "format=" in path:
            return self._not_serialized()
        message = f"schema registry {self.name} responds with status {status} to {path}"
        if status >= 500 or status in _HTTP_BUSY:
            return RetriableSourceError(f"{message}; see its log")
        if status == _HTTP_UNAUTHORIZED:
            advice = (
                "it does not accept the login; check the user and password, or the token, of source.schema_registry"
                if has_login
                else "it requires a login; set source.schema_registry_username and …_password_file, or …_token_file"
            )
        elif status == _HTTP_FORBIDDEN:
            advice = "this user may not read it; allow it to read the schemas of the topic, or log in as another one"
        elif status == _HTTP_NOT_FOUND:
            advice = (
                "no registry is there; source.schema_registry must be its address, with the path under which a proxy "
                "or another product serves Confluent's interface"
            )
        elif 300 <= status < 400:
            advice = (
                "redirects are not followed, since they could send the login anywhere; set source.schema_registry to "
                "the registry's own address"
            )
        else:
            advice = "check that source.schema_registry is the address of a registry with Confluent's interface"
        return SourceError(f"{message}: {advice}")

    def _invalid_response(self, what: str) -> SourceError:
        return SourceError(
            f"schema registry {self.name} responds with {what}; source.schema_registry must be the address of a "
            "registry with Confluent's interface"
        )

    def _not_serialized(self) -> SourceError:
        return SourceError(
            f"schema registry {self.name} does not serialize Protobuf schemas (format=serialized): use a version of it "
            'that does, or set source.schema_file and source.message, with source.framing = "confluent", instead of '
            "source.schema_registry"
        )


def without_password(address: str) -> str:
    """Remove user and password from an address.

    >>> without_password("https://user:password@host:8081/path")
    'https://host:8081/path'
    """
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _query(kind: Kind) -> str:
    return "?format=serialized" if kind == "PROTOBUF" else ""


def _is_base64(text: object) -> bool:
    return isinstance(text, str) and _BASE64.fullmatch(text) is not None


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
