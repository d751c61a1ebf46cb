"""Operations on states of any family: creation, copies, named arrays, more columns, more classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streammoe.bounds import MAX_PRIOR_STRENGTH
from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.experts import Family
from streammoe.kernels.linalg import inverses_of
from streammoe.kernels.soundness import is_sound
from streammoe.kernels.state import MMState, Prior
from streammoe.types import AnyArray, FloatArray, IntArray

__all__ = [
    "MMState",
    "UnsoundError",
    "copy_array",
    "copy_state",
    "is_finite",
    "is_sound",
    "restart_average",
    "restored_state",
    "state_arrays",
    "state_at",
    "unsound_parts",
    "widen",
    "with_class",
]


def state_at(
    *,
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    masses: FloatArray,
    gate_gram: FloatArray,
    expert_grams: FloatArray,
    prior: Prior,
    n: int,
    prior_weight: float,
    decay: float = 1.0,
) -> MMState:
    """Return a state that continues from exactly these parameters and statistics; the average starts with them.

    Gram matrices are the true ones: E[w wᵀ] and E[τ_k r rᵀ], with the adaptive bound's weights.
    """
    return MMState(
        n=np.array([n], dtype=np.int64),
        n_average=np.array([1 if n else 0], dtype=np.int64),
        decay=np.array([decay]),
        prior_weight=np.array([prior_weight]),
        gate=gate.copy(),
        gate_gram=gate_gram / decay,
        gate_inverse=inverses_of(gate_gram[None])[0] * decay,
        experts=experts.copy(),
        variances=variances.copy(),
        masses=masses.copy(),
        expert_grams=expert_grams / decay,
        expert_inverses=inverses_of(expert_grams) * decay,
        average_gate=gate.copy(),
        average_experts=experts.copy(),
        average_variances=variances.copy(),
        prior_gate_gram=prior.gate_gram.copy(),
        prior_expert_gram=prior.expert_gram.copy(),
        prior_experts=prior.experts.copy(),
        prior_variances=prior.variances.copy(),
    )


class UnsoundError(ArithmeticError):
    """Learning has produced NaN or infinity.

    Attributes:
        parts: names of the affected fields of `MMState`.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        super().__init__(", ".join(parts))
        self.parts = parts


def unsound_parts(state: MMState) -> list[str]:
    """Return the names of the arrays that hold NaN or infinity."""
    return [name for name, array in state._asdict().items() if not np.isfinite(array).all()]


def copy_array(array: FloatArray, spare: FloatArray | None) -> FloatArray:
    """Copy an array, reusing the memory of `spare` if it fits."""
    if spare is None or spare.shape != array.shape:
        return array.copy()
    np.copyto(spare, array)
    return spare


def copy_state(state: MMState, spare: MMState | None = None) -> MMState:
    """Copy a state, reusing the arrays of `spare` where they fit."""
    if spare is None or any(old.shape != new.shape for old, new in zip(spare, state, strict=True)):
        return MMState(**{name: array.copy() for name, array in state._asdict().items()})
    for old, new in zip(spare, state, strict=True):
        np.copyto(old, new)
    return spare


def state_arrays(state: MMState, prefix: str) -> dict[str, AnyArray]:
    """Return the arrays of a state under ``prefix.field``, for checkpoints and digests."""
    return {f"{prefix}.{name}": array for name, array in state._asdict().items()}


def restored_state(
    arrays: Mapping[str, AnyArray],
    prefix: str,
    family: Family,
    *,
    n_experts: int,
    n_outputs: int,
    p_w: int,
    p_v: int,
) -> MMState:
    """Restore a state from the arrays that `state_arrays` returned, for a model of these sizes, padding included.

    Raises:
        CheckpointError: an array is missing, has another shape, or holds invalid values.
    """
    K, N, V = n_experts, family.n_rows(n_outputs), family.n_variances(n_outputs)
    variances = _variances_shape(family, K, n_outputs)
    shapes: dict[str, tuple[int, ...]] = {
        "n": (1,),
        "n_average": (1,),
        "decay": (1,),
        "prior_weight": (1,),
        "gate": (K - 1, p_w),
        "gate_gram": (p_w, p_w),
        "gate_inverse": (p_w, p_w),
        "experts": (K, N, p_v),
        "variances": variances,
        "masses": (K,),
        "expert_grams": (K, p_v, p_v),
        "expert_inverses": (K, p_v, p_v),
        "average_gate": (K - 1, p_w),
        "average_experts": (K, N, p_v),
        "average_variances": variances,
        "prior_gate_gram": (p_w,),
        "prior_expert_gram": (p_v,),
        "prior_experts": (N, p_v),
        "prior_variances": (V,),
    }
    counts = {"n", "n_average"}
    most = {"decay": 1.0, "prior_weight": MAX_PRIOR_STRENGTH}
    least = {"decay", "prior_weight", "masses", "prior_variances", *counts}
    found = {
        name: np.ascontiguousarray(
            array_of(
                arrays,
                f"{prefix}.{name}",
                "int64" if name in counts else "float64",
                shape,
                least=0.0 if name in least else -np.inf,
                most=LARGEST_COUNT if name in counts else most.get(name, np.inf),
            )
        )
        for name, shape in shapes.items()
    }
    state = MMState(**found)
    require(state.decay[0] > 0.0, f"array {prefix}.decay is 0; it is a product of numbers above 0")
    require(state.masses.sum() > 0.0, f"array {prefix}.masses is all 0; some expert answers for each event")
    for name in ("variances", "average_variances"):
        _check_variances(getattr(state, name), f"{prefix}.{name}")
    return state


