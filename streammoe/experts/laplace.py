"""Laplace experts: y | x, k ~ exp(−|y − Υ_k φ_v(x)| / b_k) / (2 b_k), except for a rounded tip; one output."""

from __future__ import annotations

from streammoe.experts.elliptical import Elliptical
from streammoe.kernels import laplace
from streammoe.noise import RoundedLaplace


class Laplace(Elliptical):
    """Regressions to the median rather than the mean; `variances` are b²."""

    name = "laplace"
    most_outputs = 1

    def __init__(self) -> None:
        super().__init__(laplace)
        self.noise = RoundedLaplace(laplace.TIP)

    def entropy(self, n_outputs: int) -> float:
        return RoundedLaplace(laplace.TIP).entropy


FAMILY = Laplace()
