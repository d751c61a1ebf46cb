"""Steps under watch: where the losses say that the relation has changed, steps and average begin anew.

Steps of a batch are set before it is learned, and a change may be found in its midst. So a batch is learned as if there
were none, which is nearly always right; else it is taken back, and learned anew up to the change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from streammoe.engine import mm
from streammoe.engine.drift import Drift, DriftWatch
from streammoe.engine.model_selection import Race
from streammoe.engine.state import MMState, UnsoundError, copy_state, restart_average
from streammoe.estimators.living import Living
from streammoe.schedules import Steps
from streammoe.types import FloatArray, IntArray

AT_ONCE = 4096
"""Rows that may have to be learned twice."""
Learn = Callable[[int, int, Steps], mm.Scores]
"""Learns rows from one index up to another, by such steps."""


class Watching(Living):
    """Learns features of inputs by steps, once the warm-up is over."""

    def _learn_features(
        self, W: FloatArray, R: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mm.Scores:
        """Learn rows; the arguments are those of `mm.learn`.

        Raises:
            UnsoundError: some of them leave no finite model; the one that there is must be thrown away.
        """

        def learn(start: int, stop: int, steps: Steps) -> mm.Scores:
            rows = slice(start, stop)
            scores = self._learner()(
                steps, W[rows], R[rows], Y[rows], weights=weights[rows], n_outputs=self._n_outputs, traced=traced
            )
            if self._race is not None:
                self._start_race(self._race)
            return scores

        if self._watch is None:
            return learn(0, len(W), self._schedule)
        return self._learn_watched(learn, len(W), np.flatnonzero(~np.isnan(Y[:, 0])), self._watch)

    def _learner(self) -> Callable[..., mm.Scores]:
        """`mm.learn` of the model, or of all candidates in a race, from the steps on."""
        if self._race is not None:
            return partial(self._race.learn, self._family)
        assert self._state is not None  # noqa: S101 - for the type checker; callers have looked
        return partial(mm.learn, self._family, self._state, self._residual, self._options)

    def _learn_watched(self, learn: Learn, n_rows: int, targets: IntArray, watch: DriftWatch) -> mm.Scores:
        """The same with a look at the losses; `targets`: indexes of the rows that have one."""
        if len(targets) <= watch.to_come:
            n = self.n
            scores = learn(0, n_rows, self._steps)
            self._on_drift(watch.take(scores.losses[targets], n))
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
            n, steps = self.n, self._steps
            # If a block ends before the last event, steps may have to change before that.
            before = self._standing() if len(learned) > watch.to_come else None
            try:
                scores = learn(start, stop, steps)
            except UnsoundError:
                if before is None:
                    raise
                # Perhaps it would not have come to this: wider steps may be due before.
                self._stand(before)
                hurried = False
                continue
            drift = watch.take(scores.losses[learned - start], n)
            if drift is not None and before is not None and drift.n < n + len(learned):
                self._stand(before)
                stop = int(learned[drift.n - n - 1]) + 1
                scores = learn(start, stop, steps)
            self._on_drift(drift)
            runs.append(scores)
            start = stop
        return mm.joined(runs)

    def _standing(self) -> Race | tuple[MMState, FloatArray]:
        """A copy of all that steps change."""
        if self._race is not None:
            return self._race.copy()
        assert self._state is not None  # noqa: S101 - for the type checker; callers have looked
        return copy_state(self._state), self._residual.copy()

    def _stand(self, before: Race | tuple[MMState, FloatArray]) -> None:
        """The inverse of `_standing`, which is used up by it."""
        if isinstance(before, Race):
            self._start_race(before)
        else:
            self._state, self._residual = before

    def _on_drift(self, drift: Drift | None) -> None:
        """Begin the average anew, of each candidate in a race; steps do by themselves."""
        if drift is None:
            return
        if self._race is not None:
            self._race.candidates = [
                candidate._replace(state=restart_average(candidate.state)) for candidate in self._race.candidates
            ]
            self._start_race(self._race)
            return
        assert self._state is not None  # noqa: S101 - for the type checker; callers have looked
        self._state = restart_average(self._state)
