"""A token endpoint of OAuth 2 on this machine, and tokens that a broker of Kafka accepts without a key."""

import base64
import json
import time
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote_plus

from tests.unit.connectors.http_server import LocalServer


class TokenEndpoint(LocalServer):
    """It grants one client tokens that are valid for `lifetime` seconds, or answers with the status `failure`."""

    def __init__(self):
        super().__init__(Handler)
        self.lifetime = 60.0
        self.failure = None
        self.requests = []
        """The form of each request."""
        self.url = f"http://127.0.0.1:{self.server_port}/oauth2/token?tenant=1"
        self.thread.start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        scheme, _, login = self.headers["Authorization"].partition(" ")
        self.server.requests.append(form)
        login = unquote_plus(base64.b64decode(login).decode())
        is_known = (scheme, login, form["grant_type"]) == ("Basic", "me:hunter2", ["client_credentials"])
        now, lifetime = time.time(), self.server.lifetime
        # A JSON web token without a signature, which Kafka accepts unless it is told how to verify one.
        parts = {"alg": "none"}, {"sub": "me", "iat": now, "exp": now + lifetime, "scope": ["a"]}
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        granted = {"access_token": ".".join([*encoded, ""]), "token_type": "Bearer", "expires_in": lifetime}
        self.send_response(self.server.failure or (200 if is_known else 401))
        self.send_header("Content-Type", "application/json")  # which librdkafka asks for
        self.end_headers()
        self.wfile.write(json.dumps(granted if is_known else {"error_description": f"not {login}"}).encode())

    def log_message(self, *_):
        pass
