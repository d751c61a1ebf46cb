"""What is found again from the rows of a stream at certain event counts: scales, single experts, and the mixture.

A fit runs in steps at the events that follow, and its result is taken a fixed number of events later, so that nothing
depends on speed. It is a function of the rows kept, the options and where it began, so that a checkpoint holds only
when that was; after a restart it runs again up to where it was.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.encoder import Encoder
from streammoe.columns.fitting import fit_bounds
from streammoe.columns.outliers import MAX_ERROR_SHARE, winsorised
from streammoe.columns.scaling import Scaler, without_inputs
from streammoe.engine import mixture, model_selection, schedule, search
from streammoe.engine.cost import Shape
from streammoe.engine.em import Buffer
from streammoe.engine.jobs import Job, StepwiseJob
from streammoe.engine.members import CURVED, KINDS, Single, series_width
from streammoe.engine.mixture import served_parameters
from streammoe.engine.portfolio import Portfolio
from streammoe.engine.products import MOST_FEATURES, merits, terms_of
from streammoe.engine.recent import Rows, restored_parameters
from streammoe.engine.state import copy_state, widen, with_class
from streammoe.experts import Parameters
from streammoe.kernels.features import CENTERED_AT
from streammoe.kernels.state import MMState
from streammoe.model.context import DESIGN_COST, SCALER_COST, Context
from streammoe.schedules import Steps
from streammoe.types import AnyArray, BoolArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
RANGED_AT = 200
"""Number of rows from which on columns are held to the range of these."""
CURVED_FROM = 32
"""Number of rows from which on there is a member of products."""
PLAUSIBLE = 12.0
"""Median deviations from the median up to which a target among the first ones is no outlier; each weighs a lot."""
AT_ONCE = 1e7
"""Multiply-adds that are done at one event; they take some 5 ms."""
PART = 4
"""A fit to n rows is spread over n / `PART` events, unless it is done at once."""
MOST_EVENTS = 350
"""Most events over which a fit is spread; wide models do more at each of them."""
ROWS_PER_REFRESH = 3
"""How many events there are, at least, for each time that the Gram matrix of an expert is inverted."""
NAME = "fit."
"""Prefix of the names of its arrays."""


class Plan(NamedTuple):
    """What a fit is to find."""

    n: int
    """Event count at which it begins."""
    n_rows: int
    """Number of the latest rows that it is a fit to."""
    is_scaling: bool
    """Whether scales are taken, and single experts learn the rows again."""
    is_fitting: bool
    """Whether the mixture is fitted."""
    is_searching: bool
    """Whether that begins at new starts, too."""


class Found(NamedTuple):
    """The result of a fit; what was not looked for is None."""

    encoder: Encoder
    """Scales, unless these stay as they are, and bounds of the rows."""
    portfolio: Portfolio | None
    """Single experts on these scales, which have learned the rows; their trust does not count."""
    state: MMState | None
    """The mixture, on these scales."""

    def caught_up(self, context: Context, plan: Plan, n: int, steps: Steps) -> Found:
        """Return the result after the events that have come since the fit began, which it learns in place.

        Args:
            context: of the model, which has learned `n` events.
            plan: of the fit.
            steps: those of a mixture that was not fitted.

        Raises:
            UnsoundError: with these it is not finite.
        """
        encoder, portfolio, state = context.encoder.copy(), self.portfolio, self.state
        encoder.take_scales(self.encoder)
        n_outputs = context.targets.n_outputs
        X, Y, weights = rows_of(context, n - plan.n)
        W, R = encoder.design(encoder.hold(X, Y)[0])
        if context.family.is_metric:
            encoder.hold_predictions(np.zeros_like(Y), Y)
        targets = (Y - encoder.scaler.target_center) / encoder.scaler.target_scale
        if portfolio is not None and len(X):
            for single in portfolio.singles:
                single.learn(R, targets, weights, n_outputs=n_outputs)
        if state is not None:
            state.n[0] = plan.n
            if len(X):
                context.learn_apart(state, context.steps if plan.is_fitting else steps, W, R, targets, weights)
        return Found(encoder, portfolio, state)


class Fit:
    """A fit in progress.

    Attributes:
        plan: what it is to find.
        length: number of events over which it is spread.
        start: the mixture as it was when it began.
    """

    def __init__(self, frozen: Context, rows: Rows, plan: Plan, start: Parameters) -> None:
        """Prepare a fit of a frozen context to frozen rows."""
        self.plan, self.start = plan, start
        self._frozen, self._rows = frozen, rows
        work = self._work()
        spread = min(math.ceil(work / AT_ONCE), max(plan.n_rows // PART, 1), MOST_EVENTS)
        self.length = 0 if work <= AT_ONCE else spread
        self._pace = work / max(self.length, 1)
        self._progress = StepwiseJob(self._job)

    def __deepcopy__(self, memo: dict[int, Any]) -> Fit:
        return self  # immutable except for its progress

    def __reduce__(self) -> tuple[Any, ...]:
        return Fit, (self._frozen, self._rows, self.plan, self.start)

    def advance(self, n: int) -> bool:
        """Run the steps due by the n-th event; return whether the result is due.

        Raises:
            FitCancelled: a stop was requested.
        """
        is_due = n >= self.plan.n + self.length
        self._progress.advance(math.inf if is_due else (n - self.plan.n + 1) * self._pace)
        return is_due

    def result(self, context: Context) -> Found:
        """Return what was found, with the columns and classes that have been added since.

        Raises:
            UnsoundError: no finite parameters were found.
        """
        found, portfolio, state = self._progress.result()
        encoder, layout = context.encoder, self._frozen.encoder.layout
        portfolio = None if portfolio is None else portfolio.copy()
        state = None if state is None else copy_state(state)
        if layout != encoder.layout:
            gate_at, expert_at = context.moves(layout)
            if state is not None:
                state = widen(state, gate_at, encoder.gate_width, expert_at, encoder.expert_width)
            if portfolio is not None:
                portfolio.widen(expert_at, encoder.expert_width, encoder.n_expert_features)
        for index in range(self._frozen.targets.n_outputs, context.targets.n_outputs):
            if state is not None:
                rng = np.random.default_rng((context.options.seed, index))
                state = with_class(state, rng, encoder.n_expert_features, context.steps(self.plan.n + 1))
            if portfolio is not None:
                portfolio.add_class(encoder.n_expert_features)
        return Found(found, portfolio, state)

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, AnyArray]:
        """Return what identifies the fit, given the rows kept, as named arrays: when it began, and from what."""
        frozen = self._frozen
        sizes = [len(frozen.encoder.columns.entries), frozen.targets.n_outputs]
        start = {f"{NAME}start.{name}": array for name, array in self.start._asdict().items()}
        before = frozen.encoder.coordinates(f"{NAME}encoder")
        return {**before, **start, f"{NAME}plan": np.array([*self.plan, *sizes], dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], context: Context, n: int) -> Fit | None:
        """Return the fit that the checkpoint of a model of n events describes, if any, which has not made a step yet.

        Raises:
            CheckpointError: there can be no such fit.
        """
        if f"{NAME}plan" not in arrays:
            return None
        given = array_of(arrays, f"{NAME}plan", "int64", (7,), least=0).tolist()
        began, n_rows, *flags, n_entries, n_outputs = given
        plan = Plan(began, n_rows, *map(bool, flags))
        recent, encoder, known = context.recent, context.encoder, context.targets.n_outputs
        possible = (
            0 < plan.n <= n
            and plan.n_rows + n - plan.n <= recent.count
            and n_entries <= len(encoder.columns.entries)
            and (n_outputs == known if context.family.is_metric else 0 < n_outputs <= known)
        )
        require(possible, f"array {NAME}plan holds {given}, which does not fit the rows, columns or classes")
        frozen = context.copy()
        frozen.encoder = encoder.with_first(n_entries)
        frozen.encoder.restore_coordinates(arrays, f"{NAME}encoder")
        frozen.targets = frozen.targets.copy(n_outputs)
        rows = rows_of(context, plan.n_rows, n - plan.n)
        F = len(frozen.encoder.fields)
        has_later = not np.isnan(rows.X[:, F:]).all() or (not context.family.is_metric and (n_outputs <= rows.Y).any())
        require(not has_later, f"array {NAME}plan holds {given}, but there are later columns or classes in its rows")
        X = np.ascontiguousarray(rows.X[:, :F])
        frozen.encoder.columns.check_rows(X)
        start = restored_parameters(arrays, f"{NAME}start", context.family, frozen.padded_shape)
        return cls(frozen, rows._replace(X=X), plan, start)

    # -- The fit -------------------------------------------------------------------------------------------------------

    def _work(self) -> float:
        """Estimate the multiply-adds of all steps."""
        context, plan = self._frozen, self.plan
        shape = context.shape
        work = float(plan.n_rows * (SCALER_COST * len(context.encoder.fields) + DESIGN_COST * shape.p_v))
        work += plan.is_scaling * relearning_work(context, plan.n_rows)
        if plan.is_fitting:
            work += search.fit_work(context.family, shape, plan.n_rows, is_searching=plan.is_searching)
        return work

    def _job(self) -> Job[Found]:
        context, plan = self._frozen.copy(), self.plan
        X, Y, weights = self._rows
        encoder, before = context.encoder, context.encoder.scaler
        if plan.is_scaling:
            take_scales(context, X, Y)
        else:
            fit_bounds(encoder, X, Y, joining=True)
        yield float(SCALER_COST * X.size)
        buffer = context.buffer(encoder, X, Y, np.where(outlying(context, Y), 0.0, weights))
        yield float(DESIGN_COST * buffer.R.size)
        portfolio, state = None, None
        if plan.is_scaling and context.options.has_portfolio:
            portfolio = context.blank_portfolio(None)
            for single in portfolio.singles:
                yield from _learned(context, single, buffer)
            if context.options.has_curved and len(X) >= CURVED_FROM:
                yield from _add_curved(context, portfolio, buffer)
        if plan.is_fitting:
            start = rescaled(self.start, before, encoder.scaler, context) if plan.is_scaling else self.start
            state = yield from _fitted(context, buffer, start, is_searching=plan.is_searching)
        elif plan.is_scaling:
            state = context.random_start(1)
            context.learn_apart(state, context.family.warmup_schedule, *buffer)
            yield len(X) * search.step_cost(context.shape)
        return Found(encoder, portfolio, state)


def new_fit(context: Context, state: MMState, *, is_settled: bool) -> Fit:
    """Return the fit that begins now, at the count of events of the mixture's state."""
    n, first, n_rows = int(state.n[0]), context.first_fit, context.recent.count
    if context.detector is not None and context.detector.last is not None:
        rows = context.recent.since_change(context.detector.last, n, len(context.encoder.fields), n_rows)
        n_rows = max(len(rows.X), 1)
    is_fitting = schedule.next_fit(n - 1, first) == n
    is_searching = is_fitting and schedule.is_searched(n, first)
    plan = Plan(n, n_rows, not is_settled, is_fitting, is_searching)
    fit = Fit(context.copy(), rows_of(context, n_rows), plan, served_parameters(state).copied())
    if is_fitting and fit.length:
        most, p_v = context.options.most_experts, context.encoder.n_expert_features
        K = f"1 to {most}" if context.options.is_choosing else most
        what = f"fitting {K} experts with {p_v} features to {n_rows} events"
        LOGGER.info("%s, during the next %d (event %d)", what, fit.length, n)
    return fit


