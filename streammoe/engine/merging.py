"""Exact merging: workers that took a step each from the same parameters, as one worker that took it for all.

Sufficient statistics are means over events, so that those of all events are the mean of the workers', each weighed by
its events; parameters follow from them in closed form ([MM] Algorithm 1, with a mini-batch for an event). Where workers
took several steps, each at parameters of its own, the result is that of one round of parameter averaging, weighed by
curvature: not exact, but close as long as the workers are. The prior is part of each worker's mean, and so is counted
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streammoe.engine.state import MMState, state_at
from streammoe.kernels.state import Prior
from streammoe.types import FloatArray


def merged(states: Sequence[MMState], weights: FloatArray, n: int, prior: Prior) -> MMState:
    """Return the state of one worker that has learned what all have.

    Args:
        states: of the same shapes, in the same coordinates and with the same prior; none waits for its group.
        weights: (M,) how many events each has learned since they were the same.
        n: events learned by all together.
        prior: the prior of all.
    """
    parts = weights / weights.sum()
    decays = [float(state.decay[0]) for state in states]
    gate_grams = np.stack([decay * state.gate_gram for decay, state in zip(decays, states, strict=True)])
    gram = np.einsum("m,mij->ij", parts, gate_grams)
    gate = _solved(np.stack([state.gate for state in states]), gate_grams, gram, parts)
    expert_grams = np.stack([decay * state.expert_grams for decay, state in zip(decays, states, strict=True)])
    grams = np.einsum("m,mkij->kij", parts, expert_grams)
    given = np.stack([state.experts for state in states])
    experts = np.stack([_solved(given[:, k], expert_grams[:, k], grams[k], parts) for k in range(grams.shape[0])])
    masses = np.einsum("m,mk->k", parts, np.stack([state.masses for state in states]))
    state = state_at(
        gate=gate,
        experts=experts,
        variances=_variances(states, parts, given, expert_grams, experts, masses),
        masses=masses,
        gate_gram=gram,
        expert_grams=grams,
        prior=prior,
        n=n,
        prior_weight=float(parts @ [float(state.prior_weight[0]) for state in states]),
    )
    averages = {
        name: np.einsum("m,m...->...", parts, np.stack([getattr(each, name) for each in states]))
        for name in ("average_gate", "average_experts", "average_variances")
    }
    iterates = np.array([max(int(each.n_average[0]) for each in states)], dtype=np.int64)
    return state._replace(n_average=iterates, group=states[0].group.copy(), **averages)


def _solved(given: FloatArray, grams: FloatArray, gram: FloatArray, parts: FloatArray) -> FloatArray:
    """Return the coefficients (N, p) of the mean statistics, of workers' coefficients (M, N, p) and Gram matrices."""
    middle = np.einsum("m,mnp->np", parts, given)
    # The deviations alone, so that workers that agree are not changed by rounding. Padding has a Gram matrix of 0.
    pull = np.einsum("m,mnp,mpq->qn", parts, given - middle, grams)
    found: FloatArray = middle + np.linalg.lstsq(gram, pull, rcond=None)[0].T
    return found


def _variances(
    states: Sequence[MMState],
    parts: FloatArray,
    given: FloatArray,
    grams: FloatArray,
    experts: FloatArray,
    masses: FloatArray,
) -> FloatArray:
    """Return the variances of the mean statistics E[τ y²], which are those around each worker's own coefficients."""
    variances = np.stack([state.variances for state in states])
    if not variances.shape[2]:
        return states[0].variances.copy()
    own = np.stack([state.masses for state in states])
    apart = given - experts
    spread = np.einsum("mkip,mkpq,mkjq->mkij", apart, grams, apart)
    if variances.ndim == 3:
        spread = np.einsum("mkii->mki", spread)
    own = own.reshape(*own.shape, *[1] * (variances.ndim - 2))
    total = np.einsum("m,mk...->k...", parts, own * variances + spread)
    found: FloatArray = total / masses.reshape(-1, *[1] * (variances.ndim - 2))
    return found
