"""Laplace experts: y | x, k ~ exp(−|y − Υ_k φ_v(x)| / b_k) / (2 b_k), but for a rounded tip; one output."""

from __future__ import annotations

from streammoe import laws
from streammoe.experts.elliptical import Elliptical
from streammoe.kernels.elliptical import Tails
from streammoe.kernels.laplace import TIP


class Laplace(Elliptical):
    """Regressions to the median rather than the mean; `variances` are b²."""

    name = "laplace"
    most_outputs = 1

    def __init__(self) -> None:
        super().__init__(Tails(0.0))
        self.law = laws.RoundedLaplace(TIP)


FAMILY = Laplace()
