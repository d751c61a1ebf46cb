"""The raw iterate of the mixture: noisier than its average, but it follows a stream that drifts."""

from __future__ import annotations

from streammoe.engine.members.contract import Member, Rows
from streammoe.engine.mixture import Scores
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState


class Latest(Member):
    """The parameters after the latest step."""

    name = "latest"

    def parameters(self, mixture_state: MMState) -> Parameters:
        return Parameters(mixture_state.gate, mixture_state.experts, mixture_state.variances)

    def learn(self, rows: Rows, scores: Scores, *, n_outputs: int, traced: bool) -> Scores:
        if scores.latest is None:
            raise ValueError("scores: those of the raw iterate are missing; learn with latest=True")
        return scores.latest
