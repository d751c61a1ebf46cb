"""Whether a cluster answers, and why it does not."""

from __future__ import annotations

import logging
import time
from collections import Counter
from math import inf

from streammoe_connectors.kafka.contract import Cause, ClientError

_LOGGER = logging.getLogger("streammoe.source")


class Seldom:
    """Something that is said again only after so many seconds."""

    def __init__(self, event: str, seconds: float) -> None:
        self._event, self._seconds = event, seconds
        self._next_at = -inf

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, if it is time."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + self._seconds
            _LOGGER.warning(message, *arguments, extra={"event": self._event})


class Link:
    """The connection to a cluster, as it shows in answers and failures."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._silence, self._rejection = Seldom("source_unreachable", 30.0), Seldom("login_rejected", 30.0)
        self.connected = False
        self.refused = ""
        """That the login is rejected, or a certificate, and what the client says of it; empty if that is not so."""
        self.failed_at = self.changed_at = time.monotonic()
        """When a request last failed, and when the connection was last lost or made, in monotonic seconds."""

    def make(self, now: float) -> None:
        """Note that the cluster answers."""
        self.connected, self.refused, self.changed_at = True, "", now

    def lose(self, why: ClientError, now: float) -> None:
        """Note that the cluster does not answer, and why; say so now and then."""
        if self.connected:
            self.changed_at = now
        self.connected, self.failed_at = False, now
        was_refused, self.refused = bool(self.refused), ""
        if why.cause is Cause.REJECTED:
            self.refused = f"the source rejects the login, or its connection is not trusted ({why})"
            self._counters["login_rejected"] += not was_refused
            self._rejection.warn("%s; retrying until it does not", self.refused)
        else:
            self._silence.warn("the source does not respond (%s); retrying until it does", why)
