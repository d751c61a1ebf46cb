"""The phases before there is a mixture: a blank model, then the warm-up, which ends with a batch fit."""

from __future__ import annotations

import logging
import sys

import numpy as np

from streammoe.engine import mixture, model_selection, warmup
from streammoe.engine.model_selection import Entrant
from streammoe.engine.state import MMState, UnsoundError, is_finite, widen, with_class
from streammoe.engine.warming import RESCALED_AT, OneExpert, next_rescaling
from streammoe.features import Encoder
from streammoe.kernels.robust import winsorised
from streammoe.kernels.state import Trace
from streammoe.model.context import Context, Moves
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.provisional import RESTARTS, ProvisionalMixture, in_units, next_fit
from streammoe.model.phases.streaming import Mixture, Race, Streaming
from streammoe.scaling import Scaler, wider_scaler
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")


class Empty(Phase):
    """The phase in which nothing has been learned.

    Args:
        is_gathering: whether rows are only gathered for a batch fit.
    """

    def __init__(self, *, is_gathering: bool = False) -> None:
        self._is_gathering = is_gathering

    @property
    def n(self) -> int:
        return 0

    def begin(self, context: Context) -> Phase:
        if not context.targets.n_outputs:
            return self
        if self._is_gathering:
            return Gathering(empty_buffer(context))
        if context.options.warmup.size == 0:
            return Mixture(context.candidate(context.random_start()))
        return WarmUp(empty_buffer(context))

    def next_due(self, context: Context) -> int:
        return sys.maxsize

    def on_due(self, context: Context) -> Phase:
        return self

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        """Do nothing: no label has been encountered, so there is nothing to learn or predict."""
        nothing = np.full(len(X), np.nan)
        return mixture.Scores(nothing, np.empty((len(X), 0)), mixture.blank_trace(len(X) if traced else 0))

    def served(self, context: Context) -> tuple[None, Encoder]:
        return None, context.encoder

    def widen(self, context: Context, moves: Moves) -> None:
        """Do nothing."""

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        """Do nothing."""

    def arrays(self) -> dict[str, AnyArray]:
        return {}

    def copy(self, spare: Phase | None = None) -> Empty:
        return self

    def is_finite(self) -> bool:
        return True


