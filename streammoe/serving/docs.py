"""The page that describes what is served: the OpenAPI document for people, without scripts and foreign parts."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from html import escape
from typing import Any

_STYLE = """
:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:50rem;overflow-wrap:anywhere;padding:1rem}
h2{border-top:1px solid #8888;font-size:1.1rem;margin-top:2rem;padding-top:1rem}
pre{background:#8882;border-radius:.3rem;padding:.7rem;white-space:pre-wrap}
a:focus-visible{outline:2px solid}
"""
POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page: nothing but its own style."""


def page(document: dict[str, Any], origin: str, user: str | None) -> str:
    """Return the page.

    Args:
        document: as OpenAPI.
        origin: scheme and host by which it was asked for, for the commands.
        user: who must name a password, for which the commands ask.
    """
    title, said = (escape(document["info"][name]) for name in ("title", "description"))
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style>',
        f'<title>{title}</title><main><h1>{title}</h1><p>{said} <a href="/openapi.json">OpenAPI 3.1</a></p>',
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            command, url = ["curl", "-sS"], origin + path
            if user is not None and operation["security"]:
                command += ["-u", user]
            if method != "get":
                example = operation["requestBody"]["content"]["application/json"]["example"]
                command += ["-H", "Content-Type: application/json", "-d", json.dumps(example, ensure_ascii=False)]
            rows = []
            for each in operation["parameters"]:
                rows.append(f"{each['name']}, in the {each['in']}: {json.dumps(each['schema'])}")
                url = url.replace(f"{{{each['name']}}}", str(each.get("example")))
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>")
            parts.append(f"<p>{escape(operation['description'])}</p>" * bool(operation["description"]))
            parts.append(f"<pre>{escape(shlex.join([*command, url]))}</pre>{_list(rows)}")
    columns = document["components"]["schemas"]["Record"].get("properties", {})
    held = [f"{json.dumps(name, ensure_ascii=False)}: {each['description']}" for name, each in columns.items()]
    codes = [f"{status}: {each['description']}" for status, each in document["components"]["responses"].items()]
    parts.append(f"<h2>Columns of a row</h2>{_list(held)}<h2>Statuses besides 200</h2>{_list(codes)}")
    return "".join([*parts, "</main></html>\n"])


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(each)}' for each in items)}</ul>" * bool(items)
