"""Batch fits: rows are gathered through the encoder as a warm-up gathers them, and all of them are fitted at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from streammoe.engine import batch, em, model_selection, warmup
from streammoe.engine.batch import Descent, Listener
from streammoe.engine.state import MMState
from streammoe.errors import ConfigError
from streammoe.estimators.stepping import Stepping
from streammoe.experts import Parameters
from streammoe.kernels.state import Prior
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
Run: TypeAlias = Callable[..., tuple[Descent, MMState]]
"""`streammoe.engine.batch.fit` with the method and its rules."""


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
            self._fit_scaler(self._encoder, X, Y)
        buffer = self._buffer(self._encoder, X, Y, weights)
        run = partial(batch.fit, method=method, rounds=rounds, tolerance=tolerance, step=step, on_round=on_round)
        if from_model:
            descent, state = run(*self._at_the_model(buffer))
        elif self.is_choosing:
            descent, state = self._choose(buffer, run)
        else:
            descent, state = self._refit(buffer, self.most_experts, run)
        self._warm_up = self._interim = None
        self._reported = set()
        self._start(state)
        self._warn_of_want(X, len(state.masses))
        scores, _ = self._score(X, Y)
        return Fitted(descent, weights, Y, scores.losses, scores.predictions)

    def _warn_of_want(self, X: FloatArray, n_experts: int) -> None:
        """Tell the log where rows cannot support what was fitted to them, however well it fits."""
        empty = [repr(self.fields[at]) for at in np.flatnonzero(np.isnan(X).all(axis=0))]
        if empty:
            LOGGER.warning("no row holds a value of %s, so nothing was learned from it", ", ".join(empty))
        sizes = (self._n_outputs, self._encoder.n_gate_features, self._encoder.n_expert_features)
        free = model_selection.n_parameters(self._family, n_experts, *sizes)
        if len(X) < free:
            LOGGER.warning(
                "%d rows were fitted by a model of %d free numbers, which says little about others: give more rows, or "
                "set n_experts lower",
                len(X),
                free,
            )

    def _refit(self, buffer: em.Buffer, n_experts: int, run: Run) -> tuple[Descent, MMState]:
        options = self._new_options(n_experts)
        rng = np.random.default_rng(self.seed)
        with np.errstate(all="ignore"):  # the result is judged instead
            problem = warmup.with_own_prior(self._family, buffer, self._n_outputs, options)
            starts = warmup.best_starts(problem, n_experts, self.options.warmup.restarts, rng)
        return run(problem, starts.thetas, folds=starts.folds)

    def _choose(self, buffer: em.Buffer, run: Run) -> tuple[Descent, MMState]:
        """The number of experts that costs least to describe; no events follow on which others could race it."""
        descents: dict[int, Descent] = {}

        def fit(n_experts: int) -> MMState:
            descents[n_experts], state = self._refit(buffer, n_experts, run)
            return state

        found = model_selection.entrants(
            self._family,
            buffer,
            fit,
            max_experts=self.most_experts,
            n_outputs=self._n_outputs,
            p_w=self._encoder.n_gate_features,
            p_v=self._encoder.n_expert_features,
        )
        best = found[0].state
        return descents[len(best.masses)], best

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
