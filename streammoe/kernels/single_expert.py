"""The loop of learning for a single expert without a gate, whose raw iterate predicts.

A lean form of `streammoe.kernels.loop` for a member of a portfolio, which learns every event besides the mixture: one
evaluation for each event, and no responsibilities, averages or convergence residual.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from streammoe.kernels.compile import allocating, inline, jit
from streammoe.kernels.loop import UNSOUND, Kernel, Noise, Scratch, Shape, named
from streammoe.kernels.shared import REFRESH_BELOW, finish_step, record_variances, refresh_expert, topped_up
from streammoe.kernels.soundness import is_expert_sound_after
from streammoe.kernels.state import LearningOptions, SingleExpert
from streammoe.types import FloatArray

LARGEST_STEP = 1.0 - 1e-12
"""A step of 1 would forget everything before it, and the recursions divide by 1 − γ."""


def single_expert(noise: Noise, module: str) -> Kernel:
    """Make `learn_single` of a noise, to be kept under this name in `module`."""
    evaluate, trust = noise.evaluate, noise.trust
    log_constant, scratch_rows = noise.log_constant, noise.scratch_rows
    step_experts = noise.step_experts
    refresh = refresh_of_single(noise.top_up)

    @inline
    def learn_each(
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
            gamma = max(min(1.0 / (state.n[0] + 1.0), LARGEST_STEP), least_step)
            trust(shape, tau, scratch.noise, trusted, M)
            keep = 1.0 - gamma
            decay = state.decay[0] * keep
            fresh = gamma * weights[i]
            step_experts(state, options, keep, fresh, fresh / decay, tau, trusted, means, r, y, gain, push)
            finish_step(state, gamma, decay)
            if decay < REFRESH_BELOW:
                refresh(state, topped_up(state, options, gamma))

    def learn_single(
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
        """Predict, score and learn each row in turn, in place; a row whose y is NaN is predicted only.

        Args:
            shape: the numbers of the noise.
            state: changed in place.
            options: the hyper-parameters that steps need.
            least_step: γ_n is 1/n, but never less.
            weights: (n,) how much each row counts, 1 for a plain one.
            R, Y: (n, p_v), (n, Q) features, targets or class indexes.
            losses, predictions: (n,) and (n, M), written: −log e(y|x), and the mean or the probabilities of classes,
                before the row is learned.
            variances: (n, 1, Q), written: the variances at each row; or empty.

        Returns:
            0; or `UNSOUND` if state, losses or predictions are not sound, and the state is to be thrown away.
        """
        M = predictions.shape[1]
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
        )
        gate = np.empty((0, R.shape[1]))
        learn_each(
            shape,
            state,
            options,
            least_step,
            weights,
            R,
            Y,
            losses,
            predictions,
            variances,
            scratch,
            gate,
        )
        return 0 if is_expert_sound_after(state, Y, losses, predictions) else UNSOUND

    return jit(named(learn_single, module))


@cache
def refresh_of_single(top_up: Kernel) -> Kernel:
    """Make what rebuilds the inverse of a single expert, given `Noise.top_up`."""

    @allocating
    def refresh(state: SingleExpert, prior_weight: float) -> None:
        """Rebuild the inverse from its Gram matrix, after topping the prior up to `prior_weight`."""
        missing = prior_weight - state.prior_weight[0]
        old = state.experts[0].copy()
        refresh_expert(state, 0, missing)
        if missing > 0.0:
            top_up(state, 0, missing, old)
            state.masses[0] += missing
        state.prior_weight[0] = prior_weight
        state.decay[0] = 1.0

    return refresh
