"""A server of HTTP on this machine, in a thread, with or without TLS."""

import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer(ThreadingHTTPServer):
    """It serves until it is closed, by https with a context."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None):
        super().__init__(("127.0.0.1", 0), handler)
        self.context = context
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def finish_request(self, request, client_address):
        # In the thread of the request: a handshake must not keep others from being served.
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with suppress(OSError), self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()
