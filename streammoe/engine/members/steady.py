"""One expert that hardly forgets: where regions are nearly linear, several experts only add to the noise.

Each of its coefficients is learned from all events, and there are a fraction as many as in a mixture. It leaves where a
mixture is needed.
"""

from __future__ import annotations

from streammoe.engine.members.on_trial import OnTrial

LEAST_STEP = 1e-4
"""Its steps are 1/n up to 10,000 events; then about so many count."""


class Steady(OnTrial):
    """An expert of the mixture's family that learns all events by steps of 1/n."""

    name = "steady"

    @property
    def step(self) -> float:
        return LEAST_STEP
