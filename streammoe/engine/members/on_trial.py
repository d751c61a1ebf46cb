"""One expert that leaves for good as soon as its weight has been negligible for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from streammoe.checked import array_of
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.state import MMState
from streammoe.experts import Family
from streammoe.types import AnyArray

NEGLIGIBLE = 1e-3
"""A member of less weight does not matter."""
PATIENCE = 2
"""Number of reviews in a row at which its weight is negligible when it leaves."""


class OnTrial(OneExpert):
    """An expert of the mixture's family that stays while it helps.

    Args:
        family: family of the experts.
        bound: the curvature bound of a categorical expert.
        state: its state.
        idle: number of reviews in a row at which its weight was negligible.
    """

    is_on_probation = True

    def __init__(self, family: Family, bound: str, state: MMState, idle: int = 0) -> None:
        super().__init__(family, bound, state)
        self._idle = idle

    def stays(self, weight: float, n: int) -> bool:
        self._idle = self._idle + 1 if weight < NEGLIGIBLE else 0
        return self._idle < PATIENCE

    def arrays(self) -> Mapping[str, AnyArray]:
        return {**super().arrays(), f"{self.name}_idle": np.array([self._idle], dtype=np.int64)}

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        bound: str,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        n: int,
        n_outputs: int,
        p_v: int,
    ) -> Self:
        sizes = {"n": n, "n_outputs": n_outputs, "p_v": p_v}
        found = super().from_arrays(family, bound, given, prefix, **sizes)
        idle = int(array_of(given, f"{prefix}{cls.name}_idle", "int64", (1,), least=0, most=PATIENCE - 1)[0])
        return cls(family, bound, found.state, idle)
