"""The averaged parameters of the mixture: the best on a stationary stream, since noise cancels; they never forget."""

from __future__ import annotations

from streammoe.engine.members.contract import Member
from streammoe.engine.mixture import served_parameters
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState


class Average(Member):
    """The estimate of the papers ([MM] §5.2.1)."""

    name = "average"

    def parameters(self, mixture_state: MMState) -> Parameters:
        return served_parameters(mixture_state)
