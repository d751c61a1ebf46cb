"""The members that predict, with what is known of them: shares, statistics, and the inputs behind their features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.engine.members import MOST_SERIES
from streammoe.engine.portfolio import OF_MIXTURE, Predictor, shares_of_members
from streammoe.engine.products import linear
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.model.learner import Learner
from streammoe.model.streaming import Streaming
from streammoe.types import FloatArray, IntArray

MOST_ROWS = 4096
"""Number of rows that show enough of what is said of all."""


class Member(NamedTuple):
    """A member that predicts, and what it has learned from."""

    name: str
    predictor: Predictor
    share: float
    """Its share in what is predicted."""
    state: MMState
    """Its statistics."""
    n_events: float
    """How many independent events they are worth; NaN if that is not known."""

    @property
    def terms(self) -> IntArray:
        """(P, 2) factors of each feature of its experts, among the `Inputs` of its features."""
        terms = self.predictor.terms
        return linear(np.arange(self.predictor.theta.experts.shape[2])) if terms is None else terms

    @property
    def feature_means(self) -> FloatArray:
        """(p,) running mean of each feature of its experts over all events, each as it counts in its statistics."""
        state = self.state
        means: FloatArray = state.decay[0] * state.expert_grams[:, 0].sum(axis=0)
        weight = means[0] - state.prior_weight[0] * state.prior_expert_gram[0]
        found = means / weight if weight > 0.0 else np.zeros_like(means)
        found[0] = 1.0
        return found


def members_of(learner: Learner, *, is_next: bool = True) -> list[Member]:
    """Return all members that predict; none before anything was learned.

    Args:
        learner: the learner.
        is_next: whether it is the next event that they predict, so that the last targets are known.
    """
    phase, context = learner.phase, learner.context
    if not isinstance(phase, Streaming):
        return []
    served, portfolio, leader = phase.served(context), phase.portfolio, phase.leader
    shares = shares_of_members(*served, is_next=is_next).tolist()
    counts = _events_of_mixture(learner, phase)
    found = [
        Member(name, predictor, share, leader.state, count)
        for name, predictor, share, count in zip(OF_MIXTURE, served.members, shares, counts, strict=False)
    ]
    if portfolio is not None:
        for single, predictor, share in zip(
            portfolio.singles, served.members[len(found) :], shares[len(found) :], strict=True
        ):
            n, (least, alpha) = int(single.state.n[0]), single.steps
            count = _effective(n, max(least, max(n, 1) ** -alpha))
            found.append(Member(single.name, predictor, share, single.state, count))
    return found


def main_mixture(members: Sequence[Member]) -> Member | None:
    """Return that member with the parameters of the mixture whose share is the largest; None if there are none."""
    return max((member for member in members if member.name in OF_MIXTURE), key=lambda each: each.share, default=None)


def kept_rows(learner: Learner, most: int = MOST_ROWS) -> tuple[FloatArray, FloatArray]:
    """Return raw rows (m, F) and targets (m, Q) of learned events that the model keeps, so many at most.

    They are from its sample of all events, the option `reservoir`, or else the latest ones; none if it keeps none.
    """
    X, Y, _ = learner.reservoir_rows()
    if not len(X):
        X, Y, _ = learner.context.recent.rows(len(learner.encoder.fields))
    at = np.linspace(0, len(X) - 1, min(len(X), most)).astype(np.int64)
    return X[at], Y[at]


def _effective(n: int, weight: float) -> float:
    """Return how many events a running mean of n is worth whose latest has this weight, if weights change slowly.

    That is 1/Σ w², whose reciprocal v follows v ← (1 − γ)² v + γ². With γ = c/n it tends to c²/((2c − 1) n).
    """
    if n == 0:
        return math.nan
    c = max(n * weight, 1.0)
    return (2.0 * c - 1.0) * n / (c * c)


def _events_of_mixture(learner: Learner, phase: Streaming) -> tuple[float, float, float]:
    """Return the effective numbers of events behind the average, the last fit and the latest parameters."""
    context, n, state = learner.context, phase.n, phase.leader.state
    if not phase.is_fitted:
        latest = _effective(n, 1.0 / max(n, 1))
        return latest, math.nan, latest
    since = max(n - context.steps.origin, 1)
    latest = _effective(since, learner.step_size)
    options: LearningOptions = phase.leader.options
    average, c = latest, options.averaging
    if c and int(state.n_average[0]):
        m = int(state.n_average[0])
        least = max(options.least_weight, learner.step_size if options.forgetting else 0.0)
        average = max(latest, _effective(m, max(c / (m + c - 1.0), least)))
    drift = context.detector and context.detector.last
    is_of_fit = phase.fitted_at > 0 and not (drift and drift.n > phase.fitted_at)
    return average, float(min(phase.fitted_at, context.capacity)) if is_of_fit else math.nan, latest


class Inputs(NamedTuple):
    """What the features of a member are made of, of which its `terms` are products."""

    names: list[Any]
    """The inputs, in the order of columns."""
    at: IntArray
    """(p,) which of them each feature is about; −1 for the intercept and for padding."""
    columns: list[Any]
    """Names of the columns of features."""
    powers: list[tuple[int, int]]
    """(column, power) of each feature but padding; power 0 is the intercept."""
    flags: frozenset[int]
    """The columns that say whether a category has a level, by 0 or 1."""
    center: FloatArray
    """(columns,) and `scale`: features are powers of (value − center)/scale."""
    scale: FloatArray


def inputs_of(learner: Learner, n_lags: int) -> Inputs:
    """Return what the features of a member are made of that sees so many of the last targets."""
    context, encoder, targets = learner.context, learner.encoder, learner.targets
    columns, scaler = encoder.columns, encoder.scaler
    is_metric, lags = context.family.is_metric, range(1, n_lags + 1)
    known = targets.lagged_names[:MOST_SERIES] if n_lags else []
    series = [f"{name!s}:lag{i}" if is_metric else f"y:lag{i}" for name in known for i in lags]
    names = series if is_metric else [f"y:lag{i}={label!s}" for label in known for i in lags]
    owners = [*columns.inputs, *series]
    # Of classes neither their indexes nor what says which one it was is scaled.
    of_targets = np.repeat(np.arange(len(known)) if is_metric else np.zeros(len(known), dtype=np.int64), n_lags)
    C, numeric = len(columns.feature_names), encoder.plan.numeric[:, 1].tolist()
    powers = [(0, 0), *((C + s, 1) for s in range(len(series))), *((c, 1) for c in range(C))]
    powers += [(c, power) for power in range(2, encoder.degree + 1) for c in numeric]
    inputs = list(dict.fromkeys(owners))
    at = np.full(encoder.expert_width + len(series), -1)
    at[1 : len(powers)] = [inputs.index(owners[column]) for column, _ in powers[1:]]
    return Inputs(
        inputs,
        at,
        [*columns.feature_names, *names],
        powers,
        frozenset(encoder.plan.places.ravel().tolist()) - {-1},
        np.concatenate([scaler.center, scaler.target_center[of_targets]]),
        np.concatenate([scaler.scale, scaler.target_scale[of_targets]]),
    )
