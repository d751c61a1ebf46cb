"""Whether a cluster answers, and why it does not."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from math import inf

_LOGGER = logging.getLogger("streammoe.source")
LOG_INTERVAL_SECONDS = 30.0
"""Shortest time between two log messages of the same kind."""
_NOW_AND_THEN = {"interval": LOG_INTERVAL_SECONDS}
_LOGIN_WORDS = re.compile(r"sasl|authentica|certificate|ssl|tls", re.IGNORECASE)
"""Words of both clients about a login that is rejected, or about certificates."""
_NOT_LOGIN = re.compile(r"\S*://\S*|connecting to a SSL listener")
"""Where librdkafka has such words for any connection: in addresses, and in a guess at what has closed one."""


class Link:
    """The connection to a cluster by a security protocol, as it shows in answers and failures."""

    def __init__(self, protocol: str, counters: Counter[str]) -> None:
        self._protocol, self._counters = protocol, counters
        self.connected = False
        self.refused = ""
        """That the login is rejected, or a certificate, and what the client says of it; empty if that is not so."""
        self.failed_at = self.changed_at = time.monotonic()
        """When a request last failed, and when the connection was last lost or made, in monotonic seconds."""
        self._client_error = -inf, ""
        """When the client logged why a connection failed, and its message."""

    def hear(self, logged: str) -> None:
        """Note why a connection failed in the client's words; those about a login are kept though others fail, too."""
        said = logged.rpartition(">: ")[2].rpartition("]: ")[2]  # without the name of the connection
        if said.startswith(("Bootstrap failed", "Metadata refresh")):
            return  # this follows from such a failure, and is raised as well
        # kafka-python mostly closes a connection before it has read why the login is rejected.
        if "=bootstrap" in logged and "socket disconnected" in said and "SASL" in self._protocol:
            said = f"{said}, as by brokers that reject a login (SASL)"
        now, (at, known) = time.monotonic(), self._client_error
        if now - at >= LOG_INTERVAL_SECONDS or _is_about_login(said) or not _is_about_login(known):
            self._client_error = now, said

    def make(self, now: float) -> None:
        """Note that the cluster answers."""
        self.connected, self.refused, self._client_error, self.changed_at = True, "", (-inf, ""), now

    def lose(self, why: str, now: float) -> None:
        """Note that the cluster does not answer, and why; say so now and then."""
        at, said = self._client_error
        if now - at < LOG_INTERVAL_SECONDS:
            why = f"{why}; the client says: {said}"
        was_refused, self.refused = bool(self.refused), ""
        if _is_about_login(why):
            self.refused = f"the source rejects the login, or its connection is not trusted ({why})"
        if self.connected:
            self.changed_at = now
        self.connected, self.failed_at = False, now
        if not self.refused:
            _LOGGER.warning("the source does not respond (%s); retrying until it does", why, extra=_NOW_AND_THEN)
        else:
            self._counters["login_rejected"] += not was_refused
            _LOGGER.warning("%s; retrying until it does", self.refused, extra=_NOW_AND_THEN)


def _is_about_login(text: str) -> bool:
    return _LOGIN_WORDS.search(_NOT_LOGIN.sub("", text)) is not None
