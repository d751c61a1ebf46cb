"""Batch fits: rows are gathered through the encoder as in a warm-up, and all of them are fitted at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from streammoe.engine import batch, em, mm, model_selection, warmup
from streammoe.engine.batch import Descent, Listener
from streammoe.engine.state import MMState
from streammoe.errors import ConfigError
from streammoe.experts import Parameters
from streammoe.features import Encoder
from streammoe.kernels.state import Prior
from streammoe.model.context import Context, Moves
from streammoe.model.learner import Learner
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.warmup import Blank, WarmUp
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
Run: TypeAlias = Callable[..., tuple[Descent, MMState]]
"""`streammoe.engine.batch.fit` with the method and its rules."""


class Fitted(NamedTuple):
    """A batch fit, and what the fitted model says of its rows."""

    descent: Descent
    weights: FloatArray
    """(n,) of the rows."""
    targets: FloatArray
    """(n, Q) numbers, or (n, 1) indexes of classes."""
    losses: FloatArray
    """(n,) −log s(y|x) in the target's own units."""
    predictions: FloatArray
    """(n, Q) the regression function, or (n, M) class probabilities."""


class Gathering(Phase):
    """Rows are only buffered, however many there are; what the model was before serves meanwhile.

    Attributes:
        before: the phase before.
        rows: what buffers them.
    """

    def __init__(self, before: Phase, rows: Blank | WarmUp) -> None:
        self.before = before
        self.rows = rows
        self._follow()

    @classmethod
    def after(cls, phase: Phase) -> Gathering:
        """Return the phase that gathers rows after another."""
        return cls(phase, phase if isinstance(phase, WarmUp) else Blank())

    def _follow(self) -> None:
        self.leader = self.before.leader
        self.n_candidates = self.before.n_candidates

    @property
    def _serving(self) -> Phase:
        return self.rows if self.leader is None else self.before

    @property
    def n(self) -> int:
        return self._serving.n

    def begin(self, context: Context) -> Gathering:
        if isinstance(self.rows, Blank) and context.targets.n_outputs:
            self.rows = WarmUp.of(context)
        return self

    def next_due(self, context: Context) -> int:
        return sys.maxsize

    def on_due(self, context: Context) -> Gathering:
        return self

    def learn(self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        return self.rows.learn(context, X, Y, weights, traced=traced)

    def served(self, context: Context) -> tuple[MMState | None, Encoder]:
        return self._serving.served(context)

    def widen(self, context: Context, moves: Moves) -> None:
        self.rows.widen(context, moves)
        if self.leader is not None:
            self.before.widen(context, moves)
            self._follow()

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        self.rows.add_class(context, rng)
        if self.leader is not None:
            self.before.add_class(context, rng)
            self._follow()

    def arrays(self) -> dict[str, AnyArray]:
        return self.before.arrays() | self.rows.arrays()

    @property
    def residual(self) -> FloatArray:
        return self.before.residual

    def copy(self, spare: Phase | None = None) -> Gathering:
        return Gathering(self.before.copy(), self.rows.copy())

    def is_finite(self) -> bool:
        return self._serving.is_finite()


@contextmanager
def gathering(learner: Learner) -> Iterator[None]:
    """Within it, rows that are learned are only buffered, however many there are, for `fit_gathered`."""
    learner.phase = Gathering.after(learner.phase)
    learner.undo.forget()
    try:
        yield
    finally:
        if isinstance(learner.phase, Gathering):
            learner.phase = learner.phase.before
        learner.undo.forget()


def fit_gathered(
    learner: Learner,
    method: str,
    *,
    from_model: bool,
    rounds: int,
    tolerance: float,
    step: float | None,
    on_round: Listener | None,
) -> Fitted:
    """Fit what was gathered, and stream on from there.

    Args:
        learner: within its `gathering`.
        method: see `streammoe.engine.batch.fit`, as for the others.
        from_model: begin at the parameters that serve predictions, with the model's prior and scales; else at the
            starts of a warm-up.

    Raises:
        ConfigError: there are no rows.
        UnsoundError: their fit is not finite.
    """
    phase, context = learner.phase, learner.context
    if not isinstance(phase, Gathering) or not isinstance(phase.rows, WarmUp) or not phase.rows.n:
        raise ConfigError("fit: got no row with a target and a weight above 0; give some to fit")
    X, Y, weights = phase.rows.one.rows()
    if not from_model:
        context.fit_scaler(context.encoder, X, Y)
    buffer = context.buffer(context.encoder, X, Y, weights)
    run = partial(batch.fit, method=method, rounds=rounds, tolerance=tolerance, step=step, on_round=on_round)
    if from_model and phase.leader is not None:
        descent, state = run(*_at_the_model(context, phase.leader, buffer))
    elif context.options.is_choosing:
        descent, state = _choose(context, buffer, run)
    else:
        descent, state = _refit(context, buffer, context.options.most_experts, run)
    context.reported = set()
    learner.start(state)
    _warn_of_want(context, X, len(state.masses))
    scores, _ = learner.score(X, Y)
    return Fitted(descent, weights, Y, scores.losses, scores.predictions)


def _warn_of_want(context: Context, X: FloatArray, n_experts: int) -> None:
    """Log a warning where rows cannot support what was fitted to them, however well it fits."""
    encoder = context.encoder
    empty = [repr(encoder.fields[at]) for at in np.flatnonzero(np.isnan(X).all(axis=0))]
    if empty:
        LOGGER.warning("no row holds a value of %s, so nothing was learned from it", ", ".join(empty))
    sizes = (context.targets.n_outputs, encoder.n_gate_features, encoder.n_expert_features)
    free = model_selection.n_parameters(context.family, n_experts, *sizes)
    if len(X) < free:
        LOGGER.warning(
            "%d rows were fitted by a model of %d free numbers, which says little about others: give more rows, or "
            "set n_experts lower",
            len(X),
            free,
        )


def _refit(context: Context, buffer: em.Buffer, n_experts: int, run: Run) -> tuple[Descent, MMState]:
    options = context.options
    rng = np.random.default_rng(options.seed)
    with np.errstate(all="ignore"):  # the result is judged instead
        steps = context.learning_options(n_experts)
        problem = warmup.with_own_prior(context.family, buffer, context.targets.n_outputs, steps)
        starts = warmup.best_starts(problem, n_experts, options.warmup.restarts, rng)
    return run(problem, starts.thetas, folds=starts.folds)


def _choose(context: Context, buffer: em.Buffer, run: Run) -> tuple[Descent, MMState]:
    """Fit the number of experts that costs least to describe; no events follow on which others could race it."""
    descents: dict[int, Descent] = {}

    def fit(n_experts: int) -> MMState:
        descents[n_experts], state = _refit(context, buffer, n_experts, run)
        return state

    found = model_selection.entrants(
        context.family,
        buffer,
        fit,
        max_experts=context.options.most_experts,
        n_outputs=context.targets.n_outputs,
        p_w=context.encoder.n_gate_features,
        p_v=context.encoder.n_expert_features,
    )
    best = found[0].state
    return descents[len(best.masses)], best


def _at_the_model(
    context: Context, leader: model_selection.Candidate, buffer: em.Buffer
) -> tuple[em.Em, Sequence[Parameters]]:
    state, _, options = leader
    strength = max(context.options.prior_strength, warmup.LEAST_STRENGTH)
    problem = em.Em(context.family, buffer, _prior_of(state, strength, options.variance_floor), options)
    return problem, [Parameters(state.average_gate, state.average_experts, state.average_variances)]


def _prior_of(state: MMState, strength: float, variance_floor: float) -> Prior:
    return Prior(
        strength,
        state.prior_gate_gram,
        state.prior_expert_gram,
        state.prior_experts,
        state.prior_variances,
        variance_floor,
    )
