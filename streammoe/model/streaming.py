"""What learns a stream: a mixture by steps and by fits at certain counts, next to single experts."""

from __future__ import annotations

import logging
import sys

import numpy as np

from streammoe.engine import mixture, refit, schedule
from streammoe.engine.diagnostics import diagnose
from streammoe.engine.drift import Drift
from streammoe.engine.members import CURVED
from streammoe.engine.mixture import Candidate
from streammoe.engine.portfolio import Portfolio, Predictor
from streammoe.engine.state import (
    UnsoundError,
    copy_array,
    copy_state,
    restart_average,
    state_arrays,
    unsound_parts,
    widen,
    with_class,
)
from streammoe.experts import Parameters
from streammoe.kernels.event import DRIFT, FLAGS, UNSOUND
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import MMState
from streammoe.model.bound import Bound
from streammoe.model.context import Context, Moves
from streammoe.model.fits import Fit, Found, Plan, new_fit
from streammoe.model.phase import Phase, Served, in_units, unlearned
from streammoe.replacements import Noticed
from streammoe.schedules import Steps
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
MOST_REPLAYED = 8192
"""Most events that are learned again where a category turns out to be an identifier."""
REFIT_ROWS = 512
"""Most of the latest rows that a refit after a drift looks at."""
PROGRESS = "progress.fits"
"""The array of what was fitted."""
FITTED = "fitted."
"""Prefix of the names of the arrays of parameters at the last fit."""
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


def is_refitted(context: Context) -> bool:
    """Return whether a mixture is fitted again after a drift, which some models are too wide for."""
    has_drifts = context.options.drift is not None and context.options.has_portfolio
    return has_drifts and refit.rounds(context.family, context.shape, REFIT_ROWS) > 0


class Empty(Phase):
    """The phase in which nothing has been learned."""

    @property
    def n(self) -> int:
        return 0

    def begin(self, context: Context) -> Phase:
        return Streaming.blank(context) if context.targets.n_outputs else self

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        """Do nothing: no label has been encountered, so there is nothing to learn or predict."""
        return unlearned(context, len(X), traced=traced)

    def copy(self, spare: Phase | None = None) -> Empty:
        return self


