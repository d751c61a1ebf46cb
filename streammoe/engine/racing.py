"""Several candidates side by side: each learns every event, the best so far serves, and a fixed count decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from streammoe.engine import mm
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.state import MMState, copy_array, copy_state
from streammoe.experts import Family
from streammoe.kernels.state import LearningOptions, Trace
from streammoe.schedules import Steps
from streammoe.types import FloatArray, IntArray

CHARGE_EVERY = 100
"""Events after which candidates pay for what the division of the prior has gained them."""


class Runner(NamedTuple):
    """A candidate: a mixture with all that its steps need."""

    state: MMState
    residual: FloatArray
    options: LearningOptions


class Race:
    """Candidates, which may differ in their number of experts, and what the events so far have cost each of them.

    Attributes:
        runners: the candidates; earlier ones win ties.
        totals: (len(runners),) −log-likelihood of the events since the start, each predicted before it was learned, on
            top of what each candidate began with, and of what it was charged.
        until: events learned at which it is decided.
        expert: where the last candidate is the first with an expert begun anew, which one; else −1.
    """

    def __init__(self, runners: Sequence[Runner], totals: FloatArray, until: int, expert: int = -1) -> None:
        self.runners = list(runners)
        self.totals = totals
        self.until = until
        self.expert = expert

    def leader(self) -> Runner:
        """The candidate that has cost least so far."""
        return self.runners[int(self.totals.argmin())]

    def due(self, n: int) -> int:
        """The next count after n at which candidates are charged, or the race decided."""
        if self.expert >= 0:
            return self.until
        return self.until - (self.until - n - 1) // CHARGE_EVERY * CHARGE_EVERY

    def charge(self, n_events: int) -> None:
        """Let candidates of different numbers of experts pay for what the prior has gained them in the last events."""
        self.totals = self.totals + [n_events * prior_gain(runner.state) for runner in self.runners]

    def learn(
        self,
        family: Family,
        steps: Steps,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        *,
        weights: FloatArray,
        n_outputs: int,
        traced: bool,
    ) -> mm.Scores:
        """Let every candidate learn these rows; each row's score is that of whoever led before it.

        Arguments and errors are those of `mm.learn`.
        """
        runs = [
            mm.learn(
                family,
                runner.state,
                runner.residual,
                runner.options,
                steps,
                W,
                R,
                Y,
                weights=weights,
                n_outputs=n_outputs,
                traced=traced,
            )
            for runner in self.runners
        ]
        scores, self.totals = led(runs, self.totals, weights)
        return scores

    def each(self, change: Callable[[MMState], Runner]) -> None:
        """Let every candidate go on as another state."""
        self.runners = [change(runner.state) for runner in self.runners]

    def copy(self) -> Race:
        """One that shares nothing with this one."""
        runners = [
            Runner(copy_state(state), copy_array(residual, None), options) for state, residual, options in self.runners
        ]
        return Race(runners, self.totals.copy(), self.until, self.expert)


def led(runs: Sequence[mm.Scores], totals: FloatArray, weights: FloatArray) -> tuple[mm.Scores, FloatArray]:
    """The scores of each row by the run that had cost least before it, earlier ones winning ties.

    Args:
        runs: what each candidate said of the same n rows.
        totals: (len(runs),) what the events before have cost each of them.
        weights: (n,).

    Returns:
        The scores, and the totals with what these rows have cost.
    """
    costs = np.stack([weights * np.where(np.isnan(run.losses), 0.0, run.losses) for run in runs])
    # Added up one by one from the total so far, so that cuts between batches leave no trace.
    sums = np.cumsum(np.column_stack([totals, costs]), axis=1)
    return _chosen(runs, sums[:, :-1].argmin(axis=0)), sums[:, -1].copy()


def _chosen(runs: Sequence[mm.Scores], leads: IntArray) -> mm.Scores:
    """The scores of each row by the run that `leads` names; experts that it does not have get a share of 0."""
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
            whole[rows] = np.pad(array[rows], [(0, 0), *_missing(array, whole)])
        parts.append(whole)
    return mm.Scores(losses, predictions, Trace(*parts))


def _missing(array: FloatArray, whole: FloatArray) -> list[tuple[int, int]]:
    """How to pad all axes but the first of an array to those of another."""
    return [(0, wide - size) for size, wide in zip(array.shape[1:], whole.shape[1:], strict=True)]