def checked_variances(
    arrays: Mapping[str, AnyArray], name: str, family: Family, *, n_experts: int, n_outputs: int
) -> FloatArray:
    """Return the variances of so many experts, an array of a checkpoint.

    Raises:
        CheckpointError: it is missing, has another shape, or holds invalid values.
    """
    variances = array_of(arrays, name, "float64", _variances_shape(family, n_experts, n_outputs))
    _check_variances(variances, name)
    return variances


def _variances_shape(family: Family, n_experts: int, n_outputs: int) -> tuple[int, ...]:
    """Return (K, Q) or (K, Q, Q). Determined with a single output, since Q is not validated yet."""
    return (n_experts, *[family.n_variances(n_outputs)] * (family.variances_of(np.ones(1), 1).ndim - 1))


def _check_variances(variances: FloatArray, name: str) -> None:
    own = np.diagonal(variances, axis1=-2, axis2=-1) if variances.ndim == 3 else variances
    require((own > 0.0).all(), f"array {name} holds variances that are not above 0")


def is_finite(state: MMState) -> bool:
    """Return whether every number in the state is finite."""
    return all(bool(np.isfinite(array).all()) for array in state)


def moved(old: FloatArray, at: IntArray, p: int) -> FloatArray:
    """Return an array whose last axis has length p, with the entries before at these indexes and 0 at the others."""
    wide = np.zeros((*old.shape[:-1], p))
    wide[..., at] = old[..., : len(at)]
    return wide


def widen(state: MMState, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int) -> MMState:
    """Return the state with more features: old ones move to `gate_at` and `expert_at`, new ones start at the prior.

    Rows may end in padding; only as many features as have a new index are copied. A new feature has been 0 in every
    event so far. Its coefficients are 0 and it is uncorrelated, and averages restart; its own entry in each Gram matrix
    is the prior's, or that of one event if there is no prior.
    """
    K = len(state.experts)
    decay = float(state.decay[0])
    weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + float(state.n[0])))
    new_gate = np.setdiff1d(np.arange(p_w), gate_at)
    new_expert = np.setdiff1d(np.arange(p_v), expert_at)

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
    widened = state._replace(
        gate=moved(state.gate, gate_at, p_w),
        experts=moved(state.experts, expert_at, p_v),
        prior_gate_gram=ones_at(state.prior_gate_gram, gate_at, p_w),
        prior_expert_gram=ones_at(state.prior_expert_gram, expert_at, p_v),
        prior_experts=moved(state.prior_experts, expert_at, p_v),
        gate_gram=matrix(state.gate_gram, gate_at, new_gate, p_w, gram),
        gate_inverse=matrix(state.gate_inverse, gate_at, new_gate, p_w, 1.0 / gram),
        expert_grams=np.stack([matrix(old, expert_at, new_expert, p_v, share) for old in state.expert_grams]),
        expert_inverses=np.stack(
            [matrix(old, expert_at, new_expert, p_v, 1.0 / share) for old in state.expert_inverses]
        ),
    )
    return restart_average(widened)


def restart_average(state: MMState) -> MMState:
    """Return the state with its average restarted, since it does not apply to new coordinates."""
    return state._replace(
        n_average=np.minimum(state.n, 1),
        average_gate=state.gate.copy(),
        average_experts=state.experts.copy(),
        average_variances=state.variances.copy(),
    )


def with_class(state: MMState, rng: np.random.Generator, n_features: int, gamma: float) -> MMState:
    """Return a classifier's state with one more class, seen in one of the 1/γ events that a step of size γ spans.

    So its odds start at γ to 1 against the first class. The slopes of the first `n_features`, which are not padding,
    are random, and smaller the more has been learned: experts that know nothing yet can differ.
    """
    K, _, p = state.experts.shape
    fresh = np.zeros((K, 1, p))
    if K > 1:
        fresh[:, 0, :n_features] = gamma * rng.normal(size=(K, n_features))
    fresh[:, :, 0] += np.log(gamma)
    grown = state._replace(
        experts=np.concatenate([state.experts, fresh], axis=1),
        prior_experts=np.concatenate([state.prior_experts, np.zeros((1, p))]),
    )
    return restart_average(grown)
