"""The description of what is served for people: the OpenAPI document as a text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from streammoe.text import printable


def text(document: dict[str, Any], origin: str, user: str | None) -> str:
    """Return the text.

    Args:
        document: as OpenAPI.
        origin: scheme and host by which it was asked for, for the commands.
        user: who must name a password, for which the commands ask.
    """
    return "\n".join(_lines(document, origin, user)) + "\n"


def _lines(document: dict[str, Any], origin: str, user: str | None) -> Iterator[str]:
    yield from (document["info"]["title"], document["info"]["description"], f"OpenAPI 3.1: {origin}/openapi.json")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            command, url = ["curl", "-sS"], origin + path
            if user is not None and operation["security"]:
                command += ["-u", user]
            if method != "get":
                example = operation["requestBody"]["content"]["application/json"]["example"]
                command += ["-H", "Content-Type: application/json", "-d", json.dumps(example)]
            yield f"\n{method.upper()} {path}: {operation['summary']} {operation['description']}".rstrip()
            for each in operation["parameters"]:
                url = url.replace(f"{{{each['name']}}}", str(each.get("example")))
                yield f"  {each['name']}, in the {each['in']}: {json.dumps(each['schema'])}"
            yield f"  {shlex.join([*command, url])}"
    yield "\nColumns of a row:"
    for name, column in document["components"]["schemas"]["Record"].get("properties", {}).items():
        yield f"  {printable(name)}: {column['description']}"
    yield "\nStatuses besides 200:"
    for status, response in document["components"]["responses"].items():
        yield f"  {status}: {response['description']}"
