"""Whether what a step has left behind can be gone on from: a look at O(K p) of its numbers that speaks for all."""

from __future__ import annotations

import math

from streammoe.kernels.compile import jit
from streammoe.kernels.state import MMState
from streammoe.types import FloatArray

LARGEST = 1e300
"""Beyond this, or NaN, a number of a state is as good as infinite: the next sum of two may be."""
LARGEST_PREDICTION = 1e100
"""The same for predictions, whose squares are added up; no target is larger than 1e50."""


@jit
def is_sound(state: MMState) -> bool:
    """Whether no number of the state is NaN or beyond `LARGEST`.

    Of the matrices only diagonals are looked at. A Gram matrix, and the inverse of one, holds nothing larger than its
    largest diagonal entry; and a step's weight · v_i · v_j never exceeds the larger of weight · v_i² and
    weight · v_j², so that no other entry can grow large while the diagonal stays small.
    """
    return (
        _is_bounded(state.gate, LARGEST)
        and _is_bounded(state.experts, LARGEST)
        and _is_bounded(state.variances, LARGEST)
        and _is_bounded(state.masses, LARGEST)
        and _is_bounded(state.decay, LARGEST)
        and _is_bounded(state.prior_weight, LARGEST)
        and _is_bounded(state.average_gate, LARGEST)
        and _is_bounded(state.average_experts, LARGEST)
        and _is_bounded(state.average_variances, LARGEST)
        and _has_bounded_diagonal(state.gate_gram)
        and _has_bounded_diagonal(state.gate_inverse)
        and _have_bounded_diagonals(state.expert_grams)
        and _have_bounded_diagonals(state.expert_inverses)
    )


@jit
def is_sound_after(state: MMState, Y: FloatArray, losses: FloatArray, predictions: FloatArray) -> bool:
    """The same, and whether what was said of each row before it was learned can be averaged.

    Args:
        state: after the rows.
        Y: (n, Q) their targets; a row of NaN has no loss.
        losses: (n,).
        predictions: (n, Q) or (n, M).
    """
    for i in range(losses.shape[0]):
        if not (abs(losses[i]) <= LARGEST or math.isnan(Y[i, 0])):
            return False
    return _is_bounded(predictions, LARGEST_PREDICTION) and is_sound(state)


@jit
def keep_bounded(residual: FloatArray) -> None:
    """Begin the convergence residual anew where its mean norm has overflowed: it is for people to look at."""
    if not residual[-2] <= LARGEST:
        for at in range(residual.shape[0]):
            residual[at] = 0.0


@jit
def _is_bounded(values: FloatArray, largest: float) -> bool:
    bounded = True
    for value in values.flat:
        bounded = bounded and abs(value) <= largest
    return bounded


@jit
def _has_bounded_diagonal(matrix: FloatArray) -> bool:
    bounded = True
    for i in range(matrix.shape[0]):
        bounded &= abs(matrix[i, i]) <= LARGEST
    return bounded


@jit
def _have_bounded_diagonals(matrices: FloatArray) -> bool:
    bounded = True
    for k in range(matrices.shape[0]):
        bounded &= _has_bounded_diagonal(matrices[k])
    return bounded
