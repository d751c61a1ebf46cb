"""An OAuth 2 token endpoint on this machine, for the grant of client credentials."""

import base64
import json
import ssl
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote_plus

from tests.unit.connectors.http_server import LocalServer


def unsecured_token(subject, lifetime):
    """A JSON web token without a signature, which Kafka accepts unless it is told how to verify one."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime, "scope": ["a"]}
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


class TokenEndpoint(LocalServer):
    """It knows one client, and grants it tokens that are valid for `lifetime` seconds.

    Args:
        client: its id and secret.
        context: for https.
        port: of an endpoint that was closed; by default any.
    """

    def __init__(self, client=("me", "hunter2"), *, context: ssl.SSLContext | None = None, port=0):
        super().__init__(Handler, context, port)
        self.client = client
        self.lifetime = 60.0
        self.answer = None
        """A status, a body and headers to answer with, whatever is asked."""
        self.requests = []
        """Of each request the login, and the form."""
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.server_port}/oauth2/token?tenant=1"
        self.thread.start()

    def granted(self):
        token = unsecured_token(self.client[0], self.lifetime)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        scheme, _, login = self.headers["Authorization"].partition(" ")
        client = tuple(map(unquote_plus, base64.b64decode(login).decode().split(":")))
        server.requests.append((client, form))
        status, body, *headers = server.answer or server.granted()
        if server.answer is None:
            if form.get("grant_type") != ["client_credentials"]:
                status, body = 400, {"error": "unsupported_grant_type"}
            elif (scheme, client) != ("Basic", server.client):
                status, body = 401, {"error": "invalid_client", "error_description": f"not {login}"}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")  # which librdkafka asks for
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *_):
        pass