def rows_of(context: Context, n: int, since: int = 0) -> Rows:
    """Return the latest n rows that are kept, but for those of the `since` events at the end."""
    rows = context.recent.rows(len(context.encoder.fields), n + since)
    return rows.part(slice(len(rows.X) - since))


def take_scales(context: Context, X: FloatArray, Y: FloatArray) -> None:
    """Let the encoder take scales and bounds by raw rows.

    With so few rows that any line fits them, numeric inputs do not count: the mean of the targets predicts. As long as
    no range is known, numbers are held to within a multiple of their deviation from their mean.
    """
    encoder = context.encoder
    bounds, target_bounds, doubts = encoder.bounds, encoder.target_bounds, encoder.doubts
    context.fit_scaler(encoder, X, np.where(outlying(context, Y)[:, None], np.nan, Y))
    if context.options.standardize and context.family.is_metric and len(Y) <= CENTERED_AT:
        encoder.scaler = without_inputs(encoder.scaler, Y)
    if len(X) < RANGED_AT:
        encoder.bounds, encoder.target_bounds, encoder.doubts = bounds, target_bounds, doubts
        encoder.hold_loosely()


def outlying(context: Context, Y: FloatArray) -> BoolArray:
    """Return which rows, (n,), have a target that is an outlier: the first one of a file may well be a placeholder."""
    if context.family.is_exact or not context.family.is_metric:
        return np.zeros(len(Y), dtype=np.bool_)
    found: BoolArray = (winsorised(Y, share=MAX_ERROR_SHARE, codes=True, most=PLAUSIBLE) != Y).any(axis=1)
    return found


