"""States of any family: what their arrays are, creation, copies, checkpoints, more columns, more classes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

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
    "is_sound",
    "restart_average",
    "restored_state",
    "state_arrays",
    "state_at",
    "unsound_parts",
    "widen",
    "with_class",
]


class Declared(NamedTuple):
    """Declaration of an array of a state: its axes, how it grows, and what it may hold in a checkpoint."""

    axes: str
    """Its sizes: K experts, L = K − 1 rows of a gate, N rows of coefficients, w and v features of gate and experts, V
    variances, 1; ``*`` is what `Family.variances_of` returns."""
    new: float = 0.0
    """Entries of new features and classes, except on the diagonals of matrices and for the coefficients of a class."""
    least: float = -math.inf
    most: float = math.inf
    is_count: bool = False


_COUNT = Declared("1", least=0.0, most=LARGEST_COUNT, is_count=True)
STATE = {
    "n": _COUNT,
    "n_average": _COUNT,
    "decay": Declared("1", least=0.0, most=1.0),
    "prior_weight": Declared("1", least=0.0, most=MAX_PRIOR_STRENGTH),
    "gate": Declared("Lw"),
    "gate_gram": Declared("ww"),
    "gate_inverse": Declared("ww"),
    "experts": Declared("KNv"),
    "variances": Declared("*"),
    "masses": Declared("K", least=0.0),
    "expert_grams": Declared("Kvv"),
    "expert_inverses": Declared("Kvv"),
    "average_gate": Declared("Lw"),
    "average_experts": Declared("KNv"),
    "average_variances": Declared("*"),
    "prior_gate_gram": Declared("w", new=1.0),
    "prior_expert_gram": Declared("v", new=1.0),
    "prior_experts": Declared("Nv"),
    "prior_variances": Declared("V", least=0.0),
}
"""The arrays of a state; what they mean is said in `MMState`."""


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
    saved: Collection[str] = MMState._fields,
) -> MMState:
    """Restore a state from the arrays that `state_arrays` returned, for a model of these sizes, padding included.

    Args:
        saved: names of the arrays that were saved; averages among the others are what they are averages of, and the
            rest is 0.

    Raises:
        CheckpointError: an array is missing, has another shape, or holds invalid values.
    """
    variances = _variances_shape(family, n_experts, n_outputs)
    sizes = {"1": 1, "K": n_experts, "L": n_experts - 1, "N": family.n_rows(n_outputs), "w": p_w, "v": p_v}
    sizes["V"] = family.n_variances(n_outputs)
    found = {}
    for name, declared in STATE.items():
        kind = "int64" if declared.is_count else "float64"
        shape = variances if declared.axes == "*" else tuple(sizes[axis] for axis in declared.axes)
        if name in saved:
            array = array_of(arrays, f"{prefix}.{name}", kind, shape, least=declared.least, most=declared.most)
            found[name] = np.ascontiguousarray(array)
        else:
            found[name] = found.get(name.removeprefix("average_"), np.zeros(shape, dtype=kind))
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


def moved(old: AnyArray, at: IntArray, size: int, axis: int = -1, new: float = 0.0) -> AnyArray:
    """Return an array of which an axis has another size, with the entries before at these indexes and `new` elsewhere.

    Rows may end in padding; only as many entries as have a new index are copied.
    """
    place = [slice(None)] * old.ndim
    wide = np.full((*old.shape[:axis], size, *old.shape[axis:][1:]), new)
    first, place[axis] = place.copy(), at  # type: ignore[call-overload]  # an index of arrays and slices
    first[axis] = slice(len(at))
    wide[tuple(place)] = old[tuple(first)]
    return wide


def _grown(state: MMState, moves: Mapping[str, tuple[IntArray, int]], diagonals: Mapping[str, float]) -> MMState:
    """Return a state of which axes of `STATE` have other sizes; its average does not apply any more.

    Args:
        moves: of each of these axes the new indexes of its entries, and its size.
        diagonals: what new features have on the diagonals of matrices.
    """
    found = state._asdict()
    for name, declared in STATE.items():
        for axis, letter in enumerate(declared.axes):
            if letter in moves:
                found[name] = moved(found[name], *moves[letter], axis, declared.new)
        if name in diagonals:
            at, size = moves[declared.axes[-1]]
            new = np.setdiff1d(np.arange(size), at)
            found[name][..., new, new] = diagonals[name]
    return MMState(**found)


def widen(state: MMState, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int) -> MMState:
    """Return the state with more features: old ones move to `gate_at` and `expert_at`, new ones start at the prior.

    A new feature has been 0 in every event so far. Its coefficients are 0 and it is uncorrelated, and averages restart;
    its own entry in each Gram matrix is the prior's, or that of one event if there is no prior.
    """
    weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + float(state.n[0])))
    gram = weight / float(state.decay[0])
    share = gram / len(state.experts)
    diagonals = {"gate_gram": gram, "gate_inverse": 1.0 / gram, "expert_grams": share, "expert_inverses": 1.0 / share}
    return restart_average(_grown(state, {"w": (gate_at, p_w), "v": (expert_at, p_v)}, diagonals))


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
    K, N, _ = state.experts.shape
    grown = _grown(state, {"N": (np.arange(N), N + 1)}, {})
    fresh = grown.experts[:, N]
    if K > 1:
        fresh[:, :n_features] = gamma * rng.normal(size=(K, n_features))
    fresh[:, 0] += np.log(gamma)
    return restart_average(grown)
