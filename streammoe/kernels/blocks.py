"""Learning with one curvature in blocks for gate and experts, where features are many.

Blocks of the Gram matrix G = E[c x xᵀ] take the place of a matrix for each expert and for the gate: with c no less than
any weight with which the event enters one of them, and blocks b of |b| of the p features, blockdiag(G_b / w_b) with
w_b = |b|/p bounds all of them (docs/algorithm.md, "Curvature in blocks"). An event costs O(p |b| + K p).

State and kernels hold plain blocks of G, (1, blocks, size, size), as `MMState.expert_grams`, and their inverses. Rows
and columns of the last block beyond p are 0.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from streammoe.kernels.compile import allocating, hook, inline, jit, part
from streammoe.kernels.linalg import add_outer, add_product, invert_padded, symmetric_product
from streammoe.kernels.loop import UNSOUND, Kernel, Noise, Scratch, Shape, named
from streammoe.kernels.shared import (
    REFRESH_BELOW,
    average_weight,
    blend,
    finish_step,
    mix,
    pull_to_prior,
    record,
    record_variances,
    route,
    step_size,
    topped_up,
    variance_weight,
)
from streammoe.kernels.single_expert import LARGEST_STEP
from streammoe.kernels.softmax import adaptive_weight
from streammoe.kernels.soundness import is_expert_sound_after, is_sound_after
from streammoe.kernels.state import LearningOptions, MMState, SingleExpert, Trace
from streammoe.types import FloatArray

EVENTS_PER_FEATURE = 2.0
FEWEST_EVENTS = 64.0
"""Least numbers of events, for each feature of a block and in all, that longer steps of a single expert span."""


@part
def enter(
    grams: FloatArray, inverses: FloatArray, x: FloatArray, weight: float, gain: FloatArray
) -> tuple[float, float]:
    """Add weight · x xᵀ to the blocks, and write B⁺⁻¹ x with B = blockdiag(G_b / w_b) to `gain`, in stored units.

    Returns:
        1 − weight · reach as a sum of positive terms, and reach = xᵀ B⁺⁻¹ x.
    """
    p, size = x.shape[0], grams.shape[1]
    left = reach = 0.0
    for b in range(grams.shape[0]):
        first = b * size
        stop = min(first + size, p)
        own, move = x[first:stop], gain[first:stop]
        share = (stop - first) / p
        quadratic = symmetric_product(inverses[b], own, move)
        shrink = 1.0 / (1.0 + weight * quadratic)
        left += share * shrink
        if quadratic == 0.0:
            continue  # features of many levels are mostly 0
        reach += share * shrink * quadratic
        add_outer(inverses[b], move, -weight * shrink)
        add_outer(grams[b], own, weight)
        for j in range(stop - first):
            move[j] *= share * shrink
    return left, reach


@allocating
def rebuild(grams: FloatArray, inverses: FloatArray, decay: float, missing: float, prior: FloatArray) -> None:
    """Scale the blocks, add `missing` of the prior's diagonal, (p,), to B, and invert them."""
    p, size = prior.shape[0], grams.shape[1]
    scratch = np.empty((size, size))
    for b in range(grams.shape[0]):
        first = b * size
        stop = min(first + size, p)
        share = (stop - first) / p
        for i in range(stop - first):
            for j in range(stop - first):
                grams[b, i, j] *= decay
            grams[b, i, i] += share * missing * prior[first + i]
        invert_padded(grams[b], inverses[b], scratch)


@part
def pull(inverses: FloatArray, force: FloatArray, coefficients: FloatArray) -> None:
    """Add B⁻¹ · force to coefficients, both (p,); `force` is scratch afterwards."""
    p, size = force.shape[0], inverses.shape[1]
    for b in range(inverses.shape[0]):
        first = b * size
        stop = min(first + size, p)
        share = (stop - first) / p
        for j in range(first, stop):
            force[j] *= share
        add_product(inverses[b], force[first:stop], coefficients[first:stop])


@hook
def step_gate(
    state: MMState,
    options: LearningOptions,
    amount: float,
    shares: FloatArray,
    tau: FloatArray,
    gain: FloatArray,
) -> None:
    """Take the gate's part of the step of one event, given its gain."""
    free = state.gate.shape[0]
    total = 0.0
    for k in range(free):
        total += shares[k] - tau[k]
    for k in range(free):
        step = amount * options.curvature[0] * (shares[k] - tau[k] + options.curvature[1] * total)
        for j in range(gain.shape[0]):
            state.gate[k, j] -= step * gain[j]


