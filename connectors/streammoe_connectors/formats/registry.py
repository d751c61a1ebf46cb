"""Values that name their schema in a registry with Confluent's interface, which Confluent's client asks for it."""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from streammoe.errors import ConfigError, RetriableSourceError, SourceError
from streammoe.secrets import check_readable
from streammoe_connectors.conditions import is_protected
from streammoe_connectors.formats.as_json import FRAME_BYTES, Read, schema_number

Result = TypeVar("Result")
_LOGGER = logging.getLogger("streammoe.source")
_OPTIONS = {"timeout": 3.0, "max.retries": 2, "retries.wait.ms": 200}
_MAX_REFERENCES = 100  # of a schema, including indirect ones
_REJECTED_SECONDS = 60.0  # until a number is asked for again; schemas may be registered late
_MAX_REJECTED = 10_000
_UNKNOWN_CODES = frozenset({40401, 40402, 40403})  # a subject, a version, a schema
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_ADVICE = {
    401: "it does not accept this login, or asks for one; check source.schema_registry.username and password, or token",
    403: "this user may not read it; allow it to read the schemas of the topic, or log in as another one",
}
_NO_REGISTRY = (
    "source.schema_registry.url must be the address of a registry with Confluent's interface, with the path under "
    "which it serves that, and without redirects"
)


