"""Learn rows under a drift detector: where the losses show that the relation has changed, steps and average restart.

Steps of a batch are set before it is learned, and a change may be found in its midst. So a batch is learned as if there
were none, which is nearly always right; else it is undone, and learned again up to the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from streammoe.engine import mm
from streammoe.engine.drift import Drift, DriftWatch
from streammoe.engine.state import UnsoundError
from streammoe.model.context import Context
from streammoe.schedules import Steps
from streammoe.types import FloatArray

AT_ONCE = 4096
"""Rows that may have to be learned twice."""
Learn = Callable[[slice, Steps], mm.Scores]
"""Learns some of the rows by such steps."""


class Restartable(Protocol):
    """Mixtures that can be restored as they were before some rows, and whose average can restart."""

    @property
    def n(self) -> int:
        """Events learned."""

    def copy(self) -> Any:
        """Copy them."""

    def restore(self, copied: Any) -> None:
        """Restore a copy, which is used up by that."""

    def restart_average(self) -> None:
        """Let the average that serves begin with the present parameters."""


def learn_watched(mixtures: Restartable, context: Context, watch: DriftWatch, learn: Learn, Y: FloatArray) -> mm.Scores:
    """Learn rows in pieces, and show their losses to the detector.

    Args:
        mixtures: that `learn` changes.
        context: of the model.
        watch: its detector.
        learn: learns some of the rows.
        Y: (n, Q) targets of the rows, NaN where there is none.
    """
    n_rows = len(Y)
    targets = np.flatnonzero(~np.isnan(Y[:, 0]))
    if len(targets) <= watch.to_come:
        n = mixtures.n
        scores = learn(slice(0, n_rows), context.steps)
        _on_drift(mixtures, watch.take(scores.losses[targets], n))
        return scores
    runs = []
    start = 0
    hurried = True
    while start < n_rows:
        ahead = targets[np.searchsorted(targets, start) :]
        stop = min(start + AT_ONCE, n_rows)
        if len(ahead) >= watch.to_come and not hurried:
            stop = min(stop, int(ahead[watch.to_come - 1]) + 1)
        learned = ahead[: np.searchsorted(ahead, stop)]
        n, steps = mixtures.n, context.steps
        # If a block ends before the last event, steps may have to change before that.
        before = mixtures.copy() if len(learned) > watch.to_come else None
        try:
            scores = learn(slice(start, stop), steps)
        except UnsoundError:
            if before is None:
                raise
            # Perhaps it would not have come to this: wider steps may be due before.
            mixtures.restore(before)
            hurried = False
            continue
        drift = watch.take(scores.losses[learned - start], n)
        if drift is not None and before is not None and drift.n < n + len(learned):
            mixtures.restore(before)
            stop = int(learned[drift.n - n - 1]) + 1
            scores = learn(slice(start, stop), steps)
        _on_drift(mixtures, drift)
        runs.append(scores)
        start = stop
    return mm.joined(runs)


def _on_drift(mixtures: Restartable, drift: Drift | None) -> None:
    if drift is not None:  # steps restart by themselves
        mixtures.restart_average()
