"""How a mixture begins: by a batch fit to the events of the warm-up, or from random experts."""

from __future__ import annotations

import logging
import sys

import numpy as np

from streammoe.engine import em, mm, model_selection, warmup
from streammoe.engine.cost import Shape
from streammoe.engine.interruption import interruptible
from streammoe.engine.model_selection import Entrant, Race
from streammoe.engine.state import MMState, UnsoundError
from streammoe.engine.warming import WarmUp
from streammoe.estimators.core import Core
from streammoe.estimators.provisional import RESTARTS, ProvisionalMixture, next_fit
from streammoe.features import Encoder
from streammoe.kernels.robust import winsorised
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
SCALER_COST = 100
"""Multiply-adds that a value takes, roughly, where scales are fitted: they ask for quantiles."""
DESIGN_COST = 10
"""The same of a feature."""


class Starting(Core):
    """From no state to the first one."""

    def _warm_up_size(self) -> int:
        if self._gathers:
            return sys.maxsize
        if self.options.warmup.size is not None:
            return self.options.warmup.size
        encoder = self._encoder
        n_rows = self._family.n_rows(self._n_outputs)
        shape = Shape(self.most_experts, n_rows, encoder.n_gate_features, encoder.n_expert_features)
        return warmup.default_size(self._family, shape)

    def _next_fit(self, warm_up: WarmUp) -> int:
        """The count of buffered events at which they are fitted next."""
        size = self._warm_up_size()
        # Of one expert there is nothing to fit, and how many there are is only chosen in the end.
        if self._gathers or self.most_experts == 1 or self.is_choosing:
            return size
        return next_fit(warm_up.count, size)

    def _fit_buffered(self, warm_up: WarmUp) -> None:
        """The fit that is due at this count."""
        if warm_up.count >= self._warm_up_size():
            self._end_warm_up(warm_up)
        else:
            self._fit_meanwhile(warm_up)

    def _fit_meanwhile(self, warm_up: WarmUp) -> None:
        """Fit a mixture to what is buffered so far, at little cost, for the time until the buffer is full."""
        X, Y, weights = warm_up.rows()
        encoder = self._encoder.copy()
        self._fit_scaler(encoder, X, Y)
        try:
            state = self._fit(self._buffer(encoder, X, Y, weights), self.most_experts, restarts=RESTARTS, brief=True)
        except UnsoundError as error:
            self._interim = None
            LOGGER.info("warm-up: nothing finite comes of a fit to %d events (%s)", warm_up.count, error)
            return
        self._interim = ProvisionalMixture.after(self._interim, self._candidate(state), encoder.scaler)
        LOGGER.info("warm-up: a mixture fitted to %d events predicts where it does better", warm_up.count)

    def _fit(self, buffer: em.Buffer, n_experts: int, *, restarts: int, brief: bool = False) -> MMState:
        return warmup.fit(
            self._family,
            buffer,
            n_experts=n_experts,
            n_outputs=self._n_outputs,
            restarts=restarts,
            seed=self.seed,
            options=self._new_options(n_experts),
            brief=brief,
        )

    def _end_warm_up(self, warm_up: WarmUp) -> None:
        X, Y, weights = warm_up.rows()
        LOGGER.info(
            "warm-up: fitting %s experts with %d features to %d events",
            f"1 to {self.most_experts}" if self.is_choosing else self.most_experts,
            self._encoder.n_expert_features,
            len(X),
        )
        try:
            entrants = self._fitted(X, Y, weights)
        except UnsoundError as error:
            LOGGER.warning(
                "warm-up: nothing finite comes of a fit (%s); fitting once more, to all events alike and with values "
                "that are far out moved to the edge of the others",
                error,
            )
            entrants = self._fitted_to_what_is_near(X, Y)
        self._warm_up = self._interim = None
        if len(entrants) == 1:
            self._start(entrants[0].state)
            if self.is_choosing:
                LOGGER.info("warm-up: of 1 to %d experts, only %d can be fitted", self.most_experts, self._n_serving())
            return
        candidates = [self._candidate(entrant.state) for entrant in entrants]
        totals = np.array([entrant.total for entrant in entrants])
        until = len(X) + model_selection.race_length(len(X))
        self._start_race(Race(candidates, totals, until))
        LOGGER.info(
            "warm-up: %s experts are the best of 1 to %d; they learn side by side until event %d",
            ", ".join(str(len(entrant.state.masses)) for entrant in entrants),
            self.most_experts,
            until,
        )

    def _n_serving(self) -> int:
        K = self.chosen_n_experts
        assert K is not None  # noqa: S101 - for the type checker; callers have started a mixture
        return K

    def _fitted_to_what_is_near(self, X: FloatArray, Y: FloatArray) -> list[Entrant]:
        """The entrants after a warm-up on rows of which nothing finite comes; of random experts in the worst case."""
        try:
            return self._fitted(winsorised(X), winsorised(Y) if self._family.is_metric else Y, np.ones(len(X)))
        except UnsoundError as error:
            LOGGER.warning("warm-up: nothing finite comes of that either (%s); starting from random experts", error)
        return [Entrant(self._random_start()._replace(n=np.array([len(X)], dtype=np.int64)), 0.0)]

    def _fitted(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> list[Entrant]:
        """The states after a warm-up on these rows, whose scales are taken: one, or the best of several K.

        Raises:
            UnsoundError: nothing finite comes of them.
        """
        self._fit_scaler(self._encoder, X, Y)
        buffer = self._buffer(self._encoder, X, Y, weights)

        def fit(n_experts: int) -> MMState:
            return self._fit(buffer, n_experts, restarts=self.options.warmup.restarts)

        if not self.is_choosing:
            return [Entrant(fit(self.most_experts), 0.0)]
        encoder = self._encoder
        return model_selection.entrants(
            self._family,
            buffer,
            fit,
            max_experts=self.most_experts,
            n_outputs=self._n_outputs,
            p_w=encoder.n_gate_features,
            p_v=encoder.n_expert_features,
        )

    def _fit_scaler(self, encoder: Encoder, X: FloatArray, Y: FloatArray) -> None:
        # Class indexes are not for scaling.
        targets = Y if self._family.is_metric else np.zeros_like(Y)
        interruptible(SCALER_COST * (X.size + Y.size), encoder.fit_scaler, X, targets, standardize=self.standardize)

    def _buffer(self, encoder: Encoder, X: FloatArray, Y: FloatArray, weights: FloatArray) -> em.Buffer:
        """Raw rows as batch fits take them, in coordinates of the encoder's."""
        scaler = encoder.scaler
        W, R = interruptible(DESIGN_COST * len(X) * encoder.expert_width, encoder.design, X)
        targets = (Y - scaler.target_center) / scaler.target_scale
        return em.Buffer(W, R, targets, np.ascontiguousarray(weights))

    def _random_start(self) -> MMState:
        return mm.random_start(
            self._family,
            n_experts=1 if self.is_choosing else self.most_experts,
            p_w=self._encoder.gate_width,
            p_v=self._encoder.expert_width,
            n_outputs=self._n_outputs,
            prior_strength=self.prior_strength,
            seed=self.seed,
            n_features=self._encoder.n_expert_features,
        )
