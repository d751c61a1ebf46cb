"""What can be seen of a model: its gate, its experts' shares, its names, its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.engine import mm
from streammoe.engine.split_merge import life
from streammoe.engine.state import is_finite
from streammoe.estimators.stepping import Stepping
from streammoe.noise import Noise
from streammoe.types import FloatArray


class Inspecting(Stepping):
    """Looks inside and changes nothing."""

    def gate_one(self, x: Mapping[Any, Any]) -> FloatArray:
        """(K,) the gate's shares g_k(x); NaN in the warm-up, whose quick fits come and go with experts of their own."""
        _, shares = self._score(self._encoder.row(x), None)
        return self._of_mixture(shares)

    def _responsibilities(self, x: Mapping[Any, Any], target: FloatArray) -> FloatArray:
        """(K,) τ_k of an event ([MM] eq. 15); NaN during warm-up."""
        _, tau = self._score(self._encoder.row(x), target)
        return self._of_mixture(tau)

    def _of_mixture(self, values: FloatArray) -> FloatArray:
        return np.full(self.most_experts, np.nan) if self._state is None else values[0]

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns, in the order of the parameters: a number's own, ``color=red``, ``t:day_sin``."""
        return list(self._encoder.feature_names)

    @property
    def n_expert_features(self) -> int:
        """p_v: features that the experts see, intercept and powers included."""
        return self._encoder.n_expert_features

    @property
    def noise(self) -> Noise:
        """What the noise of an output is like at scale 1, given the expert; says nothing of a classifier."""
        return self._family.noise

    @property
    def is_warming_up(self) -> bool:
        """Whether events still go to the warm-up buffer."""
        return self._state is None

    @property
    def step_size(self) -> float:
        """γ of the next event."""
        return self._steps(self.n + 1)

    def step_size_at(self, n: int) -> float:
        """γ of the n-th event, the first one being 1, by the schedule alone: as if no drift were found."""
        return self._schedule(n)

    @property
    def masses(self) -> FloatArray:
        """(K,) share of each expert, m_k / Σ m; NaN during warm-up."""
        if self._state is None:
            return np.full(self.most_experts, np.nan)
        shares: FloatArray = self._state.masses / self._state.masses.sum()
        return shares

    def experts(self) -> list[dict[str, Any]]:
        """How each expert fares; empty during warm-up.

        Returns:
            For each expert ``share``, of the events that it answers for; ``loss``, the mean −log e_k(y|x) of those, in
            the target's own units; ``nearest``, the expert that says most nearly the same, or None, and ``divergence``
            from it in nats an event, or None; ``condition``: "alive", "starved" or "duplicate" (docs/experts.md).
        """
        if self._state is None:
            return []
        found = life(self._family, self._state, self._options)
        scale = float(np.sum(np.log(self._encoder.scaler.target_scale)))
        alone = len(found.shares) == 1
        return [
            {
                "share": float(found.shares[k]),
                "loss": float(found.losses[k]) + scale,
                "nearest": None if alone else int(found.nearest[k]),
                "divergence": None if alone else float(found.divergences[k]),
                "condition": "starved" if found.starved[k] else "duplicate" if found.duplicate[k] else "alive",
            }
            for k in range(len(found.shares))
        ]

    @property
    def convergence_residual(self) -> float:
        """‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point; NaN during warm-up."""
        return mm.convergence_residual(self._residual) if len(self._residual) else float("nan")

    def is_finite(self) -> bool:
        """Whether every number in the state is finite; anything else is a bug."""
        if self._state is not None:
            return is_finite(self._state)
        return self._warm_up is None or is_finite(self._warm_up.recursive)
