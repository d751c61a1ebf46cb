"""When saving fails: tried again, ever more seldom, while learning goes on; and given up in the end."""

from __future__ import annotations

import logging
import time

from streammoe.errors import RetriableCheckpointError

LOGGER = logging.getLogger("streammoe.daemon")
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds between two attempts."""


class RetryPolicy:
    """A disk that is full for five minutes must not end a run of months.

    What a crash costs grows meanwhile, since everything after the last checkpoint is learned again; so it has a bound.

    Args:
        patience: seconds from the first failure to the last attempt; 0 gives up at once.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE
        self._next_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the latest attempt failed."""
        return self._failing_since is not None

    @property
    def is_due(self) -> bool:
        """Whether it is time for another attempt."""
        return self.failing and time.monotonic() >= self._next_at

    def failed(self, error: RetriableCheckpointError) -> None:
        """Take note of a failed attempt.

        Raises:
            RetriableCheckpointError: `error`, since patience is at its end.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since, self._pause = now, FIRST_PAUSE
        left = self._failing_since + self.patience - now
        if left <= 0:
            raise error
        pause = min(self._pause, left)
        self._next_at = now + pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        LOGGER.warning(
            "nothing can be saved: %s. Learning goes on, saving is tried again in %.0f s, and given up, with exit "
            "code 4, in %.0f s (checkpoint.retry_seconds = %g)",
            error,
            pause,
            left,
            self.patience,
        )

    def succeeded(self) -> None:
        """Take note of a checkpoint."""
        if self._failing_since is not None:
            LOGGER.warning("saving works again after %.0f s", time.monotonic() - self._failing_since)
        self._failing_since = None
