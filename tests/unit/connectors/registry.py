"""A schema registry on this machine, which answers by path."""

import json
import ssl
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from tests.unit.connectors.http_server import LocalServer


class Registry(LocalServer):
    """It knows what is in `answers`: a status, a body and headers for each path."""

    def __init__(self, context: ssl.SSLContext | None = None):
        super().__init__(Handler, context)
        self.answers, self.asked, self.logins = {}, [], []
        self.address = f"127.0.0.1:{self.server_port}"
        self.thread.start()

    def has(self, number, schema, **more):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.answers[f"/schemas/ids/{number}"] = (200, {"schema": text, **more})


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.logins.append(self.headers["Authorization"])
        status, body, *headers = self.server.answers.get(self.path, (404, {"error_code": 40403}))
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with suppress(OSError):  # the client may have had enough
            self.wfile.write(content)

    def log_message(self, *_):
        pass
