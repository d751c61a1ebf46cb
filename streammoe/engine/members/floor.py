"""One expert without inputs: the running mean and spread of numbers, or the frequencies of classes.

Where inputs say nothing, or no longer what they did, nothing else predicts better. So it never leaves, and no stream
costs much more than it does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.engine.members.one_expert import OneExpert, blank_expert, restored_expert
from streammoe.engine.mixture import Scores
from streammoe.engine.state import MMState
from streammoe.experts import Family
from streammoe.types import AnyArray, FloatArray, IntArray

SHORTEST_STEP = 1e-3
"""Its steps are 1/n up to a thousand events; then about so many count."""
INTERCEPT = np.zeros((1, 2), dtype=np.int64)
"""The terms of an expert that has nothing but an intercept."""


class Floor(OneExpert):
    """An expert of the mixture's family that has nothing but an intercept."""

    name = "floor"
    terms = INTERCEPT

    @property
    def step(self) -> float:
        return SHORTEST_STEP

    def learn(self, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int) -> Scores:
        return super().learn(np.ones((len(R), 1)), Y, weights, n_outputs=n_outputs)

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Do nothing: it sees no feature."""

    def add_class(self, n_features: int) -> None:
        super().add_class(1)

    @classmethod
    def of(cls, family: Family, bound: str, mixture_state: MMState) -> Floor:
        """Return the expert that has learned nothing, for targets of the mixture's scale."""
        experts = np.zeros((len(mixture_state.prior_experts), 1))
        state = blank_expert(family, np.ones(1), experts, np.ones_like(mixture_state.prior_variances))
        return cls(family, bound, state)

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        bound: str,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        n: int,  # noqa: ARG003 - what it learned of a warm-up may be fewer events
        n_outputs: int,
        p_v: int,  # noqa: ARG003 - it has one feature
    ) -> Floor:
        return cls(family, bound, restored_expert(given, f"{prefix}{cls.name}", family, n_outputs=n_outputs, p_v=1))
