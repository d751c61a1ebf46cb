"""A mixture fitted to part of a long warm-up's buffer, which learns next to the one expert; the better of them serves.

It ends with the warm-up and does not affect the warm-up's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from streammoe.checked import array_of
from streammoe.columns.encoder import Encoder
from streammoe.columns.scaling import Scaler, restored_scaler, wider_scaler
from streammoe.engine import mixture
from streammoe.engine.bound_mixture import BoundMixture
from streammoe.engine.mixture import Candidate
from streammoe.engine.state import MMState, UnsoundError, copy_array, copy_state, state_arrays
from streammoe.kernels.state import Trace
from streammoe.model.context import Context
from streammoe.types import AnyArray, FloatArray, IntArray

FIRST_FIT = 400
"""Events at which the first mixture is fitted."""
GROWTH = 2
"""Each further mixture is fitted to so many times the events of the one before it."""
LARGEST_PART = 0.7
"""Largest fraction of the buffer to fit; beyond it the final fit is so close that another one is not worth its time."""
RESTARTS = 2
HANDICAP = 20.0
"""Nats by which the first mixture must predict better than the one expert before it serves, since few events may be
overfitted. Later mixtures inherit the lead of the one that they replace."""
LARGEST_ERROR = 6.0
"""Larger errors, in units of the targets' scale, count as this: single ones say little about who predicts better."""


def next_fit(n: int, size: int) -> int:
    """Return the next count after n at which buffered events are fitted; `size` is the capacity of the buffer.

    >>> [next_fit(n, 2000) for n in (0, 399, 400, 800)], next_fit(0, 500)
    ([400, 400, 800, 2000], 500)
    """
    due = FIRST_FIT
    while due <= n:
        due *= GROWTH
    return due if due <= LARGEST_PART * size else size


