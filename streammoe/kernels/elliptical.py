"""Linear experts whose noise is spread by itself in each output: a Gaussian's, or one with heavier tails.

The density of an event hangs on its squared distance δ² = Σ_q (y_q − Υ_kq r)² / σ_kq² alone, as exp(−E(δ²)) / Π_q σ_kq
with an E that is concave, so that a tangent in δ² lies above it: the event enters as a Gaussian one whose weight is
u = 2 E′(δ²), and everything else is the step of [MM] Algorithm 2 (docs/algorithm.md, "Heavy tails"). Variances are
squared scales σ².
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import hook, inline, jit
from streammoe.kernels.linear import Spread, linear_noise, shares_and_means
from streammoe.kernels.noise import Kernel, Noise, Shape, named
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray

WIDE = 1e100
"""A product of variances beyond this, or below its inverse, is turned into its logarithm before it overflows."""


NEGLIGIBLE = 1e-18
"""An expert beyond whose tail an event lies learns nothing from a smaller responsibility, which rounding would lose:
normal tails fall to 0 there, and steps of 0 are skipped."""


@inline
def never(shape: Shape, square: float) -> bool:  # noqa: ARG001 - every noise is called with the same arguments
    """Return that no event is an outlier."""
    return False


def elliptical(energy: Kernel, irls_weight: Kernel, log_constant: Kernel, is_outlier: Kernel = never) -> Noise:
    """Describe experts to the loop by their noise; each function is made by `inline`.

    Args:
        energy: ``(shape, square, Q)`` → E(δ²).
        irls_weight: ``(shape, square, Q)`` → the event's weight u = 2 E′(δ²).
        log_constant: ``(shape, Q)`` → what −log of the density holds besides E(δ²) and Σ_q log σ_q.
        is_outlier: ``(shape, square)`` → whether an event counts as an outlier at this distance from its expert.
    """

    @hook
    def evaluate(
        shape: Shape,
        constant: float,
        scratch: FloatArray,
        gate: FloatArray,
        experts: FloatArray,
        variances: FloatArray,
        w: FloatArray,
        r: FloatArray,
        y: FloatArray,
        shares: FloatArray,
        means: FloatArray,
        tau: FloatArray,
    ) -> float:
        K, Q = variances.shape
        log_gate = shares_and_means(gate, experts, w, r, shares, means, tau)
        if math.isnan(y[0]):
            for k in range(K):
                tau[k] = shares[k]
            return np.nan
        largest: float = -np.inf
        for k in range(K):
            square = 0.0
            product = 1.0
            for q in range(Q):
                error = y[q] - means[k, q]
                square += error * error / variances[k, q]
                product *= variances[k, q]
                if Q > 1 and not 1.0 / WIDE < product < WIDE:
                    tau[k] -= 0.5 * math.log(product)
                    product = 1.0
            scratch[1, k] = product
            scratch[0, k] = square
            tau[k] -= energy(shape, square, Q)
            largest = max(largest, tau[k])
        total = 0.0
        for k in range(K):
            # A division by the root of the determinant costs a third of a logarithm above.
            tau[k] = (math.exp(tau[k] - largest) if K > 1 else 1.0) / math.sqrt(scratch[1, k])
            total += tau[k]
        inverse = 1.0 / total
        for k in range(K):
            tau[k] *= inverse
        loss: float = log_gate - largest - math.log(total) + constant
        return loss

    @hook
    def trust(shape: Shape, tau: FloatArray, scratch: FloatArray, trusted: FloatArray, Q: int) -> bool:
        beyond = 0.0
        for k in range(tau.shape[0]):
            square = scratch[0, k]
            if is_outlier(shape, square):
                if tau[k] < NEGLIGIBLE:
                    tau[k] = 0.0
                beyond += tau[k]
            trusted[k] = tau[k] * irls_weight(shape, square, Q)
        return beyond > 0.5

    return linear_noise(log_constant, _scratch_rows, evaluate, trust, SPREAD)


def irls_weight_rows(irls_weight: Kernel, module: str) -> Kernel:
    """Make `trusted_rows` of a noise, to be kept under this name in `module`."""

    def trusted_rows(
        shape: Shape,
        experts: FloatArray,
        squared_scales: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        tau: FloatArray,
        trusted: FloatArray,
    ) -> None:
        """Write τ u of each row and expert to `trusted`, (n, K)."""
        K, Q, p = experts.shape
        for i in range(R.shape[0]):
            for k in range(K):
                square = 0.0
                for q in range(Q):
                    error = Y[i, q]
                    for j in range(p):
                        error -= experts[k, q, j] * R[i, j]
                    square += error * error / squared_scales[k, q]
                trusted[i, k] = tau[i, k] * irls_weight(shape, square, Q)

    return jit(named(trusted_rows, module))


@inline
def _scratch_rows(Q: int) -> int:  # noqa: ARG001 - every noise is called with the same arguments
    return 2


@inline
def _step(
    state: MMState,
    options: LearningOptions,
    k: int,
    q: int,
    old_mass: float,
    new: float,
    left: float,
    mass: float,
    means: FloatArray,
    y: FloatArray,
) -> None:
    error = y[q] - means[k, q]
    variance = (old_mass * state.variances[k, q] + new * error * error * left) / mass
    state.variances[k, q] = max(variance, options.variance_floor * state.prior_variances[q])


@inline
def _top_up(state: MMState, k: int, q: int, share: float, old: FloatArray, mass: float) -> None:
    # (Υ_old − Υ_new) R (Υ_old − Υ_new)ᵀ + share (Υ_0 − Υ_new) Λ (Υ_0 − Υ_new)ᵀ, what both parts leave unexplained,
    # reduces to this by the normal equations of Υ_new.
    spread = 0.0
    for j in range(old.shape[1]):
        spread += (
            share
            * state.prior_expert_gram[j]
            * (state.prior_experts[q, j] - state.experts[k, q, j])
            * (state.prior_experts[q, j] - old[q, j])
        )
    total = state.masses[k] * state.variances[k, q] + share * state.prior_variances[q] + max(spread, 0.0)
    state.variances[k, q] = total / mass


@inline
def _residual(
    state: MMState,
    k: int,
    q: int,
    amount: float,
    y: FloatArray,
    linear: FloatArray,
    residual: FloatArray,
    at: int,
    square: float,
    share: float,
) -> tuple[int, float]:
    # The block is Σ τ y².
    explained = 0.0
    for i in range(state.experts.shape[2]):
        explained += linear[q, i] * state.experts[k, q, i]
    entry = amount * y[q] * y[q] - (state.masses[k] * state.variances[k, q] + explained)
    residual[at] += share * (entry - residual[at])
    return at + 1, square + entry * entry


SPREAD = Spread(_step, _top_up, _residual)
