"""Rows to the engine: through the warm-up while it lasts, then by steps; scores in the target's own units."""

from __future__ import annotations

import logging

import numpy as np

from streammoe.engine import mm
from streammoe.engine.state import MMState, UnsoundError
from streammoe.engine.warming import WarmUp
from streammoe.estimators.provisional import in_units
from streammoe.estimators.watching import Watching
from streammoe.features import Encoder
from streammoe.kernels.state import Trace
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")


class Stepping(Watching):
    """Learns and scores rows that were checked, in the model's own order of fields, with categories as codes."""

    def _learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool = False) -> mm.Scores:
        """Learn screened rows: through the warm-up while it lasts, then by steps."""
        self._encoder.notice_unplaced(X, Y)
        if not self._gathers and self._state is None and self.options.warmup.size == 0 and self._n_outputs:
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
                self._on_due()
                before = int(learned[stop - 1])
            if stop == len(X):
                return mm.joined(runs)
            start = stop

    def _warm_on(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """The same in the warm-up where nothing is due, but maybe at the end: by one expert, and a mixture if any."""
        warm_up = self._warm_up
        assert warm_up is not None  # noqa: S101 - for the type checker; `_learn` has made one
        _, R = self._encoder.design(X)
        one = warm_up.learn(X, R, Y, weights, traced=traced)
        return self._meanwhile(X, Y, weights, one, traced=traced)

    def _meanwhile(
        self, X: FloatArray, Y: FloatArray, weights: FloatArray, one: mm.Scores, *, traced: bool
    ) -> mm.Scores:
        """Let a mixture, if any, learn what the one expert has learned, up to an event that leaves it unsound."""
        if self._interim is None:
            return one
        try:
            return self._interim.learn(
                self._family,
                self._schedule,
                self._encoder,
                X,
                Y,
                one,
                weights=weights,
                n_outputs=self._n_outputs,
                traced=traced,
            )
        except UnsoundError as error:
            if len(X) < 2:
                LOGGER.info("warm-up: an event leaves no finite mixture (%s); one expert predicts again", error)
                self._interim = None
                return one
        middle = len(X) // 2
        runs = []
        for half in (slice(0, middle), slice(middle, None)):
            said = mm.Scores(one.losses[half], one.predictions[half], Trace(*(array[half] for array in one.trace)))
            runs.append(self._meanwhile(X[half], Y[half], weights[half], said, traced=traced))
        return mm.joined(runs)

    def _step_on(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        """The same after the warm-up where nothing is due, but maybe at the end."""
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        targets = (Y - scaler.target_center) / scaler.target_scale
        scores = self._learn_features(W, R, targets, weights, traced=traced)
        return in_units(scores, scaler)

    def _served(self) -> tuple[MMState | None, Encoder]:
        """The state that predicts now, if any, and what brings rows into its coordinates."""
        if self._state is None and self._warm_up is not None:
            if self._interim is not None and self._interim.leads:
                return self._interim.candidate.state, self._encoder.scaled(self._interim.scaler)
            return self._warm_up.recursive, self._encoder
        return self._state, self._encoder

    def _score(self, X: FloatArray, Y: FloatArray | None, *, traced: bool = False) -> tuple[mm.Scores, FloatArray]:
        state, encoder = self._served()
        if state is None:
            losses = np.full(len(X), np.nan)
            empty = np.zeros((len(X), self._n_outputs))
            return mm.Scores(losses, empty, mm.no_trace()), np.empty((len(X), 0))
        # Predicting never raises on range: what is too large for the powers to hold counts as the largest that is not.
        W, R = encoder.design(encoder.bounded(X))
        if len(state.masses) == 1:  # there is no gate; that of the one expert in a warm-up has the experts' features
            W = R
        scaler = encoder.scaler
        targets = None if Y is None else (Y - scaler.target_center) / scaler.target_scale
        scores, responsibilities = mm.score(
            self._family, state, W, R, targets, n_outputs=self._n_outputs, traced=traced
        )
        return in_units(scores, scaler), responsibilities
