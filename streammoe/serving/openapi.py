"""The description of what is served as OpenAPI 3.1, and for people, made from routes and the columns of the model.

Source: https://spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from inspect import cleandoc
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import msgspec

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import MAX_TEXT_LENGTH
from streammoe.notation import TICKS, Notation
from streammoe.serving.answers import LINES, Failure
from streammoe.serving.snapshot import Snapshot
from streammoe.settings import ServeSettings
from streammoe.text import printable

JSON = "application/json"
Json = dict[str, Any]
_PLACE = "#/components/schemas/{name}"
STATUSES: Mapping[int, str] = {
    400: "The request cannot be read.",
    401: "A password is required.",
    404: "There is no such version of the model.",
    413: "The body has too many bytes, or too many rows.",
    415: "The body is compressed, or has tensors in binary form.",
    421: "The host name of the request is not served here.",
    422: "The stream would reject a row, or there is none.",
    429: "More rows are asked for than are answered in a second.",
    503: "It is not ready.",
}


class Record(msgspec.Struct):
    """A row, whose schema depends on the model."""


_Records = Annotated[list[Record], msgspec.Meta(min_length=1)]
RECORDS: Mapping[str, Any] = {JSON: Record | _Records, **dict.fromkeys(LINES, _Records)}
"""Bodies of records, by their types of content; JSON Lines are described as the list that they are."""


class Route(NamedTuple):
    """A path, and what is answered there."""

    path: str
    """``{version}`` stands for any text without a slash."""
    answer: Callable[..., Awaitable[Any]]
    """Gives the answer, of the type that it is annotated with; its docstring describes it."""
    body: Mapping[str, Any] = {}
    """The types of bodies, by their types of content."""
    query: type[msgspec.Struct] | None = None
    """The options in the query of a request."""
    is_open: bool = False
    """Whether it is answered without a password."""

    @property
    def pattern(self) -> str:
        """The regular expression of its path."""
        return re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(self.path))

    @property
    def answers(self) -> Mapping[str, Any]:
        """The types of answers, by their types of content."""
        kind = get_type_hints(self.answer)["return"]
        if self.body is RECORDS:
            return {JSON: get_args(kind)[0] | kind, LINES[0]: kind}
        return {"text/plain" if kind is str else JSON: kind}


def document(routes: Sequence[Route], settings: ServeSettings, snapshot: Snapshot | None) -> Json:
    """Return the description of all routes, with the columns of the model as it is now."""
    (record, example), n = _record(snapshot), "0" if snapshot is None else str(snapshot.version)
    types = [each for route in routes for each in (*route.answers.values(), *route.body.values())]
    schemas = {**msgspec.json.schema_components([*types, Failure], ref_template=_PLACE)[1], "Record": record}
    paths: dict[str, Json] = {}
    for route in routes:
        paths[route.path] = {"post" if route.body else "get": _operation(route, settings, example, n)}
    failure = {JSON: {"schema": {"$ref": _PLACE.format(name="Failure")}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Predictions of {settings.name}",
            "version": version("streammoe"),
            "description": (
                f"A request has at most {settings.max_body_bytes:,} bytes and {settings.max_rows:,} rows; "
                f"{settings.rows_per_second:,} rows are answered in a second. The version of the model is the number "
                "of events that it has learned."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {str(code): {"description": text, "content": failure} for code, text in STATUSES.items()},
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}} if settings.username else {},
        },
    }


def in_words(document: Json, origin: str, user: str | None) -> str:
    """Return a description as a text, with a command for each path.

    Args:
        document: as OpenAPI.
        origin: scheme and host by which it was asked for, for the commands.
        user: who must name a password, for which the commands ask.
    """
    lines = [document["info"]["title"], document["info"]["description"], f"OpenAPI 3.1: {origin}/openapi.json"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            command, url = ["curl", "-sS"], origin + path
            if user is not None and operation["security"]:
                command += ["-u", user]
            if method != "get":
                example = operation["requestBody"]["content"][JSON]["example"]
                command += ["-H", f"Content-Type: {JSON}", "-d", json.dumps(example)]
            lines.append(f"\n{method.upper()} {path}: {operation['summary']} {operation['description']}".rstrip())
            for each in operation["parameters"]:
                url = url.replace(f"{{{each['name']}}}", str(each.get("example")))
                lines.append(f"  {each['name']}, in the {each['in']}: {json.dumps(each['schema'])}")
            lines.append(f"  {shlex.join([*command, url])}")
    columns = document["components"]["schemas"]["Record"].get("properties", {})
    lines += ["\nColumns of a row:", *(f"  {printable(name)}: {each['description']}" for name, each in columns.items())]
    lines += ["\nStatuses besides 200:", *(f"  {status}: {said}" for status, said in STATUSES.items())]
    return "\n".join(lines) + "\n"


def _operation(route: Route, settings: ServeSettings, example: Json, n: str) -> Json:
    summary, _, description = cleandoc(route.answer.__doc__ or "").partition("\n\n")
    is_secret = settings.username is not None and not route.is_open
    names = re.findall(r"{(\w+)}", route.path)
    statuses = {400, 413, 421, 503, *[401] * is_secret, *[404] * bool(names), *[415, 422, 429] * bool(route.body)}
    options = (
        {}
        if route.query is None
        else msgspec.json.schema_components([route.query])[1][route.query.__name__]["properties"]
    )
    operation: Json = {
        "summary": summary,
        "description": " ".join(description.split()),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}, "example": n}
            for name in names
        ]
        + [{"name": name, "in": "query", "schema": schema} for name, schema in options.items()],
        "responses": {"200": {"description": "The answer.", "content": _content(route.answers)}}
        | {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        "security": [{"password": []}] if is_secret else [],
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
        if route.body is not RECORDS:
            kinds = {name: "FP64" if isinstance(value, float) else "BYTES" for name, value in example.items()}
            tensors = [{"name": name, "shape": [1], "datatype": kinds[name], "data": [example[name]]} for name in kinds]
            example = {"inputs": tensors}
        operation["requestBody"]["content"][JSON]["example"] = example
    return operation


def _content(types: Mapping[str, Any]) -> Json:
    schemas, _ = msgspec.json.schema_components(types.values(), ref_template=_PLACE)
    return {kind: {"schema": schema} for kind, schema in zip(types, schemas, strict=True)}


def _record(snapshot: Snapshot | None) -> tuple[Json, Json]:
    """Return the schema of a record by the columns of a model, and an example."""
    if snapshot is None:
        return {"type": "object", "description": "The columns are not known yet."}, {}
    of = snapshot.schema.notations.of
    columns = snapshot.model.learner.encoder.columns
    limits = zip(columns.kinds, columns.plan.lowest.tolist(), columns.plan.highest.tolist(), strict=True)
    ends, kinds = {name: (least, largest) for name, least, largest in limits}, snapshot.model.column_kinds
    found = {str(name): _column(kind, of(str(name)), ends[name]) for name, kind in kinds.items()}
    schema = {
        "type": "object",
        "description": "The columns of the model, of which a record has at least one; other fields are ignored.",
        "properties": {name: column for name, (column, _) in found.items()},
        "anyOf": [{"required": [name]} for name in found] or [{}],
    }
    return schema, {name: example for name, (_, example) in found.items()}


def _column(kind: ColumnKind, notation: Notation, limits: tuple[float, float]) -> tuple[Json, Any]:
    """Return the schema of a column's values, and an example; null and some texts stand for a missing one."""
    number: Json = {"type": "number"}
    if kind != "category":
        ticks = TICKS.get(notation.time, 1.0) if kind == "time" else 1.0
        number |= {"minimum": limits[0] * ticks, "maximum": limits[1] * ticks}
    example: str | float = "text"
    text: Json = {"type": "string"}
    others = [number, {"type": "null"}] if "" in notation.missing else [number]
    gap = {"enum": sorted(notation.missing), "description": "a missing value"}
    if kind == "category":
        texts, what = [text | {"maxLength": MAX_TEXT_LENGTH}, {"type": "boolean"}], "a category"
    elif kind == "time":
        form = notation.time if "%" in notation.time else ""
        what = f"a time in the format {form}" if form else "a time in ISO 8601, or seconds since 1970"
        example = datetime(2026, 1, 31, 12).strftime(form or "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ001 - written as UTC
        texts = [text] if form else [gap, text | {"format": "date-time"}, text | {"format": "date"}]
    else:
        texts = [text if notation.units or notation.thousands else gap, {"type": "boolean"}]
        what, example = "a number, or true or false", 1.0
    return {"description": what, "anyOf": [*texts, *others]}, example
