"""One round of each batch method: EM, gradient EM, gradient descent, and majorization-minimization.

[MD] Algorithms 1 to 3, and [MM] Algorithm 1 with averages over all rows in place of running ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streammoe.engine.em import Em, statistics_at
from streammoe.engine.gradient import expert_objective, gate_objective, gradient, moved, squared_norm
from streammoe.experts import Parameters
from streammoe.types import FloatArray

M_STEPS = 20
"""Most Newton steps of one M-step; a handful does unless the start is far away."""
SUFFICIENT = 1e-4
"""Fraction of the gain predicted by the slope that a step must achieve (Armijo)."""
MOST_HALVINGS = 60


class Point(NamedTuple):
    """Parameters with their objective and responsibilities."""

    theta: Parameters
    objective: float
    """Penalized log-likelihood per event."""
    tau: FloatArray
    """(n, K) responsibilities."""


def point_at(em: Em, theta: Parameters) -> Point:
    """Perform the E-step at θ."""
    return Point(theta, *em.e_step(theta))


class Method(ABC):
    """A method of descent; an object belongs to one descent.

    Args:
        step: step size of a gradient method, instead of its line search; other methods ignore it.
    """

    def __init__(self, step: float | None = None) -> None:
        self._step = step

    def slope(self, em: Em, point: Point) -> Parameters:
        """Return the gradient of the objective at a point."""
        return gradient(em, point.theta, point.tau)

    @abstractmethod
    def advance(self, em: Em, point: Point, slope: Parameters) -> Point | None:
        """Return the next point, or None if no step gains beyond rounding; `slope` is the gradient at the point."""


class ExpectationMaximization(Method):
    """EM, [MD] Algorithm 1: weighted least squares for each expert, weighted softmax regressions to convergence."""

    def advance(self, em: Em, point: Point, slope: Parameters) -> Point | None:
        theta = point.theta.copied()
        em.m_step(theta, point.tau, M_STEPS)
        return point_at(em, theta)


class MajorizationMinimization(Method):
    """The streaming algorithm's majorizer averaged over all rows, with a step of size 1."""

    def advance(self, em: Em, point: Point, slope: Parameters) -> Point | None:
        theta = point.theta.copied()
        statistics_at(em, theta)
        return point_at(em, theta)


class GradientEM(Method):
    """Gradient EM, [MD] Algorithm 2: one gradient step on the complete-data objectives of gate and experts.

    By default each of the K + 1 objectives has its own line search; the likelihood then never falls, since it gains at
    least what they gain. With a given step it equals gradient descent, by Fisher's identity.
    """

    def __init__(self, step: float | None = None) -> None:
        super().__init__(step)
        self._gate = LineSearch()
        self._experts: list[LineSearch] = []

    def advance(self, em: Em, point: Point, slope: Parameters) -> Point | None:
        theta, tau = point.theta, point.tau
        K = len(theta.experts)
        if self._step is not None:
            return point_at(em, moved(em, theta, slope, self._step, self._step))
        self._experts = self._experts or [LineSearch() for _ in range(K)]
        gate_step = 0.0
        if theta.gate.size:
            gate_step = self._gate.step(
                lambda step: gate_objective(em, theta.gate + step * slope.gate, tau), squared_norm(slope.gate)
            )
        steps = [
            search.step(
                lambda step, k=k: expert_objective(em, moved(em, theta, slope, 0.0, step), k, tau),  # type: ignore[misc]
                squared_norm(slope.experts[k], slope.variances[k]),
            )
            for k, search in enumerate(self._experts)
        ]
        if not gate_step and not any(steps):
            return None
        return point_at(em, moved(em, theta, slope, gate_step, np.array(steps)))


class GradientDescent(Method):
    """Gradient descent, [MD] Algorithm 3: a step along the gradient of log s_θ in all parameters together."""

    def __init__(self, step: float | None = None) -> None:
        super().__init__(step)
        self._search = LineSearch()

    def advance(self, em: Em, point: Point, slope: Parameters) -> Point | None:
        if self._step is not None:
            return point_at(em, moved(em, point.theta, slope, self._step, self._step))
        next_point = point

        def objective(step: float) -> float:
            nonlocal next_point
            next_point = point_at(em, moved(em, point.theta, slope, step, step))
            return next_point.objective

        step = self._search.step(objective, squared_norm(*slope), point.objective)
        return next_point if step else None


class LineSearch:
    """Backtracking line search to Armijo's condition, starting at twice the last step."""

    def __init__(self) -> None:
        self._next = 1.0

    def step(self, objective: Callable[[float], float], square: float, now: float | None = None) -> float:
        """Return a step that gains enough, or 0.0 if none does; the last call of `objective` is at the step returned.

        Args:
            objective: function to maximize, of the step along the gradient.
            square: squared norm of the gradient.
            now: the objective at step 0; by default it is evaluated.
        """
        before = objective(0.0) if now is None else now
        for step in self._next * 0.5 ** np.arange(MOST_HALVINGS):
            after = objective(step)
            # NaN is not a gain; nor, at the end of a descent, is a rounding error.
            if after >= before + SUFFICIENT * step * square and after > before:
                self._next = 2.0 * step
                return float(step)
        return 0.0


METHODS: dict[str, type[Method]] = {
    "em": ExpectationMaximization,
    "gradient_em": GradientEM,
    "gradient_descent": GradientDescent,
    "mm": MajorizationMinimization,
}
STEPPED = ("gradient_em", "gradient_descent")
"""Methods that accept a step size."""
