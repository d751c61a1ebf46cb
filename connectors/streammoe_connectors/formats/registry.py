"""Values that name their schema in a registry with Confluent's interface, which Confluent's client asks for it."""

from __future__ import annotations

import logging
import math
import re
import ssl
import time
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from pydantic import BaseModel

from streammoe.errors import ConfigError, RetriableSourceError, SourceError
from streammoe.secrets import check_readable, read_secret
from streammoe_connectors.addresses import is_protected, without_login
from streammoe_connectors.formats.framing import FRAME_BYTES, Read, malformed, schema_number

_LOGGER = logging.getLogger("streammoe.source")
_OPTIONS = {"timeout": 3.0, "max.retries": 2, "retries.wait.ms": 200}
_MAX_REFERENCES = 100  # of a schema, including indirect ones
_UNKNOWN_SECONDS = 60.0  # until an unknown number is asked for again; schemas may be registered late
_MAX_REJECTED = 10_000
_UNKNOWN_CODES = frozenset({40401, 40402, 40403})  # a subject, a version, a schema
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_ADVICE = {
    403: "this user may not read it; allow it to read the schemas of the topic, or log in as another one",
    404: "no registry is there; source.schema_registry must be its address, with the path under which a proxy or "
    "another product serves Confluent's interface",
    301: "redirects are not followed, since they could send the login anywhere; set source.schema_registry to the "
    "registry's own address",
}

Kind = Literal["Avro", "Protobuf"]


