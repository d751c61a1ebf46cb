"""Batch fits: rows are gathered, then fitted all at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from streammoe.columns.fitting import fit_bounds
from streammoe.engine import batch, em, mixture, model_selection, search
from streammoe.engine.batch import Descent, Listener
from streammoe.engine.jobs import Job, run_job
from streammoe.engine.recent import Rows
from streammoe.errors import ConfigError
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState, Prior
from streammoe.model.context import Context
from streammoe.model.gathering import gathered
from streammoe.model.learner import Learner
from streammoe.text import counted
from streammoe.types import BoolArray

RESTARTS = 5
"""Starts of each kind of a batch fit."""
LOGGER = logging.getLogger("streammoe.estimators")
Run: TypeAlias = Callable[..., tuple[Descent, MMState]]
"""`streammoe.engine.batch.fit` with its stopping rules bound."""


def fit_gathered(
    learner: Learner,
    *,
    from_model: bool,
    rounds: int,
    tolerance: float,
    on_round: Listener | None,
) -> tuple[Descent, Rows]:
    """Fit the gathered rows; streaming continues from the result.

    Args:
        learner: one that has gathered rows instead of learning them.
        from_model: start at the averaged parameters, with the model's prior and scales; else at the
            starts of a warm-up.
        rounds, tolerance, on_round: as in `streammoe.engine.batch.fit`.

    Returns:
        How it went, and the raw rows (n, F), their targets (n, Q), or (n, 1) indexes of classes, and weights (n,).

    Raises:
        ConfigError: there are no rows.
        UnsoundError: the fit is not finite.
    """
    phase, context = learner.phase, learner.context
    X, Y, weights = rows = gathered(learner)
    if not len(X):
        raise ConfigError("fit: got no row with a target and a weight above zero; give at least one")
    if from_model:
        fit_bounds(context.encoder, X, Y, joining=True)
    else:
        context.fit_scaler(context.encoder, X, Y)
    context.mean_weight[0] = weights.mean()
    buffer = context.buffer(context.encoder, X, Y, weights)
    run = partial(batch.fit, rounds=rounds, tolerance=tolerance, on_round=on_round)
    if from_model and phase.leader is not None:
        descent, state = run(*at_the_model(context, phase.leader, buffer))
    else:
        options = context.options
        most = options.most_experts
        job = _choose(context, buffer, run) if options.is_choosing else _refit(context, buffer, most, run)
        descent, state = run_job(job)
    context.reported = set()
    learner.start(state)
    warn_of_want(context, np.asarray(np.isnan(X).all(axis=0)), len(X), len(state.masses))
    return descent, rows


def warn_of_want(context: Context, is_empty: BoolArray, n: int, n_experts: int) -> None:
    """Log a warning if n rows are too few for the fit to mean much, however good it is, or some fields are empty."""
    encoder = context.encoder
    empty = [repr(encoder.fields[at]) for at in np.flatnonzero(is_empty)]
    if empty:
        LOGGER.warning("no row holds a value of %s, so nothing was learned from it", ", ".join(empty))
    free = model_selection.n_parameters(context.family, context.shape._replace(n_experts=n_experts))
    if n < free:
        LOGGER.warning(
            "fitted a model with %s to %s, which says little about other rows: give more rows, or lower n_experts",
            counted(free, "free parameter"),
            counted(n, "row"),
        )


def _refit(context: Context, buffer: em.Buffer, n_experts: int, run: Run) -> Job[tuple[Descent, MMState]]:
    """Fit rows from new starts with a given number of experts."""
    options = context.options
    rng = np.random.default_rng(options.seed)
    steps = context.learning_options(n_experts)
    problem = yield from search.with_own_prior(context.family, buffer, context.targets.n_outputs, steps)
    searched = search.without_outliers(problem)
    starts, folds = yield from search.best_starts(searched, n_experts, RESTARTS, rng)
    return run(problem, starts, folds=folds if searched is problem else None)


def _choose(context: Context, buffer: em.Buffer, run: Run) -> Job[tuple[Descent, MMState]]:
    """Fit rows with each number of experts, and take the cheapest."""
    descents: dict[int, Descent] = {}

    def fit(n_experts: int) -> Job[MMState]:
        descents[n_experts], state = yield from _refit(context, buffer, n_experts, run)
        return state

    n_outputs = context.targets.n_outputs
    best, _ = yield from model_selection.cheapest(context.family, buffer, fit, context.shape, n_outputs)
    return descents[len(best.masses)], best


def at_the_model(context: Context, leader: mixture.Candidate, buffer: em.Buffer) -> tuple[em.Em, Sequence[Parameters]]:
    """Return EM on rows under the prior of a model, and the one start that it is itself."""
    state, _, options = leader
    prior = Prior(
        max(context.options.prior_strength, search.LEAST_STRENGTH),
        state.prior_gate_gram,
        state.prior_expert_gram,
        state.prior_experts,
        state.prior_variances,
        options.variance_floor,
    )
    return em.Em(context.family, buffer, prior, options), [mixture.served_parameters(state)]