class RegistryReader:
    """A reader of values that name their schema.

    Schemas are kept for ever, since a number always means the same one. Logins and certificates are read again whenever
    one is fetched.

    Args:
        kind: type of the schemas, ``Avro`` or ``Protobuf``.
        settings: the address, and the login.
        parse: returns what reads the values of a schema, from its text (Avro as JSON, or the serialized descriptor of
            a ``.proto`` file in base 64) and those that it refers to, by name, each after its own; raises ValueError.

    Raises:
        ConfigError: a secret or a certificate cannot be used.
    """

    def __init__(self, kind: str, settings: Any, parse: Callable[[str, list[tuple[str, str]]], Read]) -> None:
        self._kind = kind
        self._format = "serialized" if kind == "Protobuf" else None
        self._settings = settings
        self._parse = parse
        self._known: dict[int, Read] = {}
        self._rejected: dict[int, tuple[float, str]] = {}  # until when, and why
        self._client().close()  # which finds what is wrong with the login
        self.name = settings.url
        if (settings.username or settings.token) and not is_protected(self.name):
            _LOGGER.warning(
                "source.schema_registry %s: THE LOGIN CROSSES THE NETWORK IN PLAIN TEXT; use an https:// address",
                self.name,
            )

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text.

        Raises:
            ValueError: it does not name a usable schema, or was not written with it.
            RetriableSourceError: the registry does not respond, or is temporarily unavailable.
            SourceError: it denies access, the address is not that of a registry, or it cannot serialize descriptors.
        """
        number = schema_number(value)
        read = self._known.get(number)
        return (read or self._fetch(number))(value, FRAME_BYTES)

    def _fetch(self, number: int) -> Read:
        until, why = self._rejected.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise ValueError(why)
        try:
            made = self._client()
        except ConfigError as error:  # a file that is being replaced
            raise RetriableSourceError(str(error)) from None
        with made as client:
            try:
                schema = self._asked(client.get_schema, number, fmt=self._format)
                references: dict[tuple[str, str, int], tuple[str, str]] = {}
                self._collect(client, schema, references)
                self._known[number] = self._parse(self._text(schema), [*references.values()])
                return self._known[number]
            except ValueError as error:
                why = f"must name a usable {self._kind} schema, and {number} in {self.name} is not: {error}"
        if len(self._rejected) >= _MAX_REJECTED:
            self._rejected.clear()
        self._rejected[number] = time.monotonic() + _REJECTED_SECONDS, why
        raise ValueError(why)

    def _collect(
        self, client: SchemaRegistryClient, schema: Schema, found: dict[tuple[str, str, int], tuple[str, str]]
    ) -> None:
        """Find the names and texts of the schemas that a schema refers to, each after its own."""
        for reference in schema.references or ():
            name, subject, version = str(reference.name), str(reference.subject), int(reference.version or 0)
            # A file has the name by which it is imported; in Avro a schema has names of its own, and each once.
            key = (name if self._kind == "Protobuf" else "", subject, version)
            if key in found:
                continue
            if len(found) >= _MAX_REFERENCES:
                raise ValueError(f"it refers to more than {_MAX_REFERENCES} others")
            found[key] = name, ""  # so that a schema that refers to itself ends here
            registered = self._asked(client.get_version, subject, version)
            client.clear_caches()  # which hold its text, and not what is serialized
            # Some registries serialize schemas only where they are requested by number.
            part = self._asked(client.get_schema, registered.schema_id, subject_name=subject, fmt=self._format)
            self._collect(client, part, found)
            del found[key]
            found[key] = name, self._text(part)

    def _text(self, schema: Schema) -> str:
        kind, text = schema.schema_type or "AVRO", schema.schema_str
        if kind != self._kind.upper() or not isinstance(text, str):
            raise ValueError(f"it, or one that it refers to, is of type {kind!r}")
        if self._format and not _BASE64.fullmatch(text):
            raise self._not_serialized()
        return text

    # --- asking -----------------------------------------------------------------------------------------------------

    def _client(self) -> SchemaRegistryClient:
        options = registry_options(self._settings)
        try:
            return SchemaRegistryClient(options)
        except (OSError, ValueError):  # ssl.SSLError is an OSError, and passwords may be too long
            raise ConfigError(
                "source.schema_registry.cafile, certfile, keyfile: cannot be used; they must be PEM files, the key "
                "must match the certificate, and key_password be its password, if it has one"
            ) from None

    def _asked(self, ask: Callable[..., Result], *arguments: object, **options: object) -> Result:
        """Return the answer of the registry; raise ValueError if it has no such schema."""
        try:
            return ask(*arguments, **options)
        except SchemaRegistryError as error:
            raise self._explained(error) from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):  # where there is no such JSON
            raise SourceError(f"schema registry {self.name} responds with something else; {_NO_REGISTRY}") from None
        except Exception as error:  # noqa: BLE001 - those of the client's own HTTP library
            raise RetriableSourceError(
                f"schema registry {self.name} does not respond ({str(error) or type(error).__name__}); check that it "
                "runs, that source.schema_registry.url is its address, by the name in its certificate, that cafile "
                "holds the authority that signed it, and whether it asks for a client's certificate"
            ) from None

    def _explained(self, error: SchemaRegistryError) -> Exception:
        status = error.http_status_code
        if status == 404 and error.error_code in _UNKNOWN_CODES:
            return ValueError("it is not registered, or one that it refers to is not")
        if status == 501 and self._format:
            return self._not_serialized()
        message = f"schema registry {self.name} responds with status {status}"
        if status >= 500 or status in {408, 425, 429}:
            return RetriableSourceError(f"{message}; see its log")
        return SourceError(f"{message}: {_ADVICE.get(status, _NO_REGISTRY)}")

    def _not_serialized(self) -> SourceError:
        return SourceError(
            f"schema registry {self.name} does not serialize Protobuf schemas (format=serialized): use a version of it "
            'that does, or set source.schema_file and source.message, with source.framing = "confluent", instead of '
            "source.schema_registry"
        )


def registry_options(settings: Any) -> dict[str, Any]:
    """Return what Confluent's client takes for the settings of a registry, with secrets as their files hold them now.

    Raises:
        ConfigError: a secret or a file cannot be read.
    """
    given = {name: value for name, value in settings if value is not None}
    for name in given.keys() & {"cafile", "certfile", "keyfile"}:
        check_readable(f"source.schema_registry.{name}", given[name])
    for name in given.keys() & {"password", "token", "key_password"}:
        given[name] = given[name].read(f"source.schema_registry.{name}")
    trusted = ssl.get_default_verify_paths()  # Confluent's client would trust another package's
    options: dict[str, Any] = {
        **_OPTIONS,
        "url": settings.url,
        "ssl.ca.location": given.get("cafile") or trusted.cafile or trusted.capath,
    }
    if "certfile" in given:
        # Without a password OpenSSL would ask for one on the terminal.
        options |= {"ssl.certificate.location": given["certfile"], "ssl.key.password": given.get("key_password", "")}
        options |= {"ssl.key.location": given["keyfile"]} if "keyfile" in given else {}
    if "token" in given:
        if not re.fullmatch(r"[!-~]+", given["token"]):  # any other character would be shown in errors
            raise ConfigError(
                "source.schema_registry.token: must be letters, digits and punctuation of ASCII without spaces, and is "
                "not; write the token alone into its file or variable"
            )
        options |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": given["token"]}
        options["bearer.auth.logical.cluster"] = ""
    elif "username" in given:
        options["basic.auth.user.info"] = f"{given['username']}:{given['password']}"
    return options
