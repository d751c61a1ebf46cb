"""Requests as strangers send them, well-formed or not."""

import base64
import contextlib
import http.client
import socket
from pathlib import Path

HOST = b"Host: localhost\r\n"


def address(server):
    host, _, port = server.url.split("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def ask(server, path="/metrics", method="GET", body=None, *, context=None, **headers):
    """Status, headers and body."""
    made = http.client.HTTPSConnection if server.url.startswith("https") else http.client.HTTPConnection
    more = {"context": context} if context else {}
    connection = made(*address(server), timeout=20, **more)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def raw(server, data):
    """What comes back for these bytes, until the server closes."""
    found = b""
    with socket.create_connection(address(server), timeout=20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        while block := connection.recv(4096):
            found += block
    return found


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def descriptors():
    return len(list(Path("/dev/fd").iterdir()))
