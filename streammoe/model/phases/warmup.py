"""The phases before there is a mixture: a blank model, then the warm-up, which ends with a batch fit."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streammoe.columns.fitting import fit_bounds
from streammoe.columns.scaling import wider_scaler
from streammoe.engine import mixture, warmup
from streammoe.engine.companions import Companions
from streammoe.engine.members.contract import Predictor
from streammoe.engine.state import UnsoundError, is_finite, widen, with_class
from streammoe.engine.warmup_buffer import CENTERED_AT, WarmUpBuffer, next_rescaling
from streammoe.kernels.state import Trace
from streammoe.model.context import Context, Moves
from streammoe.model.phases.contract import Phase, Served
from streammoe.model.phases.provisional import ProvisionalMixture, in_units, next_fit
from streammoe.model.phases.replay import Replay, cost_after
from streammoe.model.phases.rescaling import Rescaling, encoder_of, relearned_rows
from streammoe.model.phases.search import Found, Search
from streammoe.model.phases.streaming import Streaming
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
TOLERATED = 10.0
"""Nats that the mixture which ends a warm-up may predict worse than what has served: so much may be chance."""


class Empty(Phase):
    """The phase in which nothing has been learned.

    Args:
        is_gathering: whether rows are only gathered for a batch fit.
    """

    def __init__(self, *, is_gathering: bool = False) -> None:
        self._is_gathering = is_gathering

    @property
    def n(self) -> int:
        return 0

    def begin(self, context: Context) -> Phase:
        if not context.targets.n_outputs:
            return self
        if self._is_gathering:
            return Gathering(empty_buffer(context))
        if context.options.warmup.size == 0:
            return Streaming(context.candidate(context.random_start())).begin(context)
        return WarmUp(empty_buffer(context, has_companions=context.options.has_portfolio))

    def next_due(self, context: Context) -> int:
        return sys.maxsize

    def on_due(self, context: Context) -> Phase:
        return self

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        """Do nothing: no label has been encountered, so there is nothing to learn or predict."""
        nothing = np.full(len(X), np.nan)
        return mixture.Scores(nothing, np.empty((len(X), 0)), mixture.blank_trace(len(X) if traced else 0))

    def served(self, context: Context) -> Served:
        return Served([], np.empty(0), context.encoder)

    def widen(self, context: Context, moves: Moves) -> None:
        """Do nothing."""

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        """Do nothing."""

    def arrays(self) -> dict[str, AnyArray]:
        return {}

    def copy(self, spare: Phase | None = None) -> Empty:
        return self

    def is_finite(self) -> bool:
        return True


class WarmUp(Phase):
    """The phase in which rows are buffered; one expert learns them, and in a long warm-up also a provisional mixture.

    Attributes:
        one: the buffer, and the one expert.
        provisional: the provisional mixture, if any.
        search: the fit in progress, if any: of the first mixture or of a provisional one. The events that come in the
            meantime are buffered, and learned by the result.
        replay_began: count of events at which the fit had ended and its result began to learn those events; 0 before.
        replay: the result, which has learned some of them. None if it has to be derived from the fit again, after a
            restart or with new columns or classes.
        n_rejected: number of rows of the last fit that predicted worse than what served; 0 if there is none.
        cost: −log-likelihood of the events since `search` began, each predicted before it was learned.
        rescaling: the one expert on another scale while it learns the buffered rows again, if it does.
    """

    def __init__(
        self,
        one: WarmUpBuffer,
        provisional: ProvisionalMixture | None = None,
        search: Search | None = None,
        n_rejected: int = 0,
        cost: float = 0.0,
        replay_began: int = 0,
        replay: Replay | None = None,
        rescaling: Rescaling | None = None,
    ) -> None:
        self.one = one
        self.provisional = provisional
        self.search = search
        self.n_rejected = n_rejected
        self.cost = cost
        self.replay_began = replay_began
        self.replay = replay
        self.rescaling = rescaling

    @property
    def n(self) -> int:
        return self.one.count

    def next_due(self, context: Context) -> int:
        n, size = self.n, self._size(context)
        if self.search is not None or self.rescaling is not None or n >= size:
            return n + 1
        rescaling = next_rescaling(n, is_metric=context.family.is_metric) if context.options.standardize else size
        return min(rescaling, next_fit(n, size) if context.has_provisional else size)

    def on_due(self, context: Context) -> Phase:
        self.refits = False
        self._begin_due(context, self._size(context))
        search = self.search
        if search is not None:
            if not self.replay_began and search.advance(self.n):
                self.replay_began = self.n
            replay = self._replayed(context, search)
            if replay is not None and replay.n == self.one.count:
                self.search, self.replay, self.replay_began = None, None, 0
                if search.is_brief:
                    self._take_provisional(search, replay)
                elif (phase := self._ended(context, search, replay)) is not None:
                    return phase
        if context.options.standardize:
            self._rescale(context)
        return self

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        encoder = encoder_of(context, self.one)
        _, R = encoder.design(encoder.hold(X)[0])
        one = in_units(self.one.learn(X, R, Y, weights, traced=traced), encoder.scaler)
        believed = weights if self.provisional is None else context.believed(Y, weights)
        scores = self._learn_provisional(context, X, Y, believed, one, traced=traced)
        if self.search is not None:
            self.cost = cost_after(self.cost, scores, weights)
        if context.family.is_metric:
            context.encoder.hold_predictions(scores.predictions, Y)
        return scores

    def _learn_provisional(
        self,
        context: Context,
        X: FloatArray,
        Y: FloatArray,
        weights: FloatArray,
        one: mixture.Scores,
        *,
        traced: bool,
    ) -> mixture.Scores:
        """Let the mixture, if any, learn what the one expert has learned, up to an event that leaves it unsound."""
        if self.provisional is None:
            return one
        try:
            return self.provisional.learn(context, X, Y, weights, one, traced=traced)
        except UnsoundError as error:
            if len(X) < 2:
                LOGGER.info("warm-up: an event makes the mixture infinite (%s); one expert predicts again", error)
                self.provisional = None
                return one
        middle = len(X) // 2
        runs = []
        for half in (slice(0, middle), slice(middle, None)):
            said = mixture.Scores(one.losses[half], one.predictions[half], Trace(*(array[half] for array in one.trace)))
            runs.append(self._learn_provisional(context, X[half], Y[half], weights[half], said, traced=traced))
        return mixture.concatenated(runs)

    def served(self, context: Context) -> Served:
        provisional = self.provisional
        if provisional is None or not provisional.leads:
            return self._served_by_one(context)
        found = Served.alone(provisional.candidate.state, context.encoder.scaled(provisional.scaler))
        return found if provisional.predicts else found._replace(point=self._served_by_one(context))

    def _served_by_one(self, context: Context) -> Served:
        """Return the one expert with its companions."""
        encoder, companions = encoder_of(context, self.one), self.one.companions
        if companions is None:
            return Served.alone(self.one.recursive, encoder)
        first = Predictor(mixture.served_parameters(self.one.recursive))
        return Served([first, *companions.predictors()], companions.weights, encoder)

    def widen(self, context: Context, moves: Moves) -> None:
        encoder = context.encoder
        self._catch_up_again()
        self.one.widen(len(encoder.fields), moves.expert_at, encoder.expert_width, encoder.n_expert_features)
        if self.one.scaler is not None:
            self.one.scaler = wider_scaler(self.one.scaler, len(encoder.feature_names))
        if self.provisional is not None:
            self.provisional.change(
                context,
                lambda state: widen(state, moves.gate_at, encoder.gate_width, moves.expert_at, encoder.expert_width),
            )

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        n_features, gamma = context.encoder.n_expert_features, context.steps(self.n + 1)
        self._catch_up_again()
        self.one.add_class(rng, n_features)
        if self.provisional is not None:
            self.provisional.change(context, lambda state: with_class(state, rng, n_features, gamma))

    def arrays(self) -> dict[str, AnyArray]:
        parts = [part for part in (self.provisional, self.search) if part is not None]
        arrays = self.one.arrays() | {name: array for part in parts for name, array in part.arrays().items()}
        arrays["warmup.rejected"] = np.array([self.n_rejected], dtype=np.int64)
        if self.search is not None:
            arrays["warmup.cost"] = np.array([self.cost])
        if self.replay_began:
            arrays["warmup.replay"] = np.array([self.replay_began], dtype=np.int64)
        if self.rescaling is not None:
            arrays["warmup.rescaling"] = np.array([self.rescaling.n_scaling, self.rescaling.began], dtype=np.int64)
        return arrays

    def copy(self, spare: Phase | None = None) -> WarmUp:
        provisional = self.provisional and self.provisional.copy()
        replay = self.replay and self.replay.copy(spare.replay if isinstance(spare, WarmUp) else None)
        counts = (self.n_rejected, self.cost, self.replay_began)
        rescaling = self.rescaling and self.rescaling.copy()
        return WarmUp(self.one.copy(), provisional, self.search, *counts, replay, rescaling)

    def is_finite(self) -> bool:
        companions = self.one.companions
        return is_finite(self.one.recursive) and (companions is None or companions.is_finite())

    # -- Scales of the one expert --------------------------------------------------------------------------------------

    def _rescale(self, context: Context) -> None:
        """Scale what the one expert sees by the moments of the buffered rows, and let it learn these again."""
        if self.rescaling is None:
            if next_rescaling(self.n - 1, is_metric=context.family.is_metric) != self.n:
                return
            is_centered = self.one.n_scaling <= CENTERED_AT[-1]  # inputs have no scale yet
            if not is_centered and not warmup.is_rescaled(
                self.n, self.one.n_scaling, relearned_rows(context, self.one)
            ):
                return
            self.rescaling = Rescaling(self.n, self.n)
        try:
            if self.rescaling.learn(context, self.one):
                self.rescaling = None
            else:
                self.refits = True
        except UnsoundError as error:
            self.rescaling = None
            LOGGER.info("warm-up: inputs keep their scale, since with another %s would not be finite", error)

    # -- Fits ----------------------------------------------------------------------------------------------------------

    def _begin_due(self, context: Context, size: int) -> None:
        """Begin the fit that is due, if any. The one that ends the warm-up takes the place of a brief one."""
        n = self.n
        if n >= size and (self.search is None or self.search.is_brief):
            options = context.options
            LOGGER.info(
                "warm-up: fitting %s experts with %d features to %d events",
                f"1 to {options.most_experts}" if options.is_choosing else options.most_experts,
                context.encoder.n_expert_features,
                n,
            )
            self._begin(Search.of(context, self.one, is_brief=False))
        elif n < size and self.search is None and context.has_provisional and n == next_fit(n - 1, size):
            self._begin(Search.of(context, self.one, is_brief=True))

    def _begin(self, search: Search) -> None:
        self.search, self.replay, self.replay_began = search, None, 0
        self.cost = 0.0
        self.refits = True

    def _catch_up_again(self) -> None:
        """Let what catches up with the buffer, if anything does, begin again: columns or classes have changed."""
        if self.replay_began:
            self.replay, self.replay_began = None, self.n
        if self.rescaling is not None:
            self.rescaling = self.rescaling.restarted(self.n)

    def _replayed(self, context: Context, search: Search) -> Replay | None:
        """Let the result of the fit, if it has ended, learn the rows that are due now."""
        if not self.replay_began:
            return None
        replay = self.replay
        if replay is None:
            if not search.advance(self.n):  # of a restored model nothing is done; an altered one may claim too much
                self.replay_began = 0
                return None
            try:
                found = search.result(context)
            except UnsoundError as error:
                self.provisional, self.search, self.replay_began = None, None, 0
                LOGGER.info("warm-up: the fit to %d events did not converge to finite parameters (%s)", search.n, error)
                return None
            replay = self.replay = self._new_replay(context, search, found)
        at_each = warmup.replayed_rows(context.shape)
        due = search.n + at_each * (self.n - self.replay_began + 1)
        replay.learn(self.one, min(due, self.one.count), alone=search.is_brief)
        self.refits = self.refits or replay.n < self.one.count
        return replay

    def _new_replay(self, context: Context, search: Search, found: Found) -> Replay:
        """Return the phase of the mixture that was found, in a context with its scales."""
        own = context.copy()
        own.is_replay, own.reservoir = True, None
        encoder, phase = own.encoder, Streaming(own.candidate(found.state))
        encoder.scaler = found.scaler
        X, Y, _ = self.one.rows()
        if search.is_brief:
            own.detector = None
            fit_bounds(encoder, None, Y[: search.n])
            return Replay(own, phase, search.n)
        fit_bounds(encoder, X[: search.n], Y[: search.n])
        if left_out := int(context.left_out(encoder, Y[: search.n]).sum()):
            LOGGER.warning(
                "warm-up: %d of %d events have targets far out, and were left out of the fit", left_out, search.n
            )
        return Replay(own, phase.begin(own), search.n)

    def _size(self, context: Context) -> int:
        """Return the number of events to fit at the end: by default twice as many as in a fit that was rejected."""
        size = context.options.warmup.size
        if size is not None:
            return size
        ample = warmup.ample_size(context.family, context.shape)
        return max(min(2 * self.n_rejected, ample), warmup.default_size(context.family, context.shape))

    def _take_provisional(self, search: Search, replay: Replay) -> None:
        """Let the mixture that was found, and has learned the events since, predict while it does better."""
        scaler = replay.context.encoder.scaler
        self.provisional = ProvisionalMixture.after(self.provisional, replay.phase.leader, scaler)
        LOGGER.info("warm-up: fitted a mixture to %d events; it predicts while it does better", search.n)

    def _ended(self, context: Context, search: Search, replay: Replay) -> Streaming | None:
        """Return the mixture that was found, which has learned the events since by steps.

        A buffer of default size may be small for many parameters. If what was found then predicts those events clearly
        worse than what has served, return None: the warm-up goes on, and what was found is its provisional mixture.
        """
        own, cost = replay.context, replay.cost
        is_ample = search.n >= warmup.ample_size(context.family, context.shape)
        if context.options.warmup.size is None and not is_ample and cost > self.cost + TOLERATED:
            LOGGER.info(
                "warm-up: the mixture fitted to %d events predicts the next %d worse, by %.1f nats; fitting twice as "
                "many",
                search.n,
                self.n - search.n,
                cost - self.cost,
            )
            totals = np.array([cost, self.cost])
            self.provisional = ProvisionalMixture(replay.phase.leader, own.encoder.scaler, totals)
            self.n_rejected = search.n
            return None
        encoder = context.encoder
        X, Y, weights = self.one.rows()
        encoder.scaler, encoder.bounds = own.encoder.scaler, own.encoder.bounds
        encoder.target_bounds, encoder.doubts = own.encoder.target_bounds, own.encoder.doubts
        context.detector, context.recent, context.outliers = own.detector, own.recent, own.outliers
        context.reported = own.reported
        replay.phase.admit_single(context, X, Y, weights)
        replay.phase.admit_curved(context, X, Y, weights)
        replay.phase.begin_growing(context, X, Y, weights, search.n)
        return replay.phase


class Gathering(WarmUp):
    """The phase in which any number of rows are buffered for a batch fit.

    Attributes:
        before: the phase that serves in the meantime, if there is a mixture.
    """

    weighs_events = False

    def __init__(self, one: WarmUpBuffer, before: Streaming | None = None) -> None:
        super().__init__(one)
        self.before = before
        self._follow()

    def _follow(self) -> None:
        if self.before is not None:
            self.leader = self.before.leader

    @property
    def n(self) -> int:
        return self.one.count if self.before is None else self.before.n

    def next_due(self, context: Context) -> int:
        return sys.maxsize

    def served(self, context: Context) -> Served:
        return super().served(context) if self.before is None else self.before.served(context)

    def widen(self, context: Context, moves: Moves) -> None:
        super().widen(context, moves)
        if self.before is not None:
            self.before.widen(context, moves)
            self._follow()

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        super().add_class(context, rng)
        if self.before is not None:
            self.before.add_class(context, rng)
            self._follow()

    def copy(self, spare: Phase | None = None) -> Gathering:
        return Gathering(self.one.copy(), self.before and self.before.copy())


class Rows(NamedTuple):
    """Raw rows in range."""

    X: FloatArray
    """(n, F), NaN where missing."""
    Y: FloatArray
    """(n, Q)"""
    weights: FloatArray
    """(n,)"""


def joined_rows(rows: Sequence[Rows], n_fields: int, n_targets: int) -> Rows:
    """Join rows, of which earlier ones may lack the last fields."""
    if not rows:
        return Rows(np.empty((0, n_fields)), np.empty((0, n_targets)), np.empty(0))
    X = [np.pad(each.X, [(0, 0), (0, n_fields - each.X.shape[1])], constant_values=np.nan) for each in rows]
    return Rows(np.concatenate(X), np.concatenate([each.Y for each in rows]), np.concatenate([r.weights for r in rows]))


def empty_buffer(context: Context, *, has_companions: bool = False) -> WarmUpBuffer:
    """Return the one expert of a new warm-up, with its empty buffer."""
    family, n_outputs, p_v = context.family, context.targets.n_outputs, context.encoder.expert_width
    companions = Companions.of(family, n_outputs, p_v) if has_companions else None
    return WarmUpBuffer(family, n_outputs, p_v, companions=companions)
