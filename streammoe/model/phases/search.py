"""The fit to the first rows of a warm-up, which runs in steps at the events that follow.

It is a function of these rows, the options and the seed, so a checkpoint holds only which rows they are; after a
restart it runs again up to where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.outliers import winsorised
from streammoe.columns.scaling import Scaler, wider_scaler
from streammoe.engine import model_selection, warmup
from streammoe.engine.jobs import Job, StepwiseJob
from streammoe.engine.state import MMState, UnsoundError, copy_state, widen, with_class
from streammoe.engine.warmup_buffer import WarmUpBuffer
from streammoe.model.context import DESIGN_COST, SCALER_COST, Context
from streammoe.model.phases.provisional import RESTARTS
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")


class Rows(NamedTuple):
    """Raw rows of a buffer."""

    X: FloatArray
    Y: FloatArray
    weights: FloatArray


class Found(NamedTuple):
    """The result of a fit."""

    scaler: Scaler
    """Scaler of the rows."""
    state: MMState
    """The best, if there were several numbers of experts."""


class Search:
    """A fit to the first rows of a buffer, which runs in steps.

    Attributes:
        n: number of these rows.
        is_brief: whether it is the brief fit of a provisional mixture.
    """

    def __init__(self, frozen: Context, rows: Rows, *, is_brief: bool) -> None:
        """Prepare a fit of a frozen context to frozen rows."""
        self.n = len(rows.X)
        self.is_brief = is_brief
        self._frozen = frozen
        self._rows = rows
        self._pace = warmup.pace(frozen.family, frozen.shape, self.n)
        self._progress = StepwiseJob(self._job)

    @classmethod
    def of(cls, context: Context, one: WarmUpBuffer, *, is_brief: bool) -> Search:
        """Begin a fit to all the rows that are buffered now."""
        return cls(context.copy(), Rows(*one.rows()), is_brief=is_brief)

    def __deepcopy__(self, memo: dict[int, Any]) -> Search:
        return self  # immutable except for its progress

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._frozen, self._rows, self.is_brief)

    def advance(self, n: int) -> bool:
        """Run the steps due by the n-th event; return whether the fit has ended.

        Raises:
            FitCancelled: a stop was requested.
        """
        return self._progress.advance((n - self.n + 1) * self._pace)

    def result(self, context: Context) -> Found:
        """Return the fitted state, with the columns and classes that have been added since.

        Raises:
            UnsoundError: a brief fit found no finite parameters.
        """
        found = self._progress.result()
        scaler = wider_scaler(found.scaler, len(context.encoder.feature_names))
        return Found(scaler, self._widened(context, found.state))

    def _widened(self, context: Context, state: MMState) -> MMState:
        encoder, layout = context.encoder, self._frozen.encoder.layout
        state = copy_state(state)
        if layout != encoder.layout:
            moves = context.moves(layout)
            state = widen(state, moves.gate_at, encoder.gate_width, moves.expert_at, encoder.expert_width)
        for index in range(self._frozen.targets.n_outputs, context.targets.n_outputs):
            rng = np.random.default_rng((context.options.seed, index))
            state = with_class(state, rng, encoder.n_expert_features, context.steps(self.n + 1))
        return state

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, AnyArray]:
        """Return what identifies the fit, given the buffer, as named arrays."""
        counts = [self.n, len(self._frozen.encoder.columns.entries), self._frozen.targets.n_outputs, self.is_brief]
        return {"warmup.search": np.array(counts, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], context: Context, one: WarmUpBuffer) -> Search | None:
        """Return the fit that a checkpoint describes, if any, which has not made a step yet.

        Raises:
            CheckpointError: there can be no such fit to this buffer.
        """
        if "warmup.search" not in arrays:
            return None
        n, n_entries, n_outputs, is_brief = array_of(arrays, "warmup.search", "int64", (4,), least=0.0).tolist()
        encoder = context.encoder
        possible = 0 < n <= one.count and n_entries <= len(encoder.columns.entries) and is_brief < 2
        require(possible, f"array warmup.search holds {n, n_entries, is_brief}, which does not fit the buffer")
        known = context.targets.n_outputs
        fixed = context.family.is_metric and n_outputs == known
        require(
            fixed or (not context.family.is_metric and 0 < n_outputs <= known),
            f"array warmup.search holds {n_outputs} outputs or classes, but the model has {known}",
        )
        X, Y, weights = (array[:n] for array in one.rows())
        require(
            fixed or bool((n_outputs > Y).all()),
            f"array warmup.search holds {n_outputs} classes, but there are more in its rows",
        )
        frozen = context.copy()
        frozen.encoder = encoder.with_first(n_entries)
        frozen.targets = frozen.targets.before(n_outputs)
        F = len(frozen.encoder.fields)
        require(
            bool(np.isnan(X[:, F:]).all()), f"array warmup.search holds {F} columns, but there are more in its rows"
        )
        rows = np.ascontiguousarray(X[:, :F])
        frozen.encoder.columns.check_rows(rows)
        return cls(frozen, Rows(rows, Y, weights), is_brief=bool(is_brief))

    # -- The fit -------------------------------------------------------------------------------------------------------

    def _job(self) -> Job[Found]:
        X, Y, weights = self._rows
        if self.is_brief:
            return _brief_fit(self._frozen.copy(), X, Y, weights)
        return _fit(self._frozen.copy(), X, Y, weights)


def _restored(frozen: Context, rows: Rows, is_brief: bool) -> Search:
    return Search(frozen, rows, is_brief=is_brief)


def _brief_fit(context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> Job[Found]:
    """Fit a mixture to these rows at little cost.

    Raises:
        UnsoundError: the fit is not finite.
    """
    context.fit_scaler(context.encoder, X, Y)
    yield float(SCALER_COST * X.size)
    buffer = context.buffer(context.encoder, X, Y, weights)
    yield float(DESIGN_COST * buffer.R.size)
    state = yield from context.fit(buffer, context.options.most_experts, restarts=RESTARTS, brief=True)
    return Found(context.encoder.scaler, state)


def _fit(context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> Job[Found]:
    """Fit these rows; if that does not converge, fit them without outliers, and else return random experts."""
    try:
        return (yield from _fit_once(context, X, Y, weights))
    except UnsoundError as error:
        LOGGER.warning(
            "warm-up: the fit did not converge to finite parameters (%s); fitting again, with equal weights and "
            "with outliers clipped",
            error,
        )
    try:
        targets = winsorised(Y) if context.family.is_metric else Y
        return (yield from _fit_once(context, winsorised(X), targets, np.ones(len(X))))
    except UnsoundError as error:
        LOGGER.warning("warm-up: that fit did not converge either (%s); starting from random experts", error)
    state = context.random_start()._replace(n=np.array([len(X)], dtype=np.int64))
    return Found(context.encoder.scaler, state)


def _fit_once(context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> Job[Found]:
    """Fit scales and experts to these rows.

    Raises:
        UnsoundError: the fit is not finite.
    """
    options, encoder = context.options, context.encoder
    context.fit_scaler(encoder, X, Y)
    yield float(SCALER_COST * X.size)
    buffer = context.buffer(encoder, X, Y, weights)
    yield float(DESIGN_COST * buffer.R.size)

    def fit(n_experts: int) -> Job[MMState]:
        return context.fit(buffer, n_experts, restarts=options.warmup.restarts)

    if not options.is_choosing:
        state = yield from fit(options.most_experts)
        return Found(encoder.scaler, state)
    state, costs = yield from model_selection.cheapest(
        context.family,
        buffer,
        fit,
        max_experts=options.most_experts,
        n_outputs=context.targets.n_outputs,
        p_w=encoder.n_gate_features,
        p_v=encoder.n_expert_features,
    )
    LOGGER.info(
        "warm-up: the model has %d experts; nats that each number of experts costs more: %s",
        len(state.masses),
        ", ".join(f"{K}: {cost:.1f}" for K, cost in costs.items()),
    )
    return Found(encoder.scaler, state)
