"""Laplace experts: y | x, k ~ exp(−|y − Υ_k φ_v(x)| / b_k) / (2 b_k), but for a rounded tip; one output."""

from __future__ import annotations

from streammoe.experts.elliptical import Elliptical
from streammoe.kernels.elliptical import Tails
from streammoe.kernels.laplace import TIP
from streammoe.noise import RoundedLaplace


class Laplace(Elliptical):
    """Regressions to the median rather than the mean; `variances` are b²."""

    name = "laplace"
    most_outputs = 1

    def __init__(self) -> None:
        super().__init__(Tails(0.0))
        self.noise = RoundedLaplace(TIP)

    def entropy(self, n_outputs: int) -> float:
        return RoundedLaplace(TIP).entropy


FAMILY = Laplace()
