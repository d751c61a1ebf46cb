"""The raw iterate of the mixture: noisier than its average, but it follows a stream that drifts."""

from __future__ import annotations

from streammoe.engine.members.contract import Member
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState


class Latest(Member):
    """The parameters after the latest step."""

    name = "latest"

    def parameters(self, mixture_state: MMState) -> Parameters:
        return Parameters(mixture_state.gate, mixture_state.experts, mixture_state.variances)
