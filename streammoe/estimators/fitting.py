"""Batch fits: rows are gathered through the encoder as a warm-up gathers them, and all of them are fitted at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from streammoe.engine import batch, em, warmup
from streammoe.engine.batch import Descent, Listener
from streammoe.engine.state import MMState
from streammoe.errors import ConfigError
from streammoe.estimators.stepping import Stepping
from streammoe.experts import Parameters
from streammoe.kernels.state import Prior
from streammoe.types import FloatArray


class Fitted(NamedTuple):
    """A batch fit, and what the fitted model says of its rows."""

    descent: Descent
    weights: FloatArray
    """(n,) of the rows."""
    targets: FloatArray
    """(n, Q) numbers, or (n, 1) indexes of classes."""
    losses: FloatArray
    """(n,) −log s(y|x) in the target's own units."""
    predictions: FloatArray
    """(n, Q) the regression function, or (n, M) class probabilities."""


class Fitting(Stepping):
    """What `streammoe.batch` does to an estimator."""

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Within it, rows that are learned are only kept, however many there are, for `fit_gathered`."""
        self._gathers = True
        self._guard.forget()
        try:
            yield
        finally:
            self._gathers = False
            self._guard.forget()

    def fit_gathered(
        self,
        method: str,
        *,
        from_model: bool,
        rounds: int,
        tolerance: float,
        step: float | None,
        on_round: Listener | None,
    ) -> Fitted:
        """Fit what was gathered, and stream on from there.

        Args:
            method: see `streammoe.engine.batch.fit`, as for the others.
            from_model: go on from the parameters that serve predictions, with the model's prior and scales; else from
                the starts of a warm-up.

        Raises:
            ConfigError: there are no rows.
            UnsoundError: nothing finite comes of them.
        """
        if self._warm_up is None or not self._warm_up.count:
            raise ConfigError("fit: got no row with a target and a weight above 0; give some to fit")
        X, Y, weights = self._warm_up.rows()
        if not from_model:
            self._fit_scaler(X, Y)
        buffer = self._buffer(X, Y, weights)
        with np.errstate(all="ignore"):  # the result is judged instead
            problem, starts = self._at_the_model(buffer) if from_model else self._at_the_starts(buffer)
        descent, state = batch.fit(
            problem, starts, method, rounds=rounds, tolerance=tolerance, step=step, on_round=on_round
        )
        self._warm_up = None
        self._start(state)
        scores, _ = self._score(X, Y)
        return Fitted(descent, weights, Y, scores.losses, scores.predictions)

    def _at_the_starts(self, buffer: em.Buffer) -> tuple[em.Em, Sequence[Parameters]]:
        problem = warmup.with_own_prior(self._family, buffer, self._n_outputs, self._options)
        rng = np.random.default_rng(self.seed)
        starts, _ = warmup.best_starts(problem, self.n_experts, self.warmup_restarts, rng)
        return problem, starts

    def _at_the_model(self, buffer: em.Buffer) -> tuple[em.Em, Sequence[Parameters]]:
        state = self._state
        assert state is not None  # noqa: S101 - for the type checker; callers have looked
        strength = max(self.prior_strength, warmup.LEAST_STRENGTH)
        problem = em.Em(self._family, buffer, _prior_of(state, strength, self._options.variance_floor), self._options)
        return problem, [Parameters(state.average_gate, state.average_experts, state.average_variances)]


def _prior_of(state: MMState, strength: float, variance_floor: float) -> Prior:
    return Prior(
        strength,
        state.prior_gate_gram,
        state.prior_expert_gram,
        state.prior_experts,
        state.prior_variances,
        variance_floor,
    )