def rescaled(theta: Parameters, before: Scaler, after: Scaler, context: Context) -> Parameters | None:
    """Return parameters on other scales; None if features are powers, of which that is no linear map."""
    if max(context.options.degree, context.options.gate_degree) > 1:
        return None
    C = len(before.center)
    moved = []
    for coefficients in (theta.gate, theta.experts):
        slopes = coefficients[..., 1 : 1 + C]
        found = coefficients.copy()
        found[..., 0] += (slopes * ((after.center - before.center) / before.scale)).sum(axis=-1)
        found[..., 1 : 1 + C] = slopes * (after.scale / before.scale)
        moved.append(found)
    gate, experts = moved
    variances = theta.variances.copy()
    if context.family.is_metric:
        ratio = before.target_scale / after.target_scale
        experts *= ratio[:, None]
        experts[..., 0] += (before.target_center - after.target_center) / after.target_scale
        variances *= ratio**2 if variances.ndim == 2 else np.outer(ratio, ratio)
    return Parameters(gate, experts, variances)


def relearning_work(context: Context, n_rows: int) -> float:
    """Estimate the multiply-adds by which single experts learn rows again."""
    _, N, _, p_v = context.shape
    widths = [p_v] * (1 + context.options.has_portfolio * sum(kind.sees == "all" for kind in KINDS))
    widths += [p_v + series_width(context.targets.n_outputs, n) for n in [context.n_series_lags] if n]
    widths += [min(MOST_FEATURES, p_v**2)] * context.options.has_curved
    judging = 2.0 * context.targets.n_outputs * p_v**2 * (context.options.has_curved and p_v <= MOST_FEATURES)
    return float(n_rows * (judging + sum(_row_work(N, p) for p in widths)))


