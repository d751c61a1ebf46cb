"""Rows that are only put aside, for a fit of all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.recent import Rows
from streammoe.model.context import Context, Moves
from streammoe.model.learner import Learner
from streammoe.model.phase import Phase, Served, unlearned
from streammoe.model.streaming import Empty, Streaming
from streammoe.types import FloatArray


def joined_rows(rows: Sequence[Rows], n_fields: int, n_targets: int) -> Rows:
    """Join rows, of which earlier ones may lack the last fields."""
    if not rows:
        return Rows(np.empty((0, n_fields)), np.empty((0, n_targets)), np.empty(0))
    return Rows(*map(np.concatenate, zip(*(each.widened(n_fields) for each in rows), strict=True)))


class Gathering(Phase):
    """The phase in which rows are only put aside.

    Attributes:
        before: the phase that serves in the meantime, if there is one.
    """

    weighs_events = False

    def __init__(self, before: Phase | None = None, rows: Sequence[Rows] = ()) -> None:
        self.before = before
        self._rows = list(rows)
        self._follow()

    def _follow(self) -> None:
        if self.before is not None:
            self.leader = self.before.leader

    @property
    def n(self) -> int:
        return sum(len(each.X) for each in self._rows) if self.before is None else self.before.n

    @property
    def is_fitted(self) -> bool:
        return self.before is not None and self.before.is_fitted

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        """Put the rows aside that have a target; nothing is predicted."""
        self._rows.append(Rows(X, Y, weights).part(~np.isnan(Y[:, 0])))
        return unlearned(context, len(X), traced=traced)

    def rows(self, context: Context) -> Rows:
        """Return the rows put aside, with all fields that there are now."""
        return joined_rows(self._rows, len(context.encoder.fields), context.family.n_targets(context.targets.n_outputs))

    def served(self, context: Context) -> Served:
        return Served([], None) if self.before is None else self.before.served(context)

    def widen(self, context: Context, moves: Moves) -> None:
        if self.before is not None:
            self.before.widen(context, moves)
            self._follow()

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        if self.before is not None:
            self.before.add_class(context, rng)
            self._follow()

    def copy(self, spare: Phase | None = None) -> Gathering:
        return Gathering(self.before and self.before.copy(), self._rows)


@contextmanager
def gathering(learner: Learner) -> Iterator[None]:
    """Only put rows aside that are learned within the block, however many, for `gathered`.

    Afterwards the model is what a fit within the block has made of it, or has learned none of them.
    """
    before = learner.phase
    learner.phase = Gathering(before if isinstance(before, Streaming) else None)
    learner.undo.forget()
    try:
        yield
    finally:
        phase = learner.phase
        if isinstance(phase, Gathering):  # columns and labels may have been added to the phase before
            learner.phase = Empty() if phase.before is None else phase.before
        learner.undo.forget()


def gathered(learner: Learner) -> Rows:
    """Return the rows that were put aside within `gathering`."""
    phase = learner.phase
    return phase.rows(learner.context) if isinstance(phase, Gathering) else joined_rows([], 0, 1)