class ProvisionalMixture:
    """A mixture in its own coordinates, with its cost and the one expert's since it was fitted.

    Attributes:
        candidate: the mixture, with everything that its steps need.
        scaler: scaler of the events to which it was fitted.
        totals: (2,) −log-likelihood of the events since the fit, each predicted before it was learned: of the mixture,
            including its handicap, and of the one expert.
        errors: (2,) their squared errors since the fit, in units of the targets' scales: a mixture may be far likelier
            and its mean worse. None for classes, and for a mixture that ended no warm-up: who leads predicts.
    """

    def __init__(
        self, candidate: Candidate, scaler: Scaler, totals: FloatArray, errors: FloatArray | None = None
    ) -> None:
        self.candidate = candidate
        self.scaler = scaler
        self.totals = totals
        self.errors = errors
        self._spare: MMState | None = None
        self._bound: BoundMixture | None = None

    @classmethod
    def after(cls, before: ProvisionalMixture | None, candidate: Candidate, scaler: Scaler) -> ProvisionalMixture:
        """Return a new one, which inherits the lead of the one before it over the one expert, or its deficit."""
        ahead = before is not None and before.leads
        errors = np.zeros(2) if candidate.state.variances.size else None
        return cls(candidate, scaler, np.array([0.0 if ahead else HANDICAP, 0.0]), errors)

    @property
    def leads(self) -> bool:
        """Whether the mixture has cost no more than the one expert."""
        return bool(self.totals[0] <= self.totals[1])

    @property
    def predicts(self) -> bool:
        """Whether it makes the point prediction: it leads, and its errors were no larger."""
        return self.leads and (self.errors is None or bool(self.errors[0] <= self.errors[1]))

    def learn(
        self,
        context: Context,
        X: FloatArray,
        Y: FloatArray,
        weights: FloatArray,
        one: mixture.Scores,
        *,
        traced: bool,
    ) -> mixture.Scores:
        """Learn raw rows that the one expert has learned; return for each row the score of the leader at that point.

        Args:
            context: context of the model.
            X: (n, F) raw rows; Y: (n, Q) targets in their own units; weights: (n,).
            one: the one expert's scores of these rows.
            traced: whether to record each expert's part.

        Raises:
            UnsoundError: some of them leave the mixture with NaN or infinity; it is as it was before, or must be
                discarded if there was a single row.
        """
        state, _, options = self.candidate
        encoder = context.encoder.scaled(self.scaler)
        W, R = encoder.design(encoder.hold(X)[0])
        n_outputs = context.targets.n_outputs
        targets = (Y - self.scaler.target_center) / self.scaler.target_scale
        # The one expert may continue where the mixture cannot, so the events are not rejected. An unsound single row
        # ends the mixture, so there is nothing to restore.
        before, bound = copy_state(state, self._spare) if len(X) > 1 else None, self._bound
        if bound is None or bound.candidate is not self.candidate:
            bound = BoundMixture(context.family, self.candidate, context.options.schedule, n_outputs)
            self._bound = bound
        try:
            own = bound.learn(W, R, targets, weights, traced=traced)
            with np.errstate(over="ignore"):  # the sums are checked instead
                runs = [in_units(own, self.scaler), one]
                totals = _running_totals(self.totals, np.stack([run.losses for run in runs]), weights)
            if not np.isfinite(totals[:, -1]).all():
                raise UnsoundError(["totals"])
        except UnsoundError:
            if before is not None:
                self.candidate = Candidate(before, mixture.new_residual(context.family, before, n_outputs), options)
                self._spare = None
            raise
        self._spare = before or self._spare
        self.totals = totals[:, -1].copy()
        leads = totals[0, :-1] <= totals[1, :-1]
        scores = _led_scores(runs, np.where(leads, 0, 1))
        if self.errors is None:
            return scores
        errors = _running_totals(self.errors, self._squares(runs, Y), weights)
        self.errors = errors[:, -1].copy()
        predicts = leads & (errors[0, :-1] <= errors[1, :-1])
        return scores._replace(predictions=_led_scores(runs, np.where(predicts, 0, 1)).predictions)

    def _squares(self, runs: Sequence[mixture.Scores], Y: FloatArray) -> FloatArray:
        """Return the squared errors of rows by each run, (len(runs), n)."""
        squares = np.zeros((len(runs), len(Y)))
        for i, run in enumerate(runs):
            errors = np.minimum(np.abs(run.predictions - Y) / self.scaler.target_scale, LARGEST_ERROR)
            for q in range(Y.shape[1]):
                squares[i] += errors[:, q] ** 2
        return squares

    def change(self, context: Context, change: Callable[[MMState], MMState]) -> None:
        """Continue from the changed state, which has more columns or classes."""
        self.candidate = context.candidate(change(self.candidate.state))
        self.scaler = wider_scaler(self.scaler, len(context.encoder.feature_names))
        self._spare = None

    def copy(self) -> ProvisionalMixture:
        """Return an independent copy."""
        state, residual, options = self.candidate
        candidate = Candidate(copy_state(state), copy_array(residual, None), options)
        errors = None if self.errors is None else self.errors.copy()
        return ProvisionalMixture(candidate, self.scaler, self.totals.copy(), errors)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        return {
            "warmup.totals": self.totals,
            **({} if self.errors is None else {"warmup.errors": self.errors}),
            **{f"warmup.{name}": array for name, array in self.scaler._asdict().items()},
            **state_arrays(self.candidate.state, "warmup.interim"),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], candidate: Candidate, encoder: Encoder) -> ProvisionalMixture:
        """Restore a provisional mixture from the arrays that `arrays` returned; the candidate was restored already.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        scaler = restored_scaler(arrays, "warmup", len(encoder.feature_names), encoder.n_outputs)
        totals = array_of(arrays, "warmup.totals", "float64", (2,)).copy()
        errors = None
        if candidate.state.variances.size and "warmup.errors" in arrays:
            errors = array_of(arrays, "warmup.errors", "float64", (2,), least=0.0).copy()
        return cls(candidate, scaler, totals, errors)


def in_units(scores: mixture.Scores, scaler: Scaler) -> mixture.Scores:
    """Convert scores to the target's own units."""
    center, scale = scaler.target_center, scaler.target_scale
    trace = scores.trace
    if len(trace.shares):
        trace = Trace(trace.shares, trace.means * scale + center, trace.variances * (scale * scale))
    losses = scores.losses + sum(map(math.log, scale.tolist()))
    return scores._replace(losses=losses, predictions=scores.predictions * scale + center, trace=trace)


def _running_totals(totals: FloatArray, costs: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the totals before each of n rows and after the last one, (m, n + 1).

    Args:
        totals: (m,) before these rows.
        costs: (m, n) of the rows, NaN where a row costs nothing.
        weights: (n,).
    """
    # Summed one by one, starting from the total so far, so that the result does not depend on where batches were cut.
    return np.cumsum(np.column_stack([totals, weights * np.where(np.isnan(costs), 0.0, costs)]), axis=1)


def _led_scores(runs: Sequence[mixture.Scores], leads: IntArray) -> mixture.Scores:
    """Return for each row the scores of the run that `leads` names; experts that it lacks get a share of 0."""
    if not len(leads) or (leads == leads[0]).all():
        return runs[int(leads[0]) if len(leads) else 0]
    losses = np.choose(leads, [run.losses for run in runs])
    predictions = np.choose(leads[:, None], [run.predictions for run in runs])
    parts = []
    for i in range(len(Trace._fields)):
        arrays = [run.trace[i] for run in runs]
        whole = np.zeros((len(arrays[0]), *np.max([array.shape[1:] for array in arrays], axis=0)))
        for at, array in enumerate(arrays):
            rows = np.flatnonzero(leads == at) if len(array) else np.empty(0, dtype=np.int64)
            padding = [(0, wide - size) for size, wide in zip(array.shape[1:], whole.shape[1:], strict=True)]
            whole[rows] = np.pad(array[rows], [(0, 0), *padding])
        parts.append(whole)
    return mixture.Scores(losses, predictions, Trace(*parts))