class WarmUp(Phase):
    """The phase in which rows are buffered; one expert learns them, and in a long warm-up also a provisional mixture.

    Attributes:
        one: the buffer, and the one expert.
        provisional: the provisional mixture, if any.
    """

    refits = True

    def __init__(self, one: OneExpert, provisional: ProvisionalMixture | None = None) -> None:
        self.one = one
        self.provisional = provisional

    @property
    def n(self) -> int:
        return self.one.count

    def next_due(self, context: Context) -> int:
        size = _size(context)
        rescaling = next_rescaling(self.n) if context.options.standardize else size
        # One expert needs no provisional fit, and the number of experts is selected only at the end.
        if context.options.most_experts == 1 or context.options.is_choosing:
            return min(rescaling, size)
        return min(rescaling, next_fit(self.n, size))

    def on_due(self, context: Context) -> Phase:
        size = _size(context)
        if self.n >= size:
            return self._ended(context)
        if context.options.standardize and self.n in RESCALED_AT:
            self._rescale(context)
        if self.n == next_fit(self.n - 1, size):
            self._fit_provisional(context)
        return self

    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        encoder = self._encoder_of_one(context)
        _, R = encoder.design(X)
        one = in_units(self.one.learn(X, R, Y, weights, traced=traced), encoder.scaler)
        return self._learn_provisional(context, X, Y, weights, one, traced=traced)

    def _learn_provisional(
        self,
        context: Context,
        X: FloatArray,
        Y: FloatArray,
        weights: FloatArray,
        one: mixture.Scores,
        *,
        traced: bool,
    ) -> mixture.Scores:
        """Let the mixture, if any, learn what the one expert has learned, up to an event that leaves it unsound."""
        if self.provisional is None:
            return one
        try:
            return self.provisional.learn(context, X, Y, weights, one, traced=traced)
        except UnsoundError as error:
            if len(X) < 2:
                LOGGER.info("warm-up: an event makes the mixture infinite (%s); one expert predicts again", error)
                self.provisional = None
                return one
        middle = len(X) // 2
        runs = []
        for half in (slice(0, middle), slice(middle, None)):
            said = mixture.Scores(one.losses[half], one.predictions[half], Trace(*(array[half] for array in one.trace)))
            runs.append(self._learn_provisional(context, X[half], Y[half], weights[half], said, traced=traced))
        return mixture.joined(runs)

    def served(self, context: Context) -> tuple[MMState, Encoder]:
        provisional = self.provisional
        if provisional is not None and provisional.leads:
            return provisional.candidate.state, context.encoder.scaled(provisional.scaler)
        return self.one.recursive, self._encoder_of_one(context)

    def widen(self, context: Context, moves: Moves) -> None:
        encoder = context.encoder
        self.one.widen(len(encoder.fields), moves.expert_at, encoder.expert_width)
        if self.one.scaler is not None:
            self.one.scaler = wider_scaler(self.one.scaler, len(encoder.feature_names))
        if self.provisional is not None:
            self.provisional.change(
                context,
                lambda state: widen(state, moves.gate_at, encoder.gate_width, moves.expert_at, encoder.expert_width),
            )

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        n_features, gamma = context.encoder.n_expert_features, context.steps(self.n + 1)
        self.one.add_class(rng, n_features)
        if self.provisional is not None:
            self.provisional.change(context, lambda state: with_class(state, rng, n_features, gamma))

    def arrays(self) -> dict[str, AnyArray]:
        return self.one.arrays() | (self.provisional.arrays() if self.provisional is not None else {})

    def copy(self, spare: Phase | None = None) -> WarmUp:
        return WarmUp(self.one.copy(), self.provisional and self.provisional.copy())

    def is_finite(self) -> bool:
        return is_finite(self.one.recursive)

    # -- Scales of the one expert --------------------------------------------------------------------------------------

    def _encoder_of_one(self, context: Context) -> Encoder:
        """Return the encoder that gives the one expert its features."""
        return context.encoder if self.one.scaler is None else context.encoder.scaled(self.one.scaler)

    def _rescale(self, context: Context) -> None:
        """Scale what the one expert sees by the moments of the buffered rows, and let it learn these again."""
        X, Y, _ = self.one.rows()
        scaler = scaler_of(context, X, Y)
        try:
            self.one.learn_again(scaler, context.encoder.scaled(scaler).design(X)[1])
        except UnsoundError as error:
            LOGGER.info("warm-up: inputs keep their scale, since with another %s would not be finite", error)

    # -- Fits ----------------------------------------------------------------------------------------------------------

    def _fit_provisional(self, context: Context) -> None:
        """Fit a provisional mixture to the rows buffered so far, at little cost."""
        X, Y, weights = self.one.rows()
        encoder = context.encoder.copy()
        context.fit_scaler(encoder, X, Y)
        try:
            buffer = context.buffer(encoder, X, Y, weights)
            state = context.fit(buffer, context.options.most_experts, restarts=RESTARTS, brief=True)
        except UnsoundError as error:
            self.provisional = None
            LOGGER.info("warm-up: the fit to %d events did not converge to finite parameters (%s)", self.n, error)
            return
        self.provisional = ProvisionalMixture.after(self.provisional, context.candidate(state), encoder.scaler)
        LOGGER.info("warm-up: fitted a mixture to %d events; it predicts while it does better", self.n)

    def _ended(self, context: Context) -> Streaming:
        """Fit the buffer and return the mixture, or a race of several."""
        options = context.options
        X, Y, weights = self.one.rows()
        LOGGER.info(
            "warm-up: fitting %s experts with %d features to %d events",
            f"1 to {options.most_experts}" if options.is_choosing else options.most_experts,
            context.encoder.n_expert_features,
            len(X),
        )
        try:
            entrants = _fitted(context, X, Y, weights)
        except UnsoundError as error:
            LOGGER.warning(
                "warm-up: the fit did not converge to finite parameters (%s); fitting again, with equal weights and "
                "with outliers clipped",
                error,
            )
            entrants = _fitted_without_outliers(context, X, Y)
        if len(entrants) == 1:
            phase = Mixture(context.candidate(entrants[0].state))
            if options.is_choosing:
                K = len(phase.leader.state.masses)
                LOGGER.info("warm-up: of 1 to %d experts, only %d can be fitted", options.most_experts, K)
            return phase
        candidates = [context.candidate(entrant.state) for entrant in entrants]
        totals = np.array([entrant.total for entrant in entrants])
        until = len(X) + model_selection.race_length(len(X))
        LOGGER.info(
            "warm-up: %s experts are the best of 1 to %d; they learn in parallel until event %d",
            ", ".join(str(len(entrant.state.masses)) for entrant in entrants),
            options.most_experts,
            until,
        )
        return Race(candidates, totals, until)