class RegistryReader:
    """A reader of values that name their schema.

    Schemas are kept for ever, since a number always means the same one. Logins and certificates are read again whenever
    a schema is fetched after a failure, logins at each.

    Args:
        kind: type of the schemas.
        settings: with `schema_registry` and the login.
        parse: returns what reads the values of a schema, from its text (Avro as JSON, or the serialized descriptor of
            a ``.proto`` file in base 64) and those that it refers to, by name, each after its own; raises ValueError.

    Raises:
        ConfigError: a secret or a certificate cannot be used.
    """

    def __init__(self, kind: Kind, settings: BaseModel, parse: Callable[[str, list[tuple[str, str]]], Read]) -> None:
        self._kind = kind
        self._format = "serialized" if kind == "Protobuf" else None
        self._settings = settings
        self._parse = parse
        self._known: dict[int, Read] = {}
        self._rejected: dict[int, tuple[float, str]] = {}  # until when, and why
        self._options: dict[str, Any] = {}
        self._made: SchemaRegistryClient | None = None
        self._client()
        self.name = str(self._options["url"])
        self._has_login = len(self._options.keys() & {"basic.auth.user.info", "bearer.auth.token"}) > 0
        if self._has_login and not is_protected(self.name):
            _LOGGER.warning(
                "source.schema_registry %s: THE LOGIN CROSSES THE NETWORK IN PLAIN TEXT; use an https:// address",
                self.name,
            )

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text.

        Raises:
            InvalidEvent: it does not name a usable schema, or was not written with it.
            RetriableSourceError: the registry does not respond, or is temporarily unavailable.
            SourceError: it denies access, the address is not that of a registry, or it cannot serialize descriptors.
        """
        try:
            number = schema_number(value)
            read = self._known.get(number)
            return (read or self._fetch(number))(value, FRAME_BYTES)
        except ValueError as error:
            raise malformed(self._kind, value, error) from None

    def _fetch(self, number: int) -> Read:
        until, why = self._rejected.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise ValueError(why)
        try:
            texts = self._request(number)
        except _UnknownError as error:
            until, why = time.monotonic() + _UNKNOWN_SECONDS, f"must name a registered {self._kind} schema: {error}"
        else:
            try:
                self._known[number] = self._parse(texts[-1][1], texts[:-1])
                return self._known[number]
            except ValueError as error:
                until, why = math.inf, f"must name a usable schema, and {number} in {self.name} is not usable: {error}"
        if len(self._rejected) >= _MAX_REJECTED:
            self._rejected.clear()
        self._rejected[number] = until, why
        raise ValueError(why)

    def _client(self) -> SchemaRegistryClient:
        options = registry_options(self._settings)
        if options != self._options:
            self._close()
        if self._made is None:
            try:
                self._made, self._options = SchemaRegistryClient(options), options
            except (OSError, ValueError):  # ssl.SSLError is an OSError, and passwords may be too long
                raise ConfigError(
                    "source.schema_registry_cafile, …_certfile, …_keyfile: cannot be used; they must be PEM files, the "
                    "key must match the certificate, and schema_registry_key_password be its password, if it has one"
                ) from None
        return self._made

    def _close(self) -> None:
        if self._made is not None:
            self._made.close()
        self._made = None

    def _request(self, number: int) -> list[tuple[str, str]]:
        """Return the names and texts of the schemas that a schema refers to, each after its own, and of itself."""
        client = self._client()
        try:
            schema = client.get_schema(number, fmt=self._format)
            found: dict[tuple[str, str, int], tuple[str, str]] = {}
            self._collect(client, schema, found)
            return [*found.values(), ("", self._text(schema))]
        except SchemaRegistryError as error:
            self._close()
            raise self._explained(error, number) from None
        except (
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # of the client, where there is no such JSON
            raise SourceError(
                f"schema registry {self.name} responds with something else; source.schema_registry must be the address "
                "of a registry with Confluent's interface"
            ) from None
        except (SourceError, _UnknownError):
            raise
        except Exception as error:  # noqa: BLE001 - those of the client's own HTTP library
            self._close()
            if (untrusted := _untrusted(error)) is not None:
                raise SourceError(
                    f"schema registry {self.name}: its certificate is not trusted ({untrusted}); set "
                    "source.schema_registry_cafile to the authority that signed it, and use the name in it as the "
                    "address"
                ) from None
            raise RetriableSourceError(
                f"schema registry {self.name} does not respond ({str(error) or type(error).__name__}); check that it "
                "runs, that source.schema_registry is its address, and whether it asks for a client's certificate"
            ) from None

    def _collect(
        self, client: SchemaRegistryClient, schema: Schema, found: dict[tuple[str, str, int], tuple[str, str]]
    ) -> None:
        for reference in schema.references or ():
            name, subject, version = str(reference.name), str(reference.subject), int(reference.version or 0)
            # A file has the name by which it is imported; in Avro a schema has names of its own, and each once.
            key = (name if self._kind == "Protobuf" else "", subject, version)
            if key in found:
                continue
            if len(found) >= _MAX_REFERENCES:
                raise _UnknownError(f"that in {self.name} refers to more than {_MAX_REFERENCES} others")
            registered = client.get_version(subject, version, fmt=self._format)
            part = registered.schema
            if self._format and not _is_base64(part.schema_str) and registered.schema_id is not None:
                # Some registries serialize schemas only where they are requested by number.
                client.clear_caches()
                part = client.get_schema(registered.schema_id, subject_name=subject, fmt=self._format)
            found[key] = name, ""  # so that a schema that refers to itself ends here
            self._collect(client, part, found)
            del found[key]
            found[key] = name, self._text(part)

    def _text(self, schema: Schema) -> str:
        kind = schema.schema_type or "AVRO"
        if kind != self._kind.upper():
            raise _UnknownError(f"that in {self.name}, or one that it refers to, is of type {kind!r}")
        if not isinstance(schema.schema_str, str):
            raise TypeError("no schema")
        if self._format and not _is_base64(schema.schema_str):
            raise self._not_serialized()
        return schema.schema_str

    def _explained(self, error: SchemaRegistryError, number: int) -> Exception:
        status = error.http_status_code
        if status == 404 and error.error_code in _UNKNOWN_CODES:
            return _UnknownError(f"schema registry {self.name} has no schema {number}, or lacks one that it refers to")
        if status == 501 and self._format:
            return self._not_serialized()
        message = f"schema registry {self.name} responds with status {status} for schema {number}"
        if status >= 500 or status in {408, 425, 429}:
            return RetriableSourceError(f"{message}; see its log")
        advice = _ADVICE.get(301 if 300 <= status < 400 else status)
        if status == 401 and self._has_login:
            advice = (
                "it does not accept the login; check the user and password, or the token, of source.schema_registry"
            )
        elif status == 401:
            advice = "it requires a login; set source.schema_registry_username and …_password_file, or …_token_file"
        default = "check that source.schema_registry is the address of a registry with Confluent's interface"
        return SourceError(f"{message}: {advice or default}")

    def _not_serialized(self) -> SourceError:
        return SourceError(
            f"schema registry {self.name} does not serialize Protobuf schemas (format=serialized): use a version of it "
            'that does, or set source.schema_file and source.message, with source.framing = "confluent", instead of '
            "source.schema_registry"
        )


class _UnknownError(Exception):
    """The registry has no such schema, or one of another type."""


def registry_options(settings: Any) -> dict[str, Any]:
    """Return what Confluent's client takes for the settings of a registry, with secrets as their files hold them now.

    Raises:
        ConfigError: a secret or a file cannot be read.
    """
    parts = urlsplit(settings.schema_registry)
    files = {name: getattr(settings, f"schema_registry_{name}") for name in ("cafile", "certfile", "keyfile")}
    for name, path in files.items():
        if path is not None:
            check_readable(f"source.schema_registry_{name}", path)
    trusted = ssl.get_default_verify_paths()  # Confluent's client would trust another package's
    options: dict[str, Any] = {
        **_OPTIONS,
        "url": without_login(settings.schema_registry),
        "ssl.ca.location": files["cafile"] or trusted.cafile or trusted.capath,
    }
    if files["certfile"] is not None:
        # Without a password OpenSSL would ask for one on the terminal.
        key_password = read_secret(settings, "schema_registry_key_password", "source") or ""
        options |= {"ssl.certificate.location": files["certfile"], "ssl.key.password": key_password}
        options |= {} if files["keyfile"] is None else {"ssl.key.location": files["keyfile"]}
    token = read_secret(settings, "schema_registry_token", "source")
    user, password = settings.schema_registry_username, read_secret(settings, "schema_registry_password", "source")
    if user is None and parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    if token is not None:
        if not re.fullmatch(r"[!-~]+", token):  # any other character would be shown in errors
            raise ConfigError(
                "source.schema_registry_token: must be letters, digits and punctuation of ASCII without spaces, and is "
                "not; write the token alone into its file or variable"
            )
        options |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": token}
        options["bearer.auth.logical.cluster"] = ""
    elif user is not None:
        options["basic.auth.user.info"] = f"{user}:{password or ''}"
    return options


def _untrusted(error: BaseException | None) -> str | None:
    """Return why a server's certificate is not trusted, if that is the cause of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def _is_base64(text: object) -> bool:
    return isinstance(text, str) and _BASE64.fullmatch(text) is not None
