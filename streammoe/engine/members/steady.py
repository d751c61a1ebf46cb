"""One expert that forgets little, and whose inputs are not held to the range seen before.

Where regions are nearly linear, several experts only add to the noise: each of its coefficients is learned from
hundreds of events, and there are a fraction as many as in a mixture. What is linear also goes on beyond that range, as
long as inputs grow and are no errors; it is trusted by its predictions like the others. It leaves where a mixture is
needed.
"""

from __future__ import annotations

from streammoe.engine.members.on_trial import OnTrial

LEAST_STEP = 0.003
"""About the last 300 events count: longer steps make too much of single events that are far out, and with shorter ones
what a narrow range did not tell is learned too late where it widens."""


class Steady(OnTrial):
    """An expert of the mixture's family that learns all events by short steps."""

    name = "steady"
    is_held = False

    @property
    def step(self) -> float:
        return LEAST_STEP