def _row_work(n_coefficients: int, p: int) -> float:
    """Estimate the multiply-adds by which a single expert of p features learns a row, inversions included."""
    return search.step_cost(Shape(1, n_coefficients, p, p)) + p**3 / (2 * ROWS_PER_REFRESH)


def _learned(context: Context, single: Single, buffer: Buffer) -> Job[None]:
    """Let a single expert learn rows, in pieces."""
    _, N, p = single.state.experts.shape
    cost = _row_work(N, p)
    at_once = max(int(AT_ONCE / cost), 1)
    for start in range(0, len(buffer.R), at_once):
        rows = slice(start, start + at_once)
        single.learn(buffer.R[rows], buffer.Y[rows], buffer.weights[rows], n_outputs=context.targets.n_outputs)
        yield len(buffer.R[rows]) * cost


def _add_curved(context: Context, portfolio: Portfolio, buffer: Buffer) -> Job[None]:
    """Let the member of products join others that have learned rows, if products say something that they do not."""
    _, R, Y, weights = buffer
    family, encoder, n_outputs = context.family, context.encoder, context.targets.n_outputs
    p, C = encoder.n_expert_features, len(encoder.feature_names)
    if p > MOST_FEATURES:
        return
    lines = (single for single in portfolio.singles if single.kind.sees == "all")
    steady = min(lines, key=lambda single: single.step)
    said = mixture.score(family, steady.parameters, R, R, n_outputs=n_outputs)[0].predictions
    left = Y - said if family.is_metric else ((np.arange(n_outputs) == Y) - said)[:, 1:]
    merit, seen = np.zeros((p, p)), np.ascontiguousarray(R[:, :p])
    for residuals in np.ascontiguousarray((left * weights[:, None]).T):
        merit += merits(seen, residuals)
        yield 2.0 * len(R) * p**2
    # Others have no scale yet, so that products might be enormous.
    varied = 1 + np.flatnonzero(np.ptp(seen[:, 1 : 1 + C], axis=0) > 0.0)
    terms = terms_of(p, varied, merit, family.n_rows(n_outputs))
    if terms is not None:
        bound, width = context.options.bound, encoder.expert_width
        portfolio.join(Single.blank(CURVED, family, bound, n_outputs, width, terms=terms))
        yield from _learned(context, portfolio.singles[-1], buffer)


def _fitted(context: Context, buffer: Buffer, start: Parameters | None, *, is_searching: bool) -> Job[MMState]:
    """Fit the mixture to rows; where the number of experts is to be chosen, a search chooses it."""
    options, family, n_outputs = context.options, context.family, context.targets.n_outputs

    def fit(n_experts: int) -> Job[MMState]:
        known = start is not None and len(start.experts) == n_experts
        found = search.fit(
            family,
            buffer,
            start if known else None,
            n_experts=n_experts,
            n_outputs=n_outputs,
            seed=options.seed,
            options=context.learning_options(n_experts),
            is_searching=is_searching,
        )
        return (yield from found)

    if not options.is_choosing:
        return (yield from fit(options.most_experts))
    if start is not None and not is_searching:
        return (yield from fit(len(start.experts)))
    state, costs = yield from model_selection.cheapest(family, buffer, fit, context.shape, n_outputs)
    LOGGER.info(
        "the model has %d experts; nats that each number of experts costs more: %s",
        len(state.masses),
        ", ".join(f"{K}: {cost:.1f}" for K, cost in costs.items()),
    )
    return state
