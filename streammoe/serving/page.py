"""The page for people, what it consists of, and the status that it shows; see docs/page.md."""

from __future__ import annotations

import re
from importlib import resources

from streammoe.serving.figures import to_json
from streammoe.web.listener import Handler

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from elsewhere, and nothing in the page itself runs."""
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Files by their path, each with its type."""


class _File(Handler):
    """A handler whose answers browsers neither guess about, keep, nor put into other pages."""

    requires_password = True

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def get(self) -> None:
        name, content_type = FILES[self.request.path]
        self.set_header("Content-Type", content_type)
        self.finish(resources.files(__package__).joinpath("static", name).read_bytes())


class _Status(_File):
    content_type = "application/json"

    def get(self) -> None:
        status = self.of.status()
        if self.get_query_argument("history", "true") == "false":
            del status["history"]
        self.finish(to_json(status))


ROUTES: list[tuple[str, type[Handler]]] = [
    *((re.escape(path), _File) for path in FILES),
    (re.escape("/status.json"), _Status),
]
