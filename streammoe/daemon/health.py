"""What probes ask: is the loop alive, and has reading begun?"""

from __future__ import annotations

import time


class Health:
    """Written by the learning loop, read by the server's threads.

    An idle topic is no illness: the loop turns whether or not anything comes. One step, such as the fit that ends the
    warm-up of a wide model, may take long, so the patience must be longer.

    Args:
        patience: seconds that one turn of the loop may take.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.ready = False
        """Whether state and position are restored, and what is read from has answered."""
        self.unsaved = ""
        """Why nothing can be saved at present; empty while all is well."""
        self._beat_at = time.monotonic()

    def beat(self) -> None:
        """Told at each turn of the loop."""
        self._beat_at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Since the last turn of the loop."""
        return time.monotonic() - self._beat_at

    @property
    def alive(self) -> bool:
        """Whether the loop has turned of late."""
        return self.silent_seconds <= self.patience
