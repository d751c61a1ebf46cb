"""Rows to the engine: through the warm-up while it lasts, then by steps; scores in the target's own units."""

from __future__ import annotations

import math

import numpy as np

from streammoe.engine import mm
from streammoe.engine.warming import WarmUp
from streammoe.estimators.watching import Watching
from streammoe.kernels.state import Trace
from streammoe.types import FloatArray


class Stepping(Watching):
    """Learns and scores rows that were checked, in the model's own order of fields, with categories as codes."""

    def _learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool = False) -> mm.Scores:
        """Learn screened rows: through the warm-up while it lasts, then by steps."""
        self._encoder.notice_unplaced(X, Y)
        if not self._gathers:
            if self._state is None and self.warmup == 0 and self._n_outputs:
                self._start(self._random_start())
            if self._state is not None:
                return self._step(X, Y, weights, traced=traced)
        if self._warm_up is None:
            if not self._n_outputs:
                # No label has been met, so there is nothing to learn and nothing to say.
                nothing = np.full(len(X), np.nan)
                return mm.Scores(nothing, np.empty((len(X), 0)), mm.blank_trace(len(X) if traced else 0))
            self._warm_up = WarmUp(self._family, self._n_outputs, self._encoder.expert_width)
        room = self._warm_up_size() - self._warm_up.count
        targets = np.cumsum(~np.isnan(Y[:, 0]))
        cut = int(np.searchsorted(targets, room)) + 1
        _, R = self._encoder.design(X[:cut])
        first = self._warm_up.learn(X[:cut], R, Y[:cut], weights[:cut], traced=traced)
        if len(targets) == 0 or targets[-1] < room:
            return first
        self._end_warm_up(self._warm_up)
        rest = self._step(X[cut:], Y[cut:], weights[cut:], traced=traced)
        return mm.joined([first, rest])

    def _step(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """Learn rows by steps; what is due at a count happens right behind the event that brings it."""
        learned = np.cumsum(~np.isnan(Y[:, 0]))
        runs = []
        start = before = 0
        while True:
            room = self._next_event() - self.n
            stop = min(int(np.searchsorted(learned, before + room)) + 1, len(X))
            runs.append(self._step_on(X[start:stop], Y[start:stop], weights[start:stop], traced=traced))
            reached = stop > 0 and learned[stop - 1] == before + room
            if reached:
                self._happen()
                before += room
            if stop == len(X):
                return mm.joined(runs)
            start = stop

    def _step_on(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """The same where nothing is due, but maybe at the end."""
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        targets = (Y - scaler.target_center) / scaler.target_scale
        scores = self._learn_features(W, R, targets, weights, traced=traced)
        return self._in_own_units(scores)

    def _score(self, X: FloatArray, Y: FloatArray | None, *, traced: bool = False) -> tuple[mm.Scores, FloatArray]:
        state = self._state
        if state is None:
            if self._warm_up is None:
                losses = np.full(len(X), np.nan)
                empty = np.zeros((len(X), self._n_outputs))
                return mm.Scores(losses, empty, mm.no_trace()), np.empty((len(X), 0))
            state = self._warm_up.recursive
        # Predicting never raises on range: what is too large for the powers to hold counts as the largest that is not.
        W, R = self._encoder.design(self._encoder.bounded(X))
        if self._state is None:
            W = R
        scaler = self._encoder.scaler
        targets = None if Y is None else (Y - scaler.target_center) / scaler.target_scale
        scores, responsibilities = mm.score(
            self._family, state, W, R, targets, n_outputs=self._n_outputs, traced=traced
        )
        return self._in_own_units(scores), responsibilities

    def _in_own_units(self, scores: mm.Scores) -> mm.Scores:
        scaler = self._encoder.scaler
        center, scale = scaler.target_center, scaler.target_scale
        trace = scores.trace
        if len(trace.shares):
            trace = Trace(trace.shares, trace.means * scale + center, trace.variances * (scale * scale))
        return mm.Scores(scores.losses + sum(map(math.log, scale.tolist())), scores.predictions * scale + center, trace)
