"""The mixture as it was fitted again to more events: where steps are noisy, a fit is the best there is.

It does not learn. It is compared with the average over all events since the last review, since what both of them say
may differ by too little for weights, which forget: it leaves when it has not gained on the average in two reviews.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine.members.contract import Member
from streammoe.engine.state import checked_variances, moved
from streammoe.experts import Family, Parameters
from streammoe.kernels.state import MMState
from streammoe.types import AnyArray, IntArray

LEAST_GAIN = 5.0
"""Nats by which it must have predicted better than the average between two reviews; so much may be chance."""
MOST_AT_ONCE = 10.0
"""Most nats that a single event counts for."""
ALONE = 0.99
"""Weight above which no other member is trusted, so that it stays whatever it has gained."""
PATIENCE = 2
"""Number of reviews in a row at which it has gained less when it leaves; the first may come soon after its fit."""


class Refitted(Member):
    """A mixture whose parameters stay as they are.

    Args:
        family: family of the experts.
        theta: the parameters.
        idle: number of reviews in a row at which it had not gained enough.
        gain: nats by which it has predicted better than the average since the last review; (1,) as an attribute.
    """

    name = "refitted"
    is_on_probation = True

    def __init__(self, family: Family, theta: Parameters, idle: int = 0, gain: float = 0.0) -> None:
        self._family = family
        self.theta = theta
        self._idle = idle
        self.gain = np.array([gain])

    def parameters(self, mixture_state: MMState) -> Parameters:
        return self.theta

    def stays(self, weight: float, n: int) -> bool:
        self._idle = self._idle + 1 if self.gain[0] < LEAST_GAIN and weight < ALONE else 0
        self.gain[0] = 0.0
        return self._idle < PATIENCE

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        gate, experts, variances = self.theta
        self.theta = Parameters(moved(gate, gate_at, p_w), moved(experts, expert_at, p_v), variances)

    def arrays(self) -> Mapping[str, AnyArray]:
        arrays = {f"{self.name}.{name}": array for name, array in self.theta._asdict().items()}
        return {
            **arrays,
            f"{self.name}_idle": np.array([self._idle], dtype=np.int64),
            f"{self.name}_gain": self.gain,
        }

    def copy(self, spare: Member | None = None) -> Refitted:
        return Refitted(self._family, self.theta, self._idle, float(self.gain[0]))

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in self.theta)

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        most: int,
        n_outputs: int,
        p_w: int,
        p_v: int,
    ) -> Refitted:
        """Restore a mixture of at most so many experts from the arrays that `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        place = f"{prefix}{cls.name}"
        theta = restored_parameters(given, place, family, most=most, n_outputs=n_outputs, p_w=p_w, p_v=p_v)
        idle = int(array_of(given, f"{place}_idle", "int64", (1,), least=0, most=PATIENCE - 1)[0])
        gain = float(array_of(given, f"{place}_gain", "float64", (1,))[0])
        return cls(family, theta, idle, gain)


def restored_parameters(
    given: Mapping[str, AnyArray], place: str, family: Family, *, most: int, n_outputs: int, p_w: int, p_v: int
) -> Parameters:
    """Restore the parameters of a mixture of at most so many experts, saved under ``place.name``.

    Raises:
        CheckpointError: an array is missing, has another shape, or holds invalid values.
    """
    experts = array_of(given, f"{place}.experts", "float64", (None, family.n_rows(n_outputs), p_v))
    K = len(experts)
    require(1 < K <= most, f"array {place}.experts is for {K} experts; 2 to {most} are possible")
    gate = array_of(given, f"{place}.gate", "float64", (K - 1, p_w))
    variances = checked_variances(given, f"{place}.variances", family, n_experts=K, n_outputs=n_outputs)
    return Parameters(*(np.ascontiguousarray(array) for array in (gate, experts, variances)))
