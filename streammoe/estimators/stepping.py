"""Rows to the engine: through the warm-up while it lasts, then by steps; scores in the target's own units."""

from __future__ import annotations

import logging
import math

import numpy as np

from streammoe.engine import mm
from streammoe.engine.state import UnsoundError
from streammoe.engine.warming import WarmUp
from streammoe.estimators.watching import Watching
from streammoe.kernels.state import Trace
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")


class Stepping(Watching):
    """Learns and scores rows that were checked, in the model's own order of fields, with categories as codes."""

    def _learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool = False) -> mm.Scores:
        """Learn screened rows: through the warm-up while it lasts, then by steps."""
        self._encoder.notice_unplaced(X, Y)
        if not self._gathers and self._state is None and self.warmup == 0 and self._n_outputs:
            self._start(self._random_start())
        if self._is_buffering and self._warm_up is None:
            if not self._n_outputs:
                # No label has been met, so there is nothing to learn and nothing to say.
                nothing = np.full(len(X), np.nan)
                return mm.Scores(nothing, np.empty((len(X), 0)), mm.blank_trace(len(X) if traced else 0))
            self._warm_up = WarmUp(self._family, self._n_outputs, self._encoder.expert_width)
        return self._step(X, Y, weights, traced=traced)

    def _step(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """Learn rows in pieces; what is due at a count happens right behind the event that brings it."""
        learned = np.cumsum(~np.isnan(Y[:, 0]))
        runs = []
        start = before = 0
        while True:
            room = self._next_event() - self.n
            stop = min(int(np.searchsorted(learned, before + room)) + 1, len(X))
            rows = slice(start, stop)
            step_on = self._warm_on if self._is_buffering else self._step_on
            runs.append(step_on(X[rows], Y[rows], weights[rows], traced=traced))
            if stop > 0 and learned[stop - 1] >= before + room:
                self._happen()
                before = int(learned[stop - 1])
            if stop == len(X):
                return mm.joined(runs)
            start = stop

    def _warm_on(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """The same in the warm-up where nothing is due, but maybe at the end: by one expert, and a mixture if any."""
        warm_up = self._warm_up
        assert warm_up is not None  # noqa: S101 - for the type checker; `_learn` has made one
        W, R = self._encoder.design(X)
        one = warm_up.learn(X, R, Y, weights, traced=traced)
        return self._meanwhile(warm_up, one, W, R, Y, weights, traced=traced)

    def _meanwhile(
        self,
        warm_up: WarmUp,
        one: mm.Scores,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        weights: FloatArray,
        *,
        traced: bool,
    ) -> mm.Scores:
        """Let the mixture, where there is one, learn what one expert has learned, up to an event that it cannot."""
        if warm_up.interim is None:
            return one
        try:
            return warm_up.interim.learn(
                self._family,
                self._schedule,
                W,
                R,
                Y,
                one,
                weights=weights,
                n_outputs=self._n_outputs,
                traced=traced,
            )
        except UnsoundError as error:
            if len(Y) < 2:
                LOGGER.info("warm-up: one expert predicts again; an event leaves no finite mixture (%s)", error)
                warm_up.interim = None
                return one
        middle = len(Y) // 2
        runs = []
        for half in (slice(0, middle), slice(middle, None)):
            said = mm.Scores(one.losses[half], one.predictions[half], Trace(*(array[half] for array in one.trace)))
            runs.append(self._meanwhile(warm_up, said, W[half], R[half], Y[half], weights[half], traced=traced))
        return mm.joined(runs)

    def _step_on(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """The same after the warm-up where nothing is due, but maybe at the end."""
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        targets = (Y - scaler.target_center) / scaler.target_scale
        scores = self._learn_features(W, R, targets, weights, traced=traced)
        return self._in_own_units(scores)

    def _score(self, X: FloatArray, Y: FloatArray | None, *, traced: bool = False) -> tuple[mm.Scores, FloatArray]:
        state = self._state
        mixes = state is not None
        if state is None:
            if self._warm_up is None:
                losses = np.full(len(X), np.nan)
                empty = np.zeros((len(X), self._n_outputs))
                return mm.Scores(losses, empty, mm.no_trace()), np.empty((len(X), 0))
            state, mixes = self._warm_up.served, self._warm_up.serves_mixture
        # Predicting never raises on range: what is too large for the powers to hold counts as the largest that is not.
        W, R = self._encoder.design(self._encoder.bounded(X))
        if not mixes:
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