class Streaming(Noticed, Phase):
    """The phase of a mixture that learns by steps, and is fitted to the latest rows at certain counts.

    Before the first fit the mixture has one expert.

    Attributes:
        leader: the mixture.
        fitted: its parameters at the last fit, or when it got new columns or classes.
        portfolio: the members that predict together; None if the leader's average predicts alone.
        fitted_at: event count of the latest fit that was taken; 0 if the state was given, −1 before there is any.
        is_settled: whether scales stay as they are.
        fit: the fit in progress, if any.
    """

    leader: Candidate
    JUDGE_EVERY = JUDGE_EVERY

    def __init__(
        self,
        candidate: Candidate,
        portfolio: Portfolio | None,
        fitted_at: int = -1,
        *,
        is_settled: bool = False,
        fit: Fit | None = None,
        fitted: Parameters | None = None,
    ) -> None:
        self.leader = candidate
        self.fitted = mixture.served_parameters(candidate.state).copied() if fitted is None else fitted
        self.portfolio = portfolio
        self.fitted_at = fitted_at
        self.is_settled = is_settled
        self.fit = fit
        self._bound: Bound | None = None

    @classmethod
    def blank(cls, context: Context) -> Streaming:
        """Return the phase in which nothing was learned."""
        options = context.options
        context.begin_series()
        portfolio = context.blank_portfolio(None) if options.has_portfolio else None
        if options.warmup == 0:
            return cls(context.candidate(context.random_start(options.most_experts)), portfolio, 0, is_settled=True)
        return cls(context.candidate(context.random_start(1)), portfolio)

    @classmethod
    def given(cls, context: Context, state: MMState) -> Streaming:
        """Return the phase of a state that was fitted or given, which predicts until events speak against it."""
        portfolio = None
        context.begin_series()
        if context.options.has_portfolio:
            portfolio = context.blank_portfolio(context.unjudged_terms(), is_trusted=True)
        return cls(context.candidate(state), portfolio, 0, is_settled=True)

    @property
    def n(self) -> int:
        return int(self.leader.state.n[0])

    @property
    def is_fitted(self) -> bool:
        return self.fitted_at >= 0

    @property
    def has_fits(self) -> bool:
        """Whether the mixture is fitted at certain counts: not where it was given, or began with random experts."""
        return self.fitted_at != 0

    @property
    def is_several(self) -> bool:
        """Whether the mixture has several experts."""
        return len(self.leader.state.masses) > 1

    def may_fit(self, context: Context) -> bool:
        return self._next_fit(context, self.n) < sys.maxsize

    def steps(self, context: Context) -> Steps:
        """Return the step sizes of the mixture from now on: those of plain means before the first fit."""
        return context.steps if self.is_fitted else context.family.warmup_schedule

    # -- What is due ---------------------------------------------------------------------------------------------------

    def next_due(self, context: Context) -> int:
        n = self.n
        due = min(next_look(n), self._next_fit(context, n), self._next_review(context, n))
        if n < MOST_REPLAYED:
            due = min(due, MOST_REPLAYED)
        return min(due, (n // KEEP_EVERY + 1) * KEEP_EVERY) if self.is_several else due

    def on_due(self, context: Context) -> None:
        n, portfolio = self.n, self.portfolio
        self.refits = False
        if n == MOST_REPLAYED:
            self._bound = None  # fewer rows may have to be kept
        if portfolio is not None and self._next_review(context, n - 1) == n:
            portfolio.review(n, staying=() if context.options.curved == "auto" else (CURVED.name,))
        if self._next_fit(context, n - 1) == n:
            self._advance(context)
        if n % KEEP_EVERY == 0 and self.is_several and is_refitted(context):
            context.recent.keep(n, mixture.served_parameters(self.leader.state))
        if next_look(n - 1) == n and self.is_several:
            _report_idle(context, self.leader, n)

    def _next_review(self, context: Context, n: int) -> int:
        """Return the next count after n at which members may rest or come back."""
        return sys.maxsize if self.portfolio is None else self.portfolio.next_review(n)

    def _next_fit(self, context: Context, n: int) -> int:
        """Return the next count after n at which a fit begins or goes on."""
        if not self.has_fits:
            return sys.maxsize
        if self.fit is not None:
            return n + 1
        first = context.first_fit
        due = schedule.next_fit(n, first)
        if due > context.capacity:
            due = sys.maxsize
        return due if self.is_fitted else min(due, schedule.next_scaling(n, first))

    def _advance(self, context: Context) -> None:
        """Begin the fit that is due, or run steps of the one in progress; take its result if that is due."""
        n, self.refits = self.n, self.fit is None  # its steps are not repeated for copies
        fit = self.fit = self.fit or new_fit(context, self.leader.state, is_settled=self.is_settled)
        if not fit.advance(n):
            return
        self.fit, self._bound, plan = None, None, fit.plan  # bound again, since fewer rows may have to be kept
        try:
            self._take(context, plan, fit.result(context))
        except UnsoundError as error:
            LOGGER.info("the fit to %d events did not converge to finite parameters (%s)", plan.n_rows, error)
        self.is_settled = self.is_settled or (plan.is_fitting and plan.n >= schedule.SETTLED)

    def _take(self, context: Context, plan: Plan, found: Found) -> None:
        """Take the result of a fit, which learns the events that have come since it began.

        Raises:
            UnsoundError: with these the result is not finite; nothing was changed.
        """
        fitted = None if found.state is None else mixture.served_parameters(found.state).copied()
        encoder, portfolio, state = found.caught_up(context, plan, self.n, self.steps(context))
        if state is not None and fitted is not None:
            self.leader, self.fitted = context.candidate(state), fitted
            if plan.is_fitting:
                self.fitted_at = self.n
                K = len(state.masses)
                noun = "expert" if K == 1 else "experts"
                LOGGER.info("fitted %d %s to %d events (event %d)", K, noun, plan.n_rows, self.n)
        context.encoder.take_scales(encoder)  # in place, since others know the encoder
        if portfolio is not None and self.portfolio is not None:
            self.portfolio.take_over(portfolio)

    def judges(self, context: Context) -> bool:
        """Return whether the model is compared with the mean of the latest targets, whose unit it has to know."""
        is_known = context.family.is_metric and context.options.standardize
        return self.is_settled and is_known and is_refitted(context)

    def _judge(self, context: Context) -> None:
        """Begin again as after a drift if the mean of the latest targets would have predicted much better.

        So it is after targets have changed their unit: losses may even fall, so that the detector finds nothing, while
        priors, which do not fade, keep all members where they were.
        """
        detector, recent, portfolio, n = context.detector, context.recent, self.portfolio, self.n
        if detector is None or portfolio is None:
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
        self.fit = None
        recent.keep_last(2 * JUDGE_EVERY)
        if self._begin_again(context):
            portfolio.take_over(context.blank_portfolio(context.unjudged_terms()))

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        X, Y, weights = (np.require(array, np.float64, ["C", "W"]) for array in (X, Y, weights))
        if self.n == 0:
            self._expect(context, Y)
        runs: list[mixture.Scores] = []
        start, n = 0, len(X)
        bound = self._refreshed(context)
        while start < n or not runs:
            stop = min(start + bound.rows_at_once, n)
            found, out = bound.learn(X[start:stop], Y[start:stop], weights[start:stop], traced=traced)
            if found & UNSOUND:
                raise UnsoundError(unsound_parts(self.leader.state) or ["prediction"])
            rows = slice(start, start + found // FLAGS)
            scores = bound.scores(out[: rows.stop - start], traced=traced)
            runs.append(in_units(scores, context.encoder.scaler)._replace(predictions=scores.predictions))
            start = rows.stop
            if found % FLAGS:
                self.react(context, found, bound)
                bound = self._refreshed(context)
        return mixture.concatenated(runs)

    def _expect(self, context: Context, Y: FloatArray) -> None:
        """Let the first target set the scale of what may come, since a loss needs one."""
        known = Y[~np.isnan(Y[:, 0])]
        if self.has_fits and context.family.is_metric and context.options.standardize and len(known):
            sizes = np.abs(known[0])
            scaler = context.encoder.scaler
            context.encoder.scaler = scaler._replace(target_scale=np.where(sizes > VANISHED, sizes, 1.0))

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
        context.recent.prepare(len(encoder.fields), encoder.n_outputs, self._rows_needed(context))
        return self.bound(context)

    def _refreshed(self, context: Context) -> Bound:
        bound = self.bound_to_learn(context)
        bound.refresh()
        return bound

    def react(self, context: Context, found: int, bound: Bound) -> None:
        """Do what is due after the last event learned, given why the kernel has returned."""
        detector, n = context.detector, self.n
        if found & DRIFT and detector is not None:
            detector.declare(Drift(n, *bound.closed[0, 1:].tolist()))
            self._begin_again(context)
            return
        if n == bound.next_refit:
            self.refit(context)
        if n % JUDGE_EVERY == 0 and self.judges(context):
            self._judge(context)

    def next_refit(self, context: Context) -> int:
        """Return the count of events of the next fit after a drift; far beyond any stream if there is none."""
        drift, n = context.detector and context.detector.last, self.n
        counts = [drift.n + after for after in REFITS_AFTER] if drift else []
        return next((count for count in counts if count > n), sys.maxsize)

    def _rows_needed(self, context: Context) -> int:
        """Return how many of the latest events have to be kept.

        They are all that fits may need, as long as any follow, and all of the first ones if a category may yet turn
        out to be an identifier.
        """
        replayed = MOST_REPLAYED if self.n < MOST_REPLAYED and context.encoder.columns.with_columns else 0
        if self.may_fit(context):
            return max(context.capacity, replayed)
        return max(REFIT_ROWS if is_refitted(context) else 0, replayed)

    def _begin_again(self, context: Context) -> bool:
        """Forget what was true before a drift; return whether the mixture continues from a fit to the events since."""
        if self.portfolio is not None:
            self.portfolio.begin_again()
        is_refitted = self.refit(context)
        if not is_refitted:
            self.leader = self.leader._replace(state=restart_average(self.leader.state))
        return is_refitted

    def refit(self, context: Context) -> bool:
        """Continue from a fit to the events since the last drift if that is clearly better; return whether."""
        drift = context.detector and context.detector.last
        if not drift or not is_refitted(context):
            return False
        encoder = context.encoder
        X, Y, weights = context.recent.since_change(drift, self.n, len(encoder.fields), REFIT_ROWS)
        before = context.recent.parameters_at(self.n - len(X))
        if self.n >= drift.n + REFITS_AFTER[-1]:
            context.recent.forget_parameters(self.n - len(X))
        if not len(X):
            return False
        buffer = context.buffer(encoder, X, Y, weights)
        state = refit.refit(context.family, self.leader, buffer, context.targets.n_outputs, before)
        if state is None:
            return False
        self._continue_with(context, state)
        self.fit = None  # it would learn what is no longer true
        LOGGER.info("fitted again to the %d events since the drift (event %d)", len(X), self.n)
        return True

    def served(self, context: Context) -> Served:
        if self.portfolio is None:
            return Served([Predictor(mixture.served_parameters(self.leader.state))], None)
        portfolio = self.portfolio
        return Served(portfolio.predictors(self.leader.state, self.fitted), portfolio.trust, portfolio.beside)

    def widen(self, context: Context, moves: Moves) -> None:
        encoder = context.encoder
        context.recent.forget_parameters()
        if self.portfolio is not None:
            self.portfolio.widen(moves.expert_at, encoder.expert_width, encoder.n_expert_features)
        state, (gate_at, expert_at) = self.leader.state, moves
        self._continue_with(context, widen(state, gate_at, encoder.gate_width, expert_at, encoder.expert_width))

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        n_features, gamma = context.encoder.n_expert_features, context.steps(self.n + 1)
        context.recent.forget_parameters()
        if self.portfolio is not None:
            self.portfolio.add_class(n_features)
        self._continue_with(context, with_class(self.leader.state, rng, n_features, gamma))

    def _continue_with(self, context: Context, state: MMState) -> None:
        self.leader = context.candidate(state)
        self.fitted = mixture.served_parameters(state).copied()

    def arrays(self) -> dict[str, AnyArray]:
        portfolio = {} if self.portfolio is None else self.portfolio.arrays()
        fit = {} if self.fit is None else self.fit.arrays()
        fit |= {f"{FITTED}{name}": array for name, array in self.fitted._asdict().items()}
        progress = {PROGRESS: np.array([self.fitted_at, self.is_settled], dtype=np.int64)}
        return state_arrays(self.leader.state, "state") | portfolio | fit | progress

    @property
    def residual(self) -> FloatArray:
        return self.leader.residual

    def copy(self, spare: Phase | None = None) -> Streaming:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = spare.leader if isinstance(spare, Streaming) else None
        state, residual, options = self.leader
        candidate = Candidate(copy_state(state, old and old.state), copy_array(residual, old and old.residual), options)
        before = spare.portfolio if isinstance(spare, Streaming) else None
        portfolio = self.portfolio and self.portfolio.copy(before)
        return Streaming(
            candidate, portfolio, self.fitted_at, is_settled=self.is_settled, fit=self.fit, fitted=self.fitted
        )


def _report_idle(context: Context, mixture: Candidate, n: int) -> None:
    """Log which experts are starved or duplicates, each once."""
    found = diagnose(context.family, mixture.state, mixture.options)
    for k in range(len(found.shares)):
        if found.starved[k]:
            what, why = "starved", f"it accounts for a share of {found.shares[k]:.2g} of the events"
        elif found.duplicate[k]:
            near, apart = found.nearest[k], found.divergences[k]
            what, why = "a duplicate", f"it differs from expert {near} by only {apart:.2g} nats per event"
        else:
            continue
        if (k, what) not in context.reported:
            context.reported.add((k, what))
            LOGGER.warning("expert %d is %s: %s; see docs/experts.md (event %d)", k, what, why, n)
