"""The incremental stochastic MM scheme ([MM] Algorithms 1 and 2): start, step, score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.engine.state import MMState
from streammoe.errors import ConfigError
from streammoe.experts.gaussian import LearningOptions, residual_size, state_at, unit_prior
from streammoe.kernels.gaussian import learn_rows, score_rows
from streammoe.schedules import Schedule
from streammoe.types import FloatArray

BOUNDS = ("tight", "paper")
AVERAGING = {None: 0, "polyak": 1, "decay": 3}


class Scores(NamedTuple):
    """What rows looked like to the model that was served before each of them was learned."""

    losses: FloatArray
    """(n,) −log s(y|x); NaN where there is no target."""
    predictions: FloatArray
    """(n, Q) the regression function."""


def curvature(bound: str, n_experts: int) -> tuple[float, float]:
    """(a, b) with A⁻¹ d = a (d + b Σd), for the bound A on the curvature of log-sum-exp with K−1 free logits.

    ``tight`` is Böhning's bound with the full class count, ``paper`` is [MM] Prop. 5; they agree for two experts.

    >>> curvature("tight", 2), curvature("paper", 4)[1]
    ((2.0, 1.0), 0.6666666666666666)
    """
    free = n_experts - 1
    if bound == "tight" or free < 1:
        return 2.0, 1.0
    if bound == "paper":
        return 4.0 / 3.0, 2.0 / free
    rule = f"bound: {bound!r} is not known; choose one of {', '.join(BOUNDS)}"
    raise ConfigError(rule)


def learning_options(
    *, bound: str, n_experts: int, prior_strength: float, averaging: str | None, schedule: Schedule
) -> LearningOptions:
    """The hyper-parameters of a step in the form that kernels take."""
    if averaging not in AVERAGING:
        rule = f"averaging: {averaging!r} is not known; choose one of 'polyak', 'decay', None"
        raise ConfigError(rule)
    return LearningOptions(
        prior_strength=float(prior_strength),
        curvature=curvature(bound, n_experts),
        averaging=AVERAGING[averaging],
        forgetting=schedule.forgets,
    )


def random_start(
    *,
    n_experts: int,
    p_w: int,
    p_v: int,
    n_outputs: int,
    prior_strength: float,
    seed: int,
    n_features: int | None = None,
) -> MMState:
    """A state without warm-up: the prior's statistics, with random coefficients so that experts can part.

    Args:
        n_features: how many of the p_v expert features are more than padding; all unless told.
    """
    rng = np.random.default_rng(seed)
    prior = unit_prior(prior_strength, p_w, p_v, n_outputs)
    experts = np.zeros((n_experts, n_outputs, p_v))
    if n_experts > 1:
        used = p_v if n_features is None else n_features
        experts[:, :, :used] = rng.normal(size=(n_experts, n_outputs, used))
    return state_at(
        gate=np.zeros((n_experts - 1, p_w)),
        experts=experts,
        variances=np.ones((n_experts, n_outputs)),
        masses=np.full(n_experts, 1.0 / n_experts),
        gate_gram=np.eye(p_w),
        expert_grams=np.stack([np.eye(p_v) / n_experts] * n_experts),
        prior=prior,
        n=0,
        prior_weight=1.0,
    )


def new_residual(state: MMState) -> FloatArray:
    """The running means behind `convergence_residual`, empty."""
    return np.zeros(residual_size(state))


def learn(
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    schedule: Schedule,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
) -> Scores:
    """Predict, score and learn rows in order, changing `state` and `residual` in place.

    Args:
        W: (n, p_w) gate features.
        R: (n, p_v) expert features.
        Y: (n, Q) targets; a row of NaN is predicted and not learned.
    """
    n_learned = int(np.count_nonzero(~np.isnan(Y[:, 0])))
    gammas = schedule.steps(int(state.n[0]) + 1, n_learned)
    losses = np.empty(len(W))
    predictions = np.empty((len(W), Y.shape[1]))
    learn_rows(state, residual, options, gammas, W, R, Y, losses, predictions)
    return Scores(losses, predictions)


def score(state: MMState, W: FloatArray, R: FloatArray, Y: FloatArray | None = None) -> tuple[Scores, FloatArray]:
    """Score rows with the served parameters, changing nothing.

    Returns:
        The scores and, (n, K), the responsibilities, or the gate's shares where there is no target.
    """
    K, Q = state.variances.shape
    targets = np.full((len(W), Q), np.nan) if Y is None else Y
    losses = np.empty(len(W))
    predictions = np.empty((len(W), Q))
    responsibilities = np.empty((len(W), K))
    score_rows(
        state.average_gate,
        state.average_experts,
        state.average_variances,
        W,
        R,
        targets,
        losses,
        predictions,
        responsibilities,
    )
    return Scores(losses, predictions), responsibilities


def convergence_residual(residual: FloatArray) -> float:
    """‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: 0 at a stationary point ([MM] Prop. 1), 1 far from one.

    NaN before the first event.
    """
    mean_norm = float(residual[-2])
    return float(np.sqrt(np.sum(residual[:-2] ** 2)) / mean_norm) if mean_norm > 0.0 else float("nan")
