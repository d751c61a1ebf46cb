"""What can be done with any state, whatever its family: copies, arrays by name, more columns."""

from __future__ import annotations

import numpy as np

from streammoe.experts.gaussian import GaussianState
from streammoe.types import AnyArray, IntArray

MMState = GaussianState
"""The state of the incremental stochastic MM scheme."""


def copy_state(state: MMState) -> MMState:
    """A state that shares nothing with `state`."""
    return MMState(**{name: array.copy() for name, array in state._asdict().items()})


def state_arrays(state: MMState, prefix: str) -> dict[str, AnyArray]:
    """The arrays of a state under ``prefix.field``, for checkpoints and digests."""
    return {f"{prefix}.{name}": array for name, array in state._asdict().items()}


def state_from_arrays(arrays: dict[str, AnyArray], prefix: str) -> MMState:
    """The inverse of `state_arrays`."""
    return MMState(*(np.ascontiguousarray(arrays[f"{prefix}.{name}"]) for name in MMState._fields))


def is_finite(state: MMState) -> bool:
    """Whether every number in the state is finite."""
    return all(bool(np.isfinite(array).all()) for array in state)


def widen(state: MMState, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int) -> MMState:
    """The state of a model with more features: old ones move to `gate_at` and `expert_at`, new ones have the prior's.

    Rows may end in padding; only as many features as have a place are taken over. A new feature has been 0 in every
    event so far. Its coefficients are 0 and it is uncorrelated; its own entry in each Gram matrix is the prior's, or
    that of one event where there is no prior.
    """
    K = len(state.experts)
    decay = float(state.decay[0])
    weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + float(state.n[0])))
    new_gate = np.setdiff1d(np.arange(p_w), gate_at)
    new_expert = np.setdiff1d(np.arange(p_v), expert_at)

    def vectors(old: AnyArray, at: IntArray, p: int) -> AnyArray:
        wide = np.zeros((*old.shape[:-1], p))
        wide[..., at] = old[..., : len(at)]
        return wide

    def matrix(old: AnyArray, at: IntArray, new: IntArray, p: int, entry: float) -> AnyArray:
        wide = np.zeros((p, p))
        wide[np.ix_(at, at)] = old[: len(at), : len(at)]
        wide[new, new] = entry
        return wide

    def ones_at(old: AnyArray, at: IntArray, p: int) -> AnyArray:
        wide = np.ones(p)
        wide[at] = old[: len(at)]
        return wide

    gram = weight / decay
    share = gram / K
    return state._replace(
        gate=vectors(state.gate, gate_at, p_w),
        gate_gram=matrix(state.gate_gram, gate_at, new_gate, p_w, gram),
        gate_inverse=matrix(state.gate_inverse, gate_at, new_gate, p_w, 1.0 / gram),
        experts=vectors(state.experts, expert_at, p_v),
        expert_grams=np.stack([matrix(old, expert_at, new_expert, p_v, share) for old in state.expert_grams]),
        expert_inverses=np.stack(
            [matrix(old, expert_at, new_expert, p_v, 1.0 / share) for old in state.expert_inverses]
        ),
        average_gate=vectors(state.average_gate, gate_at, p_w),
        average_experts=vectors(state.average_experts, expert_at, p_v),
        prior_gate_gram=ones_at(state.prior_gate_gram, gate_at, p_w),
        prior_expert_gram=ones_at(state.prior_expert_gram, expert_at, p_v),
        prior_experts=vectors(state.prior_experts, expert_at, p_v),
    )
