"""The mixture as it was fitted again to more events: where steps are noisy, a fit is the best there is.

It does not learn, and leaves as soon as its weight has been negligible for long.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine import mixture
from streammoe.engine.members.contract import NEGLIGIBLE, PATIENCE, Member, Rows
from streammoe.engine.mixture import Scores
from streammoe.engine.state import UnsoundError, checked_variances, moved
from streammoe.experts import Family, Parameters
from streammoe.kernels.state import MMState
from streammoe.types import AnyArray, IntArray


class Refitted(Member):
    """A mixture whose parameters stay as they are.

    Args:
        family: family of the experts.
        theta: the parameters.
        idle: number of reviews in a row at which its weight was negligible.
    """

    name = "refitted"
    is_on_probation = True

    def __init__(self, family: Family, theta: Parameters, idle: int = 0) -> None:
        self._family = family
        self.theta = theta
        self._idle = idle

    def parameters(self, mixture_state: MMState) -> Parameters:
        return self.theta

    def learn(self, rows: Rows, scores: Scores, *, n_outputs: int, traced: bool) -> Scores:
        W, R, Y, _ = rows
        found, _ = mixture.score(self._family, self.theta, W, R, Y, n_outputs=n_outputs, traced=traced)
        losses = found.losses[~np.isnan(Y[:, 0])]
        if not (np.isfinite(losses).all() and np.isfinite(found.predictions).all()):
            raise UnsoundError([self.name])
        return found

    def stays(self, weight: float, n: int) -> bool:
        self._idle = self._idle + 1 if weight < NEGLIGIBLE else 0
        return self._idle < PATIENCE

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        gate, experts, variances = self.theta
        self.theta = Parameters(moved(gate, gate_at, p_w), moved(experts, expert_at, p_v), variances)

    def arrays(self) -> Mapping[str, AnyArray]:
        arrays = {f"{self.name}.{name}": array for name, array in self.theta._asdict().items()}
        return {**arrays, f"{self.name}_idle": np.array([self._idle], dtype=np.int64)}

    def copy(self, spare: Member | None = None) -> Refitted:
        return Refitted(self._family, self.theta, self._idle)

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in self.theta)

    @classmethod
    def from_arrays(
        cls, family: Family, given: Mapping[str, AnyArray], prefix: str, *, most: int, n_outputs: int, p_w: int, p_v: int
    ) -> Refitted:
        """Restore a mixture of at most so many experts from the arrays that `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        place = f"{prefix}{cls.name}"
        theta = restored_parameters(given, place, family, most=most, n_outputs=n_outputs, p_w=p_w, p_v=p_v)
        idle = int(array_of(given, f"{place}_idle", "int64", (1,), least=0, most=PATIENCE - 1)[0])
        return cls(family, theta, idle)


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
