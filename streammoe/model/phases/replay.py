"""Rows that came while a fit was in progress: its result learns them as if they came now, so many at each event."""

from __future__ import annotations

import logging

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.state import UnsoundError
from streammoe.engine.warmup_buffer import WarmUpBuffer
from streammoe.model.context import Context
from streammoe.model.phases.streaming import Streaming
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")


class Replay:
    """A phase in a context of its own, which learns buffered rows in order.

    What it has learned is a function of the result of the fit, the buffer and the number of rows, so a checkpoint holds
    none of it.

    Attributes:
        context: a copy of the model's context, with the scales of the fit.
        phase: the phase after the rows so far.
        n: number of buffered rows that are fitted or learned.
        cost: −log-likelihood of the rows learned, each predicted before.
    """

    def __init__(self, context: Context, phase: Streaming, n: int, cost: float = 0.0) -> None:
        self.context = context
        self.phase = phase
        self.n = n
        self.cost = cost

    def learn(self, one: WarmUpBuffer, until: int, *, alone: bool) -> None:
        """Learn the buffered rows up to number `until`.

        A row that would leave the phase with NaN or infinity, although one expert could learn it, is only counted.

        Args:
            one: the buffer.
            until: at most as many as there are.
            alone: whether to learn only, and leave out what is due at event counts.
        """
        rows = one.rows()
        while self.n < until:
            room = until if alone else self.phase.next_due(self.context) - self.phase.n
            stop = min(self.n + room, until)
            self._learn(*(array[self.n : stop] for array in rows))
            if stop - self.n == room and not alone:
                self.phase = self.phase.on_due(self.context)
            self.n = stop

    def _learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        context = self.context
        before, encoder = self.phase.copy(), context.encoder.copy()
        detector, recent = context.detector and context.detector.copy(), context.recent and context.recent.copy()
        outliers = context.outliers.copy()
        try:
            scores = self.phase.learn(context, X, Y, weights, traced=False)
        except UnsoundError as error:
            self.phase, context.encoder, context.detector, context.recent = before, encoder, detector, recent
            context.outliers[:] = outliers
            if len(X) == 1:
                LOGGER.info("warm-up: an event makes the mixture infinite (%s); it does not learn from it", error)
                before.count_only(context)
                return
            middle = len(X) // 2
            for half in (slice(0, middle), slice(middle, None)):
                self._learn(X[half], Y[half], weights[half])
            return
        self.cost = cost_after(self.cost, scores, weights)

    def copy(self, spare: Replay | None = None) -> Replay:
        """Return an independent copy; arrays of `spare` may be reused."""
        return Replay(self.context.copy(), self.phase.copy(None if spare is None else spare.phase), self.n, self.cost)


def cost_after(cost: float, scores: mixture.Scores, weights: FloatArray) -> float:
    """Add weighted losses to a cost, one by one, so that it does not depend on cuts; without target they are 0."""
    return float(sum((weights * np.where(np.isnan(scores.losses), 0.0, scores.losses)).tolist(), start=cost))
