"""The hot loop of learning and scoring, for every kind of expert.

A family's kernel file describes its experts by a `Noise`: what an event costs, and what an expert learns from it. From
that `loop` makes functions of the family's own, into which numba merges those of the noise, so that the choice costs
nothing at run time.

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
from streammoe.kernels.shared import (
    REFRESH_BELOW,
    RESIDUAL_EVERY,
    average_weight,
    blend,
    finish_step,
    mix,
    record,
    refresh_expert,
    refresh_gate,
    residual_of_gate,
    residual_share,
    route,
    step_gate,
    step_size,
    topped_up,
    variance_weight,
)
from streammoe.kernels.soundness import is_sound_after, keep_finite
from streammoe.kernels.state import LearningOptions, MMState, Trace
from streammoe.types import FloatArray

Kernel = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Shape = tuple[float, ...]
"""The numbers that a noise has at run time, such as ν of Student's t."""
UNSOUND = -1
"""What `learn_rows` returns where a state must be thrown away."""


class Noise(NamedTuple):
    """What the loop asks of one kind of expert; each is made by `hook` or `part`.

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


class Scratch(NamedTuple):
    """What the loop writes for each event, allocated once."""

    shares: FloatArray
    """(K,)"""
    tau: FloatArray
    """(K,)"""
    trusted: FloatArray
    """(K,)"""
    means: FloatArray
    """(K, M)"""
    gate_gain: FloatArray
    """(p_w,)"""
    gain: FloatArray
    """(p_v,)"""
    push: FloatArray
    """(max(K, M),)"""
    noise: FloatArray
    """(rows, max(K, M)) what the noise asks for."""


def loop(noise: Noise, module: str) -> tuple[Kernel, ...]:
    """Make `learn_rows` and `score_rows` of a noise, to be kept under these names in `module`."""
    evaluate, trust = noise.evaluate, noise.trust
    log_constant, scratch_rows = noise.log_constant, noise.scratch_rows
    refresh = refresh_of(noise.top_up)
    track_residual = residual_of(noise.residual_of_expert)
    step_experts = noise.step_experts

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

    @inline
    def learn_each(
        shape: Shape,
        state: MMState,
        residual: FloatArray,
        options: LearningOptions,
        gammas: FloatArray,
        weights: FloatArray,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        trace: Trace,
        scratch: Scratch,
    ) -> None:
        shares, tau, trusted, means = scratch.shares, scratch.tau, scratch.trusted, scratch.means
        gate_gain, gain, push = scratch.gate_gain, scratch.gain, scratch.push
        M = means.shape[1]
        constant = log_constant(shape, M)
        n = W.shape[0]
        learned = 0
        for i in range(n):
            w, r, y = W[i], R[i], Y[i]
            losses[i] = evaluate(
                shape,
                constant,
                scratch.noise,
                state.average_gate,
                state.average_experts,
                state.average_variances,
                w,
                r,
                y,
                shares,
                means,
                tau,
            )
            mix(shares, means, predictions[i])
            record(trace, i, shares, means, state.average_variances)
            if math.isnan(y[0]):
                continue
            gamma = step_size(state, options, gammas[learned])
            learned += 1
            evaluate(
                shape,
                constant,
                scratch.noise,
                state.gate,
                state.experts,
                state.variances,
                w,
                r,
                y,
                shares,
                means,
                tau,
            )
            route(tau, options.top_k)
            trust(shape, tau, scratch.noise, trusted, M)
            if state.n[0] % RESIDUAL_EVERY == 0:
                track_residual(state, residual, options, weights[i], shares, tau, trusted, means, w, r, y)
            keep = 1.0 - gamma
            decay = state.decay[0] * keep
            fresh = gamma * weights[i]
            amount = fresh / decay
            step_gate(state, options, amount, shares, tau, push, w, gate_gain)
            step_experts(state, options, keep, fresh, amount, tau, trusted, means, r, y, gain, push)
            finish_step(state, gamma, decay)
            if decay < REFRESH_BELOW:
                refresh(state, topped_up(state, options, gamma))
            weight = average_weight(state, options, gamma)
            blend(state.average_gate, state.gate, weight)
            blend(state.average_experts, state.experts, weight)
            blend(state.average_variances, state.variances, variance_weight(options, weight, gamma))

    def learn_rows(
        shape: Shape,
        state: MMState,
        residual: FloatArray,
        options: LearningOptions,
        gammas: FloatArray,
        weights: FloatArray,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        trace: Trace,
    ) -> int:
        """Predict, score and learn each row in turn, in place; a row whose y is NaN is predicted only.

        Args:
            shape: the numbers of the noise.
            state: changed in place.
            residual: (size + 2,) running means of the convergence residual, changed in place.
            options: the hyper-parameters that steps need.
            gammas: step sizes of the rows that have a target, in order; see `LearningOptions.span`.
            weights: (n,) how much each row counts, 1 for a plain one.
            W, R, Y: (n, p_w), (n, p_v), (n, Q) gate features, expert features, targets or class indexes.
            losses, predictions: (n,) and (n, M), written: −log s(y|x), and the mean or the probabilities of
                classes, before the row is learned, by the averaged parameters.
            trace: written where its arrays are not empty; as many rows.

        Returns:
            0; or `UNSOUND` if state, losses or predictions are not sound, and the state is to be thrown away.
        """
        K, M, p_w, p_v = state.experts.shape[0], predictions.shape[1], W.shape[1], R.shape[1]
        # As few arrays as possible: making them takes as long as the rest where a call has a single row.
        of_experts, gains = np.empty((3, K)), np.empty(p_w + p_v)
        scratch = Scratch(
            of_experts[0],
            of_experts[1],
            of_experts[2],
            np.empty((K, M)),
            gains[:p_w],
            gains[p_w:],
            np.empty(max(K, M)),
            np.empty((scratch_rows(M), max(K, M))),
        )
        learn_each(
            shape,
            state,
            residual,
            options,
            gammas,
            weights,
            W,
            R,
            Y,
            losses,
            predictions,
            trace,
            scratch,
        )
        return 0 if is_sound_after(state, Y, losses, predictions) else UNSOUND

    return tuple(jit(named(each, module)) for each in (learn_rows, score_rows))


def named(function: Function, module: str) -> Function:
    """Let a function count as one of `module`, by which it is cached and pickled."""
    function.__module__, function.__qualname__ = module, function.__name__
    return function


@cache
def refresh_of(top_up: Kernel) -> Kernel:
    """Make what rebuilds inverses, given `Noise.top_up`."""

    @allocating
    def refresh(state: MMState, prior_weight: float) -> None:
        """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`."""
        K = state.experts.shape[0]
        missing = prior_weight - state.prior_weight[0]
        share = missing / K
        refresh_gate(state, missing)
        for k in range(K):
            old = state.experts[k].copy()
            refresh_expert(state, k, share)
            if share <= 0.0:
                continue
            top_up(state, k, share, old)
            state.masses[k] += share
        state.prior_weight[0] = prior_weight
        state.decay[0] = 1.0

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
