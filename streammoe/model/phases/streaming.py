"""The phase after the warm-up: a mixture that learns by steps, and the portfolio in which it predicts.

Experts are examined at fixed event counts.
"""

from __future__ import annotations

import logging
import sys
from typing import Self

import numpy as np

from streammoe.engine import mixture, refit
from streammoe.engine.diagnostics import diagnose
from streammoe.engine.drift import Drift
from streammoe.engine.em import Buffer
from streammoe.engine.growing import FACTOR, GrowingRows, GrownFit
from streammoe.engine.members.floor import Floor
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.mixture import Candidate
from streammoe.engine.portfolio import SINGLE, Portfolio
from streammoe.engine.recent import CAPACITY
from streammoe.engine.state import (
    UnsoundError,
    copy_array,
    copy_state,
    is_finite,
    restart_average,
    state_arrays,
    unsound_parts,
    widen,
    with_class,
)
from streammoe.experts import Parameters
from streammoe.kernels.event import DRIFT, FLAGS, UNSOUND
from streammoe.model.bound import Bound
from streammoe.model.context import Context, Moves
from streammoe.model.phases.contract import Change, Phase, Served
from streammoe.model.phases.provisional import in_units
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
FIRST_LOOK = 2048
"""Event count at which experts are first examined; the next count is twice the last up to `LOOK_EVERY`, and then each
multiple of that."""
LOOK_EVERY = 65_536
REFITS_AFTER = (64, 192, 448)
"""Events after a drift at which the mixture is fitted again, to more events than when the drift was found."""
KEEP_EVERY = 4096
"""Number of events after which parameters are kept, in case that a drift is found later."""
JUDGE_EVERY = 128
"""Number of events after which the median loss of as many is compared with that of the mean of as many before."""
NEEDLESS = 1.0
"""Nats by which the former is so much more that what was learned is of no use any more."""
REST = 4
"""How many times as many events pass after a drift until they are compared again."""


