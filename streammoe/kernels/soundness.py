"""Check that the state after a step is finite, by O(K p) of its numbers."""

from __future__ import annotations

import math

from streammoe.kernels.compile import jit, part
from streammoe.kernels.state import MMState, SingleExpert
from streammoe.types import FloatArray

LARGEST_PREDICTION = 1e100
"""Beyond this the square of an error, added up, would soon be infinite; no target is larger than 1e50."""
LARGEST_LOSS = 1e200
"""Maximum loss, likewise."""


@jit
def is_sound(state: MMState) -> bool:
    """Whether every number of the state is finite.

    Only diagonals of matrices are checked. A Gram matrix, and the inverse of one, holds nothing larger than its
    largest diagonal entry; and a step's weight · v_i · v_j never exceeds the larger of weight · v_i² and
    weight · v_j², so that no other entry can grow large while the diagonal stays small.

    It need not run after every event: what is infinite or NaN in a state stays so, since every step adds to it or
    multiplies it. (A limit below infinity would not do: a state can come back from there, and which event is at fault
    would depend on where a batch was cut.)
    """
    return (
        _is_finite(state.gate)
        and _is_finite(state.experts)
        and _is_finite(state.variances)
        and _is_finite(state.masses)
        and _is_finite(state.decay)
        and _is_finite(state.prior_weight)
        and _is_finite(state.average_gate)
        and _is_finite(state.average_experts)
        and _is_finite(state.average_variances)
        and _has_finite_diagonal(state.gate_gram)
        and _has_finite_diagonal(state.gate_inverse)
        and _have_finite_diagonals(state.expert_grams)
        and _have_finite_diagonals(state.expert_inverses)
    )


@part
def is_expert_sound(state: SingleExpert) -> bool:
    """Whether every number of a single expert is finite."""
    return (
        _is_finite(state.experts)
        and _is_finite(state.variances)
        and _is_finite(state.masses)
        and _is_finite(state.decay)
        and _is_finite(state.prior_weight)
        and _have_finite_diagonals(state.expert_grams)
        and _have_finite_diagonals(state.expert_inverses)
    )


@part
def are_small(z: FloatArray, losses: FloatArray, prediction: FloatArray) -> bool:
    """Whether the loss of a row, (1,), and a prediction of it, (M,), are small enough to be averaged."""
    if not (abs(losses[0]) <= LARGEST_LOSS or math.isnan(z[0])):
        return False
    for q in range(prediction.shape[0]):  # noqa: SIM110 - numba does not support generators
        if not abs(prediction[q]) <= LARGEST_PREDICTION:
            return False
    return True


@part
def keep_finite(residual: FloatArray) -> None:
    """Reset the convergence residual where its mean norm has overflowed: it is only a diagnostic."""
    if not math.isfinite(residual[-2]):
        for at in range(residual.shape[0]):
            residual[at] = 0.0


@part
def _is_finite(values: FloatArray) -> bool:
    for value in values.flat:  # noqa: SIM110 - numba does not support generators
        if not math.isfinite(value):
            return False
    return True


@part
def _has_finite_diagonal(matrix: FloatArray) -> bool:
    for i in range(matrix.shape[0]):  # noqa: SIM110 - same
        if not math.isfinite(matrix[i, i]):
            return False
    return True


@part
def _have_finite_diagonals(matrices: FloatArray) -> bool:
    for k in range(matrices.shape[0]):  # noqa: SIM110 - same
        if not _has_finite_diagonal(matrices[k]):
            return False
    return True
