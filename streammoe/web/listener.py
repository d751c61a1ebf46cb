"""A listener for HTTP that bounds what untrusted clients cost.

Tornado parses requests and writes responses. This module limits the number of connections, the duration of each
request, the size of requests, and permitted host names.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream
from tornado.netutil import add_accept_handler
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from streammoe.errors import ConfigError
from streammoe.settings import ListenerSettings
from streammoe.text import counted, listed
from streammoe.web.access import Access, is_served, tls_context

MAX_HEAD_BYTES = 8192
"""Maximum bytes of a request's first line and headers; no request that is answered needs more."""


SECONDS = 30.0
"""From accepting a connection, or from the head of its latest request, to the last byte of the response."""
CONNECTIONS = 256
"""Simultaneous ones; a further one replaces the one that has been idle for longest."""
CLOSE_SECONDS = 3.0
"""What has come before the end has so long to be answered."""
QUIET_SECONDS = 0.1
"""Time without a request after which the end waits no longer for the next one on an open connection."""


class Listener:
    """An HTTP server that runs in its own thread from construction to `close`.

    Args:
        settings: the section with its address.
        routes: patterns of paths, each with its handler.
        of: what handlers answer about.
        body_bytes: how large the body of a request may be.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    def __init__(
        self, settings: ListenerSettings, routes: Sequence[tuple[str, type[Handler]]], of: Any, body_bytes: int = 0
    ) -> None:
        self.settings, self.of, self.body_bytes = settings, of, body_bytes
        self.logger = logging.getLogger(f"streammoe.{settings.section}")
        self.access = Access(settings)
        self._tls = tls_context(settings)
        self.connections: dict[IOStream, asyncio.TimerHandle] = {}
        """Open ones, that with the oldest request first, each with the timer that closes it."""
        self.unanswered = WeakSet[IOStream]()
        """Those whose latest request is being answered."""
        self.is_closing = False
        self._listener = _listener(settings)
        self.address, port = self._listener.getsockname()[:2]
        self.access.warn_if_exposed(self.address, encrypted=self._tls is not None)
        for name in ("tornado.access", "tornado.general"):  # they would log whatever untrusted clients send
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._http = HTTPServer(
            Application(
                [(path, handler, {"listener": self}) for path, handler in routes],
                compress_response=True,
            ),
            max_header_size=MAX_HEAD_BYTES,
            max_body_size=sys.maxsize,  # handlers keep `body_bytes`, and refuse more with a reason
        )
        self._loop = _event_loop()
        self._loop.set_exception_handler(self._end_early)
        try:
            self._loop.run_until_complete(self._listen())
        except BaseException:  # such as no descriptor for a module of Tornado; else a traceback is left behind
            self._loop.close()
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._run, name=settings.section, daemon=True)
        self._thread.start()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http{'s' if self._tls else ''}://{host}:{port}"

    def close(self) -> None:
        """Accept nothing more, answer what has come, and close all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def begin(self, stream: IOStream) -> None:
        """Give a connection whose next request has come its time again."""
        self.unanswered.add(stream)
        if (timer := self.connections.pop(stream, None)) is not None:
            timer.cancel()
            self._set_deadline(stream)

    async def _listen(self) -> None:
        self._stop_listening = add_accept_handler(self._listener, self._accept)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self.is_closing = True
        self._stop_listening()
        self._listener.close()
        began = busy_at = self._loop.time()
        while there := [each for each in self.connections if not each.closed()]:
            now = self._loop.time()
            if any(each in self.unanswered or each.writing() for each in there):
                busy_at = now
            if now > min(began + CLOSE_SECONDS, busy_at + QUIET_SECONDS):
                break
            await asyncio.sleep(0.01)  # streams do not say when they have written all
        await self._http.close_all_connections()

    def _accept(self, connection: socket.socket, address: Any) -> None:
        # If the peer has disconnected, ssl raises, and leaves the socket to the garbage collector.
        with contextlib.suppress(OSError):
            if self._tls is None:
                stream = IOStream(connection)
            else:
                stream = SSLIOStream(self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False))
            self._track(stream)
            self._http.handle_stream(stream, address)

    def _track(self, stream: IOStream) -> None:
        """Close a connection at its deadline, and the one that was idle for longest at once if there are too many."""
        for known in [known for known in self.connections if known.closed()]:
            self.connections.pop(known).cancel()
        if len(self.connections) >= CONNECTIONS:
            oldest = next(iter(self.connections))
            self.connections.pop(oldest).cancel()
            oldest.close()
        self._set_deadline(stream)

    def _set_deadline(self, stream: IOStream) -> None:
        self.connections[stream] = self._loop.call_later(SECONDS, stream.close)

    def _end_early(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a broken connection, which is not worth more than a debug message."""
        error = context.get("exception")
        self.logger.debug("a connection ended early: %r", error)
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            time.sleep(0.1)  # or the loop would spin: a connection that lacks a descriptor is still to be accepted


def _listener(settings: ListenerSettings) -> socket.socket:
    host, port, section = settings.host, settings.port, settings.section
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        last = f"correct {section}.host, or set {section}.enabled to false"
        if not settings.enabled:  # a command serves nothing else
            last = f"or correct {section}.host"
        raise ConfigError(
            f"{section}.host {host} with {section}.port {port}: cannot be bound ({reason}); stop the "
            f"program that uses the port, set {section}.port to another one (0 picks a free one), {last}"
        ) from error
    listener.setblocking(False)
    return listener


def _event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop without leaving a traceback behind if asyncio runs out of file descriptors.

    Raises:
        OSError: there are too few file descriptors.
    """
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


@stream_request_body
class Handler(RequestHandler):
    """A handler that responds with a sentence; HEAD is GET without the body.

    Bodies are not read as forms, and what comes after the limit, or of a request that is refused, is not kept.
    """

    SUPPORTED_METHODS: tuple[str, ...] = ("GET", "HEAD")
    content_type = "text/plain; charset=utf-8"
    requires_password = False

    def initialize(self, listener: Listener) -> None:
        self.listener, self.of = listener, listener.of
        self.body = bytearray()
        self._refused = False
        connection: Any = self.request.connection
        self.stream: IOStream = connection.stream

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", self.content_type)

    def prepare(self) -> None:
        """Refuse host names that are not this server's, before anything else, and whoever lacks the password."""
        self.listener.begin(self.stream)
        if self.listener.is_closing:
            self.set_header("Connection", "close")
        settings = self.listener.settings
        if not is_served(self.request.host_name, self.listener.address, settings.allowed_hosts):
            self.refuse(421, f"this host name is not served here; {settings.section}.allowed_hosts may list more names")
        elif self.requires_password and not self.listener.access.allows(self.request.headers.get("Authorization")):
            self.set_header("WWW-Authenticate", 'Basic realm="streammoe", charset="UTF-8"')
            self.refuse(401, "a password is required")

    def refuse(self, status: int, text: str) -> None:
        """Give this answer instead, but after the body: most clients send all of it before they read."""
        if not self._refused:
            self._refused = True
            setattr(self, str(self.request.method).lower(), lambda **_: self.say(status, text))

    def data_received(self, chunk: bytes) -> None:
        if not self._refused:
            self.body += chunk
            if len(self.body) > (most := self.listener.body_bytes):
                self.refuse(413, f"the body has more than {counted(most, 'byte')}")

    def on_finish(self) -> None:
        self.listener.unanswered.discard(self.stream)

    def head(self, **arguments: Any) -> Any:
        return self.get(**arguments)

    def compute_etag(self) -> None:
        """Omit the digest of the body: responses are not cacheable, and SHA-1 is not available everywhere."""

    def say(self, status: int, text: str) -> None:
        self.set_status(status)
        self.finish(f"{text}\n")

    def write_error(self, status_code: int, **_: Any) -> None:
        if status_code == 405:
            self.set_header("Allow", ", ".join(self.SUPPORTED_METHODS))
            self.say(405, f"only {listed(self.SUPPORTED_METHODS, 'and')} can be answered")
        else:
            self.say(status_code, "this request cannot be answered")

    def log_exception(self, _type: Any, value: Any, _traceback: Any) -> None:
        if not isinstance(value, HTTPError):  # a bug; without the request, which may hold anything
            self.listener.logger.error("a request could not be answered", exc_info=value)


class NotFound(Handler):
    """The answer for all other paths."""

    def get(self) -> None:
        self.say(404, f"not found; there are {listed(self.of.paths, 'and')}")
