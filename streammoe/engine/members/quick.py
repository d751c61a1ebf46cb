"""One expert that forgets at once: where a relation moves fast, whatever remembers a hundred events lags behind.

Its few events leave it much noise, so that it leaves where nothing moves.
"""

from __future__ import annotations

from streammoe.engine.members.on_trial import OnTrial

LONG_STEP = 0.05
"""About the last 20 events count."""


class Quick(OnTrial):
    """An expert of the mixture's family that learns by long steps."""

    name = "quick"

    @property
    def step(self) -> float:
        return LONG_STEP
