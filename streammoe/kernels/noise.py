"""What the kernels ask of every kind of expert, and what they make of it.

A family's kernel file describes its experts by a `Noise`: what an event costs, and what an expert learns from it. From
that `streammoe.kernels.event` and `scoring` make functions of the family's own, into which numba merges those of the
noise, so that the choice costs nothing at run time.

The state is a named tuple of arrays, updated in place. Gram matrices are kept as ``decay * stored``, where ``decay``
is Π(1−γ) since the last refresh: an event then costs a rank-1 update of each matrix and no rescaling. Everything on
the right-hand side of an update uses the old parameters and the new Gram matrices, exactly as in [MM] Algorithms 2
and 3 (docs/algorithm.md has the derivation).

Shapes: n events, K experts, M outputs or classes, Q columns of targets, p_w and p_v features of gate and experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streammoe.kernels.compile import allocating, inline, jit
from streammoe.kernels.shared import mix, record, refresh_expert, residual_of_gate, residual_share
from streammoe.kernels.soundness import keep_finite
from streammoe.kernels.state import LearningOptions, MMState, SingleExpert, Trace
from streammoe.types import FloatArray

Kernel = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Shape = tuple[float, ...]
"""The numbers that a noise has at run time, such as ν of Student's t."""


class Noise(NamedTuple):
    """What the kernels ask of one kind of expert; each is made by `hook` or `part`.

    `tau`, (K,), is the responsibilities of an event, `trusted`, (K,), is what enters all of an expert but its mass: τ
    itself, or τ u for experts that trust far events less. `means`, (K, M), is what each expert predicts.
    """

    log_constant: Kernel
    """``(shape, M)`` → what `evaluate` wants to be computed once, as a rule a part of −log of the density."""
    scratch_rows: Kernel
    """``(M,)`` → how many rows of scratch `evaluate` wants, each as long as K and M are."""
    evaluate: Kernel
    """``(shape, constant, scratch, gate, experts, variances, w, r, y, shares, means, tau)`` → −log s(y|x), or NaN where
    y is NaN. Writes g_k(x), the means, and τ ([MM] eq. 15), or g where y is NaN."""
    trust: Kernel
    """``(shape, tau, scratch, trusted, M)`` → whether the event is an outlier: too far to count in full, say experts
    that have more than half of the responsibility for it. Writes `trusted`, given the routed responsibilities and what
    `evaluate` left in `scratch`; may set negligible responsibilities to 0."""
    step_experts: Kernel
    """``(state, options, keep, fresh, amount, tau, trusted, means, r, y, gain, push)``: learns one event in O(K p²).
    `keep` is 1 − γ, `fresh` is γ times the event's weight, `amount` the same over the new decay; `gain`, (p_v,), and
    `push`, (max(K, M),), are scratch. All experts at once: a function for each of them costs speed."""
    top_up: Kernel
    """``(state, k, share, old)``: adds `share` of the prior to the variances, given the coefficients before."""
    residual_of_expert: Kernel
    """``(state, options, k, event_weight, tau, trusted, means, r, y, linear, push, residual, at, square, share)`` →
    ``(at, square)``: an expert's blocks of the convergence residual."""


def scoring(noise: Noise, module: str) -> Kernel:
    """Make `score_rows` of a noise, to be kept under this name in `module`."""
    evaluate = noise.evaluate
    log_constant, scratch_rows = noise.log_constant, noise.scratch_rows

    @inline
    def score_each(
        shape: Shape,
        gate: FloatArray,
        experts: FloatArray,
        variances: FloatArray,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        responsibilities: FloatArray,
        trace: Trace,
        shares: FloatArray,
        means: FloatArray,
        scratch: FloatArray,
    ) -> None:
        constant = log_constant(shape, means.shape[1])
        for i in range(W.shape[0]):
            tau = responsibilities[i]
            losses[i] = evaluate(
                shape, constant, scratch, gate, experts, variances, W[i], R[i], Y[i], shares, means, tau
            )
            mix(shares, means, predictions[i])
            record(trace, i, shares, means, variances)

    def score_rows(
        shape: Shape,
        gate: FloatArray,
        experts: FloatArray,
        variances: FloatArray,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        responsibilities: FloatArray,
        trace: Trace,
    ) -> None:
        """Score rows without learning: −log s(y|x), the prediction, and τ (or the gate's g where y is NaN)."""
        K, M = experts.shape[0], predictions.shape[1]
        shares, means, scratch = np.empty(K), np.empty((K, M)), np.empty((scratch_rows(M), max(K, M)))
        score_each(
            shape,
            gate,
            experts,
            variances,
            W,
            R,
            Y,
            losses,
            predictions,
            responsibilities,
            trace,
            shares,
            means,
            scratch,
        )

    return jit(named(score_rows, module))


def named(function: Function, module: str) -> Function:
    """Let a function count as one of `module`, by which it is cached and pickled."""
    function.__module__, function.__qualname__ = module, function.__name__
    return function


@cache
def refresh_of(top_up: Kernel) -> Kernel:
    """Make what rebuilds the inverses of experts, given `Noise.top_up`."""

    @allocating
    def refresh(experts: SingleExpert, prior_weight: float) -> None:
        """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`."""
        K = experts.experts.shape[0]
        share = (prior_weight - experts.prior_weight[0]) / K
        for k in range(K):
            old = experts.experts[k].copy()
            refresh_expert(experts, k, share)
            if share <= 0.0:
                continue
            top_up(experts, k, share, old)
            experts.masses[k] += share
        experts.prior_weight[0] = prior_weight
        experts.decay[0] = 1.0

    return refresh


@cache
def residual_of(residual_of_expert: Kernel) -> Kernel:
    """Make what tracks the convergence residual, given `Noise.residual_of_expert`."""

    @allocating
    def track_residual(
        state: MMState,
        residual: FloatArray,
        options: LearningOptions,
        event_weight: float,
        shares: FloatArray,
        tau: FloatArray,
        trusted: FloatArray,
        means: FloatArray,
        w: FloatArray,
        r: FloatArray,
        y: FloatArray,
    ) -> None:
        """Take S̄ − s of this event into the exponentially weighted mean of it and of its norm (math: the mean field).

        `residual` holds the mean vector, then the mean norm, then the count. Blocks: G, gate linear part, and those of
        each expert.
        """
        K, M = means.shape
        share = residual_share(residual, options)
        linear = np.empty((max(K, M) + 1, max(w.shape[0], r.shape[0])))
        push = np.empty(max(K, M))
        at, square = residual_of_gate(state, residual, options, event_weight, shares, tau, w, push, linear, share)
        for k in range(K):
            at, square = residual_of_expert(
                state, options, k, event_weight, tau, trusted, means, r, y, linear, push, residual, at, square, share
            )
        residual[-2] += share * (math.sqrt(square) - residual[-2])
        keep_finite(residual)

    return track_residual