class Gathering(WarmUp):
    """The phase in which any number of rows are buffered for a batch fit.

    Attributes:
        before: the phase that serves in the meantime, if there is a mixture.
    """

    def __init__(self, one: OneExpert, before: Streaming | None = None) -> None:
        super().__init__(one)
        self.before = before
        self._follow()

    def _follow(self) -> None:
        if self.before is not None:
            self.leader, self.n_candidates = self.before.leader, self.before.n_candidates

    @property
    def n(self) -> int:
        return self.one.count if self.before is None else self.before.n

    def next_due(self, context: Context) -> int:
        return sys.maxsize

    def served(self, context: Context) -> tuple[MMState, Encoder]:
        return super().served(context) if self.before is None else self.before.served(context)

    def widen(self, context: Context, moves: Moves) -> None:
        super().widen(context, moves)
        if self.before is not None:
            self.before.widen(context, moves)
            self._follow()

    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        super().add_class(context, rng)
        if self.before is not None:
            self.before.add_class(context, rng)
            self._follow()

    def copy(self, spare: Phase | None = None) -> Gathering:
        return Gathering(self.one.copy(), self.before and self.before.copy())


def scaler_of(context: Context, X: FloatArray, Y: FloatArray) -> Scaler:
    """Return the scaler by the moments of raw rows."""
    encoder = context.encoder.copy()
    context.fit_scaler(encoder, X, Y)
    return encoder.scaler


def empty_buffer(context: Context) -> OneExpert:
    """Return the one expert of a new warm-up, with its empty buffer."""
    return OneExpert(context.family, context.targets.n_outputs, context.encoder.expert_width)


def _size(context: Context) -> int:
    """Return the number of events that end the warm-up."""
    size = context.options.warmup.size
    return warmup.default_size(context.family, context.shape) if size is None else size


def _fitted_without_outliers(context: Context, X: FloatArray, Y: FloatArray) -> list[Entrant]:
    """Fit rows again after clipping outliers; as a last resort, return random experts."""
    try:
        targets = winsorised(Y) if context.family.is_metric else Y
        return _fitted(context, winsorised(X), targets, np.ones(len(X)))
    except UnsoundError as error:
        LOGGER.warning("warm-up: that fit did not converge either (%s); starting from random experts", error)
    return [Entrant(context.random_start()._replace(n=np.array([len(X)], dtype=np.int64)), 0.0)]


def _fitted(context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray) -> list[Entrant]:
    """Fit scales and experts to these rows; return one state, or the best of several K.

    Raises:
        UnsoundError: the fit is not finite.
    """
    options, encoder = context.options, context.encoder
    context.fit_scaler(encoder, X, Y)
    buffer = context.buffer(encoder, X, Y, weights)

    def fit(n_experts: int) -> MMState:
        return context.fit(buffer, n_experts, restarts=options.warmup.restarts)

    if not options.is_choosing:
        return [Entrant(fit(options.most_experts), 0.0)]
    return model_selection.entrants(
        context.family,
        buffer,
        fit,
        max_experts=options.most_experts,
        n_outputs=context.targets.n_outputs,
        p_w=encoder.n_gate_features,
        p_v=encoder.n_expert_features,
    )