def next_look(n: int) -> int:
    """Return the next count after n at which experts are examined.

    >>> [next_look(n) for n in (0, 2047, 2048, 50_000, 65_536, 131_072)]
    [2048, 2048, 4096, 65536, 131072, 196608]
    """
    if n >= LOOK_EVERY:
        return (n // LOOK_EVERY + 1) * LOOK_EVERY
    return max(FIRST_LOOK, 1 << n.bit_length())


def events_to_refit(context: Context, n: int) -> int:
    """Return the number of events from n until the next refit after the last drift; far beyond any stream if none."""
    drift = context.detector and context.detector.last
    if not drift or context.recent is None:
        return sys.maxsize
    return next((drift.n + after - n for after in REFITS_AFTER if drift.n + after > n), sys.maxsize)


def is_refitted(context: Context) -> bool:
    """Return whether a mixture is fitted again after a drift, which some models are too wide for."""
    return context.recent is not None and refit.rounds(context.family, context.shape, CAPACITY) > 0


class Streaming(Noticed, Phase):
    """The phase of a mixture that learns by steps.

    Attributes:
        leader: the mixture.
        portfolio: the members that predict together; None if the leader's average predicts alone.
    """

    leader: Candidate
    JUDGE_EVERY = JUDGE_EVERY

    def __init__(self, candidate: Candidate, portfolio: Portfolio | None = None) -> None:
        self.leader = candidate
        self.portfolio = portfolio
        self._bound: Bound | None = None

    def begin(self, context: Context) -> Self:
        """Return the phase itself, with a portfolio if there is to be one."""
        if self.portfolio is None:
            self.portfolio = context.portfolio(self.leader.state)
        return self

    def admit_single(self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add further single experts, if there are to be any; of some these are the first raw rows that they learn."""
        if self.portfolio is None:
            return
        for kind in SINGLE:
            member = kind.of(context.family, context.options.bound, self.leader.state)
            if isinstance(member, Floor):
                self._admit(context, member, X, Y, weights)
            else:
                self.portfolio.admit(member, trusted=True)

    def admit_curved(self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add the member of squares and products, if there is to be one, which learns the last of these raw rows."""
        member = context.curved(self.leader.state)
        if self.portfolio is None:
            return
        if member is None:
            if context.options.curved == "on":
                LOGGER.warning(
                    "curved: no input has a known range and scale yet, or there are too many features (%d); the member "
                    "joins as soon as it can",
                    context.encoder.n_expert_features,
                )
            return
        last = slice(-member.n_affordable, None)
        self._admit(context, member, X[last], Y[last], weights[last])

    def _admit(self, context: Context, member: OneExpert, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add a member that has learned nothing but these raw rows."""
        _, R, targets, counts = context.buffer(context.encoder, X, Y, weights)
        try:
            member.learn(R, targets, counts, n_outputs=context.targets.n_outputs)
        except UnsoundError as error:
            LOGGER.info("there is no member %s, since its %s would not be finite", member.name, error)
            return
        if self.portfolio is not None:
            self.portfolio.admit(member, trusted=True)

    def begin_growing(self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, base: int) -> None:
        """Keep these raw rows, of which the first `base` were fitted, for further fits, if there are to be any."""
        if self.portfolio is None or not context.options.has_refits:
            return
        rows = GrowingRows(base)
        rows.add(*context.fitted_rows(context.encoder, X, Y, weights))
        if rows.affords(context.family, context.shape, FACTOR * base):
            self.portfolio.growing = rows

    def next_due(self, context: Context) -> int:
        due = min(next_look(self.n), self._next_review(context, self.n))
        if context.recent is not None and self._may_refit:
            due = min(due, (self.n // KEEP_EVERY + 1) * KEEP_EVERY)
        rows = None if self.portfolio is None else self.portfolio.growing
        return due if rows is None else min(due, rows.next_due(self.n))

    def _next_review(self, context: Context, n: int) -> int:
        portfolio = self.portfolio
        if portfolio is None:
            return sys.maxsize
        return portfolio.next_review(n, awaits_another=context.awaits_curved(portfolio))

    def on_due(self, context: Context) -> Streaming:
        n, portfolio = self.n, self.portfolio
        self.refits = False
        if portfolio is not None and self._next_review(context, n - 1) == n:
            member = context.curved(self.leader.state) if context.awaits_curved(portfolio) else None
            portfolio.review(n, context.curved_terms)
            if member is not None:
                LOGGER.info("the member %s joins, on trial (event %d)", member.name, n)
                portfolio.admit(member, trusted=False)
        if portfolio is not None and portfolio.growing is not None and portfolio.growing.next_due(n - 1) == n:
            self._grow(context, portfolio, portfolio.growing)
        if n % KEEP_EVERY == 0 and self._may_refit and context.recent is not None and is_refitted(context):
            context.recent.keep(n, mixture.served_parameters(self.leader.state))
        if next_look(n - 1) == n:
            self._report_idle(context)
        return self

    def judges(self, context: Context) -> bool:
        """Return whether the model is compared with the mean of the latest targets, whose unit it has to know."""
        is_known = context.family.is_metric and context.options.standardize
        return self.portfolio is not None and is_known and is_refitted(context)

    def _judge(self, context: Context) -> None:
        """Begin again as after a drift if the mean of the latest targets would have predicted much better.

        So it is after targets have changed their unit: losses may even fall, so that the detector finds nothing, while
        priors, which do not fade, keep all members where they were.
        """
        detector, recent, portfolio, n = context.detector, context.recent, self.portfolio, self.n
        if detector is None or recent is None or portfolio is None:
            return
        found = recent.needless_loss(JUDGE_EVERY, context.encoder.scaler.target_scale)
        last = detector.last
        if found is None or found[0] < found[1] + NEEDLESS or (last is not None and n < last.n + REST * JUDGE_EVERY):
            return
        loss, constant = found
        LOGGER.info(
            "the mean of %d earlier targets predicts better, by %.1f nats (event %d)", JUDGE_EVERY, loss - constant, n
        )
        detector.declare(Drift(n, constant, loss))
        recent.keep_last(2 * JUDGE_EVERY)
        if self._begin_again(context):
            portfolio.renew(context.family, context.options.bound, self.leader.state)

    def _grow(self, context: Context, portfolio: Portfolio, rows: GrowingRows) -> None:
        """Begin the fit that is due, or run steps of the one in progress; when it has ended, its result predicts."""
        n, family, shape = self.n, context.family, context.shape
        if rows.start is None:
            if not self._may_refit:
                rows.skip()
            else:
                best = portfolio.best_mixture
                rows.begin(n, mixture.served_parameters(self.leader.state) if best is None else best.theta)
            rows.is_last = not rows.affords(family, shape, FACTOR * rows.fitted)
        elif (fit := self._grown(context, rows, rows.start)).advance(n - rows.began):
            try:
                portfolio.take_refitted(family, fit.result())
                LOGGER.info("fitted again to %d events (event %d)", rows.fitted, n)
            except UnsoundError as error:
                LOGGER.info("the fit to %d events did not converge to finite parameters (%s)", rows.fitted, error)
            rows.end()
        if rows.is_last and not rows.began:
            portfolio.growing = None

    def _grown(self, context: Context, rows: GrowingRows, start: Parameters) -> GrownFit:
        """Return the fit in progress, which is made again after a restart."""
        if rows.fit is None:
            encoder = context.encoder
            X, Y, weights = rows.to_fit(len(encoder.fields))
            scaler = encoder.scaler
            buffer = Buffer(*encoder.design(X), (Y - scaler.target_center) / scaler.target_scale, weights)
            options = context.learning_options(len(start.experts))
            rows.fit = GrownFit(context.family, buffer, start, context.targets.n_outputs, options)
            self.refits = True
        return rows.fit

    @property
    def _may_refit(self) -> bool:
        """Whether there are several experts."""
        return len(self.leader.state.masses) > 1

    def _report_idle(self, context: Context) -> None:
        """Report idle experts."""
        if len(self.leader.state.masses) == 1:
            return
        n = self.n
        found = diagnose(context.family, self.leader.state, self.leader.options)
        for k in range(len(found.shares)):
            if found.starved[k]:
                _report(context, n, k, "starved", f"it accounts for a share of {found.shares[k]:.2g} of the events")
            elif found.duplicate[k]:
                near, apart = found.nearest[k], found.divergences[k]
                why = f"it differs from expert {near} by only {apart:.2g} nats per event"
                _report(context, n, k, "a duplicate", why)

    @property
    def n(self) -> int:
        return int(self.leader.state.n[0])

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        X, Y, weights = (np.require(array, np.float64, ["C", "W"]) for array in (X, Y, weights))
        runs: list[mixture.Scores] = []
        start, n = 0, len(X)
        bound = self._refreshed(context)
        while start < n or not runs:
            stop = min(start + bound.rows_at_once, n)
            found, out = bound.learn(X[start:stop], Y[start:stop], weights[start:stop], traced=traced)
            if found & UNSOUND:
                raise UnsoundError(unsound_parts(self.leader.state) or ["prediction"])
            rows = slice(start, start + found // FLAGS)
            scores, held, counted = bound.scores(out[: rows.stop - start], traced=traced)
            runs.append(in_units(scores, context.encoder.scaler)._replace(predictions=scores.predictions))
            if self.portfolio is not None and self.portfolio.growing is not None:
                kept = ~np.isnan(Y[rows, 0])
                self.portfolio.growing.add(held[kept], Y[rows][kept], counted[kept])
            start = rows.stop
            if found % FLAGS:
                self.react(context, found, bound)
                bound = self._refreshed(context)
        return mixture.concatenated(runs)

    def bound(self, context: Context) -> Bound:
        """Return the model, bound to the kernel that predicts its events, and learns them if it `may_learn`."""
        bound = self._bound
        if bound is None or not bound.is_of(context, self):
            bound = self._bound = Bound(context, self)
        return bound

    def bound_to_learn(self, context: Context) -> Bound:
        """Return the model, bound to the kernel that learns its events."""
        bound, encoder = self._bound, context.encoder
        if bound is not None and bound.may_learn and bound.is_of(context, self):
            return bound
        if context.recent is not None:
            context.recent.prepare(len(encoder.fields), encoder.n_outputs, needed=self.keeps_recent(context))
        return self.bound(context)

    def _refreshed(self, context: Context) -> Bound:
        bound = self.bound_to_learn(context)
        bound.refresh()
        return bound

    def react(self, context: Context, found: int, bound: Bound) -> None:
        """Do what is due after the last event learned, given why the kernel has returned."""
        detector, recent, n = context.detector, context.recent, self.n
        if found & DRIFT and detector is not None:
            detector.declare(Drift(n, *bound.closed[0, 1:].tolist()))
            self._begin_again(context)
            return
        if n == bound.next_refit:
            self.refit(context)
        scale = context.encoder.scaler.target_scale
        if n % JUDGE_EVERY or recent is None or not self.judges(context):
            return
        if recent.is_narrow(JUDGE_EVERY, scale):
            self._judge(context)

    def next_refit(self, context: Context) -> int:
        """Return the count of events of the next fit after a drift; far beyond any stream if there is none."""
        until = events_to_refit(context, self.n)
        return until if until == sys.maxsize else self.n + until

    def keeps_recent(self, context: Context) -> bool:
        """Return whether the latest events are kept."""
        return is_refitted(context)

    def _begin_again(self, context: Context) -> bool:
        """Forget what was true before a drift; return whether the mixture continues from a fit to the events since."""
        if self.portfolio is not None:
            self.portfolio.begin_again(context.curved_terms)
        is_refitted = self.refit(context)
        if not is_refitted:
            self.restart_average()
        return is_refitted

    def refit(self, context: Context) -> bool:
        """Continue from a fit to the events since the last drift if that is clearly better; return whether."""
        drift = context.detector and context.detector.last
        if context.recent is None or not drift:
            return False
        encoder = context.encoder
        X, Y, weights = context.recent.since_change(drift, self.n, len(encoder.fields))
        before = context.recent.parameters_at(self.n - len(X))
        if self.n >= drift.n + REFITS_AFTER[-1]:
            context.recent.forget_parameters(self.n - len(X))
        if not len(X):
            return False
        scaler = encoder.scaler
        buffer = Buffer(*encoder.design(X), (Y - scaler.target_center) / scaler.target_scale, weights)
        state = refit.refit(context.family, self.leader, buffer, context.targets.n_outputs, before)
        if state is None:
            return False
        self.leader = context.candidate(state)
        LOGGER.info("fitted again to the %d events since the drift (event %d)", len(X), self.n)
        return True

    def served(self, context: Context) -> Served:
        if self.portfolio is None:
            return Served.alone(self.leader.state, context.encoder)
        portfolio = self.portfolio
        return Served(portfolio.predictors(self.leader.state), portfolio.weights, context.encoder, portfolio.means)

    def widen(self, context: Context, moves: Moves) -> None:
        encoder = context.encoder
        if context.recent is not None:
            context.recent.forget_parameters()
        if self.portfolio is not None:
            widths = (moves.gate_at, encoder.gate_width, moves.expert_at, encoder.expert_width)
            self.portfolio.widen(*widths, encoder.n_expert_features)
        self._change(
            context,
            lambda state: widen(state, moves.gate_at, encoder.gate_width, moves.expert_at, encoder.expert_width),
        )

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        n_features, gamma = context.encoder.n_expert_features, context.steps(self.n + 1)
        if context.recent is not None:
            context.recent.forget_parameters()
        if self.portfolio is not None:
            self.portfolio.add_class(n_features)
        self._change(context, lambda state: with_class(state, rng, n_features, gamma))

    def count_only(self, context: Context) -> None:
        """Count an event that leaves no finite mixture, without learning it."""
        self._change(context, lambda state: state._replace(n=state.n + 1))
        if self.portfolio is not None:
            self.portfolio.count_only()

    def _change(self, context: Context, change: Change) -> None:
        self.leader = context.candidate(change(self.leader.state))

    def arrays(self) -> dict[str, AnyArray]:
        portfolio = {} if self.portfolio is None else self.portfolio.arrays()
        return state_arrays(self.leader.state, "state") | portfolio

    @property
    def residual(self) -> FloatArray:
        return self.leader.residual

    def copy(self, spare: Phase | None = None) -> Streaming:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = spare.leader if isinstance(spare, Streaming) else None
        state, residual, options = self.leader
        candidate = Candidate(copy_state(state, old and old.state), copy_array(residual, old and old.residual), options)
        before = spare.portfolio if isinstance(spare, Streaming) else None
        return Streaming(candidate, self.portfolio and self.portfolio.copy(before))

    def restore(self, copied: Streaming) -> None:
        """Restore a copy, which must not be used afterwards."""
        self.leader, self.portfolio = copied.leader, copied.portfolio

    def restart_average(self) -> None:
        """Restart the served average at the current parameters."""
        self.leader = self.leader._replace(state=restart_average(self.leader.state))

    def is_finite(self) -> bool:
        return is_finite(self.leader.state) and (self.portfolio is None or self.portfolio.is_finite())


def _report(context: Context, n: int, expert: int, what: str, why: str) -> None:
    if (expert, what) not in context.reported:
        context.reported.add((expert, what))
        LOGGER.warning("expert %d is %s: %s; see docs/experts.md (event %d)", expert, what, why, n)