@inline
def gate_weight(options: LearningOptions, shares: FloatArray) -> float:
    """Return with what weight an event enters the gate's curvature, by a bound on it; 0 where there is no gate."""
    if shares.shape[0] == 1:
        return 0.0
    return adaptive_weight(shares) if options.adaptive else 1.0


@inline
def step_alone(state: SingleExpert, least_step: float) -> float:
    """Return the step γ of the next event of a single expert: as many times longer as there are blocks.

    In each block a step is as many times shorter than by a whole matrix where features are independent. It spans enough
    events to tell the features of a block apart, unless `least_step` is longer.
    """
    blocks, size = state.expert_grams.shape[1], state.expert_grams.shape[2]
    plain = max(min(1.0 / (state.n[0] + 1.0), LARGEST_STEP), least_step)
    return float(max(plain, min(blocks * plain, 1.0 / max(EVENTS_PER_FEATURE * size, FEWEST_EVENTS))))


def in_blocks(noise: Noise, module: str) -> tuple[Kernel, Kernel]:
    """Make `learn_in_blocks` and `learn_single_in_blocks` of a noise, to be kept under these names in `module`.

    Their arguments are those of `learn_rows` and `learn_single`.
    """
    evaluate, trust = noise.evaluate, noise.trust
    log_constant, scratch_rows = noise.log_constant, noise.scratch_rows
    expert_weight, step_in_blocks = noise.expert_weight, noise.step_in_blocks
    refresh, refresh_single = _refreshes(noise.top_up)

    @inline
    def learn_each(
        shape: Shape,
        state: MMState,
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
    ) -> int:
        shares, tau, trusted, means = scratch.shares, scratch.tau, scratch.trusted, scratch.means
        gain, push = scratch.gain, scratch.push
        constant = log_constant(shape, means.shape[1])
        n = W.shape[0]
        both = losses.shape[0] > n
        learned = outliers = 0
        for i in range(n):
            w, r, y = W[i], R[i], Y[i]
            # The average may predict alone, so that it comes first; the raw iterate's part is what the step needs.
            for at in range(2):
                latest = at == 1
                if latest and math.isnan(y[0]) and not both:
                    break
                loss = evaluate(
                    shape,
                    constant,
                    scratch.noise,
                    state.gate if latest else state.average_gate,
                    state.experts if latest else state.average_experts,
                    state.variances if latest else state.average_variances,
                    w,
                    r,
                    y,
                    shares,
                    means,
                    tau,
                )
                if not latest or both:
                    losses[at * n + i] = loss
                    mix(shares, means, predictions[at * n + i])
                    record(trace, at * n + i, shares, means, state.variances if latest else state.average_variances)
            if math.isnan(y[0]):
                continue
            gamma = step_size(state, options, gammas[learned])
            learned += 1
            route(tau, options.top_k)
            outliers += trust(shape, tau, scratch.noise, trusted, means.shape[1])
            keep = 1.0 - gamma
            decay = state.decay[0] * keep
            fresh = gamma * weights[i]
            amount = fresh / decay
            bend = max(gate_weight(options, shares), expert_weight(options, tau, trusted, means))
            left, reach = enter(state.expert_grams[0], state.expert_inverses[0], r, amount * bend, gain)
            step_gate(state, options, amount, shares, tau, gain)
            step_in_blocks(
                state, options, keep, fresh, amount, amount * bend, tau, trusted, means, y, gain, left, reach, push
            )
            finish_step(state, gamma, decay)
            if decay < REFRESH_BELOW:
                refresh(state, topped_up(state, options, gamma))
            weight = average_weight(state, options, gamma)
            blend(state.average_gate, state.gate, weight)
            blend(state.average_experts, state.experts, weight)
            blend(state.average_variances, state.variances, variance_weight(options, weight, gamma))
        return outliers

    def learn_in_blocks(
        shape: Shape,
        state: MMState,
        residual: FloatArray,  # noqa: ARG001 - as `learn_rows` has it
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
        """Predict, score and learn each row in turn; arguments and result are those of `learn_rows`.

        W and R are equal, and there is no convergence residual.
        """
        K, M, p = state.experts.shape[0], predictions.shape[1], R.shape[1]
        of_experts, none = np.empty((3, K)), np.empty(0)
        scratch = Scratch(
            of_experts[0],
            of_experts[1],
            of_experts[2],
            np.empty((K, M)),
            none,
            np.empty(p),
            np.empty(max(K, M)),
            np.empty((scratch_rows(M), max(K, M))),
            none,
        )
        outliers = learn_each(shape, state, options, gammas, weights, W, R, Y, losses, predictions, trace, scratch)
        if not is_sound_after(state, Y, losses, predictions):
            return UNSOUND
        return outliers

    @inline
    def learn_each_alone(
        shape: Shape,
        state: SingleExpert,
        options: LearningOptions,
        least_step: float,
        weights: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        variances: FloatArray,
        scratch: Scratch,
        gate: FloatArray,
    ) -> None:
        shares, tau, trusted, means = scratch.shares, scratch.tau, scratch.trusted, scratch.means
        gain, push = scratch.gain, scratch.push
        M = predictions.shape[1]
        constant = log_constant(shape, M)
        for i in range(R.shape[0]):
            r, y = R[i], Y[i]
            losses[i] = evaluate(
                shape, constant, scratch.noise, gate, state.experts, state.variances, r, r, y, shares, means, tau
            )
            for q in range(M):
                predictions[i, q] = means[0, q]
            if i < variances.shape[0]:
                record_variances(state.variances, 0, variances[i, 0])
            if math.isnan(y[0]):
                continue
            gamma = step_alone(state, least_step)
            trust(shape, tau, scratch.noise, trusted, M)
            keep = 1.0 - gamma
            decay = state.decay[0] * keep
            fresh = gamma * weights[i]
            amount = fresh / decay
            weight = amount * expert_weight(options, tau, trusted, means)
            left, reach = enter(state.expert_grams[0], state.expert_inverses[0], r, weight, gain)
            step_in_blocks(state, options, keep, fresh, amount, weight, tau, trusted, means, y, gain, left, reach, push)
            finish_step(state, gamma, decay)
            if decay < REFRESH_BELOW:
                refresh_single(state, topped_up(state, options, gamma))

    def learn_single_in_blocks(
        shape: Shape,
        state: SingleExpert,
        options: LearningOptions,
        least_step: float,
        weights: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        losses: FloatArray,
        predictions: FloatArray,
        variances: FloatArray,
    ) -> int:
        """Predict, score and learn each row in turn; arguments and result are those of `learn_single`."""
        none, M = np.empty(0), predictions.shape[1]
        scratch = Scratch(
            np.empty(1),
            np.empty(1),
            np.empty(1),
            np.empty((1, M)),
            none,
            np.empty(R.shape[1]),
            np.empty(M),
            np.empty((scratch_rows(M), M)),
            none,
        )
        gate = np.empty((0, R.shape[1]))
        learn_each_alone(
            shape, state, options, least_step, weights, R, Y, losses, predictions, variances, scratch, gate
        )
        return 0 if is_expert_sound_after(state, Y, losses, predictions) else UNSOUND

    return jit(named(learn_in_blocks, module)), jit(named(learn_single_in_blocks, module))


@cache
def _refreshes(top_up: Kernel) -> tuple[Kernel, Kernel]:
    @allocating
    def refresh_experts(state: MMState | SingleExpert, share: float) -> None:
        """Move the experts by `share` of the prior's statistics each, which B holds already."""
        force = np.empty(state.experts.shape[2])
        if share <= 0.0:
            return
        for k in range(state.experts.shape[0]):
            old = state.experts[k].copy()
            for q in range(state.experts.shape[1]):
                theta = state.experts[k, q]
                pull_to_prior(state, q, share, theta, force)
                pull(state.expert_inverses[0], force, theta)
            top_up(state, k, share, old)
            state.masses[k] += share

    @allocating
    def refresh(state: MMState, prior_weight: float) -> None:
        """Rebuild the inverses, after topping the prior of gate and experts up to `prior_weight`."""
        K, p = state.experts.shape[0], state.experts.shape[2]
        missing = prior_weight - state.prior_weight[0]
        share = missing / K
        bend, force = np.empty(p), np.empty(p)
        for j in range(p):
            bend[j] = state.prior_expert_gram[j] / K
            if K > 1:
                bend[j] = max(bend[j], state.prior_gate_gram[j])
        rebuild(state.expert_grams[0], state.expert_inverses[0], state.decay[0], missing, bend)
        for k in range(state.gate.shape[0]):
            for j in range(p):
                force[j] = -missing * state.prior_gate_gram[j] * state.gate[k, j]
            pull(state.expert_inverses[0], force, state.gate[k])
        refresh_experts(state, share)
        state.prior_weight[0] = prior_weight
        state.decay[0] = 1.0

    @allocating
    def refresh_single(state: SingleExpert, prior_weight: float) -> None:
        """Do the same for a single expert without a gate."""
        missing = prior_weight - state.prior_weight[0]
        rebuild(state.expert_grams[0], state.expert_inverses[0], state.decay[0], missing, state.prior_expert_gram)
        refresh_experts(state, missing)
        state.prior_weight[0] = prior_weight
        state.decay[0] = 1.0

    return refresh, refresh_single
