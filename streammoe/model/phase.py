"""The protocol of what learns the rows of a model: nothing yet, a portfolio, or rows that are only gathered."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streammoe.columns.scaling import Scaler
from streammoe.engine import mixture
from streammoe.engine.mixture import Candidate
from streammoe.engine.portfolio import Predictor, Trust
from streammoe.model.context import Context, Moves
from streammoe.types import AnyArray, FloatArray


class Served(NamedTuple):
    """What predicts."""

    members: Sequence[Predictor]
    """What each member predicts by, the mixture first; none before anything was learned."""
    trust: Trust | None
    """What weighs them; None if there is one alone."""
    beside: Trust | None = None
    """What weighs them for an event that is not known to be the next one; None if that is the same."""


class Phase(ABC):
    """What learns and scores the rows of a model, and says what does so after them.

    Rows are validated; they are in the model's own order of fields, with categories as codes.

    Attributes:
        leader: the mixture, if there is one.
    """

    weighs_events: bool = True
    """Whether events count relative to those before them; a fit of all of them weighs them together."""
    refits: bool = False
    """Whether the last `on_due` took too long to be repeated."""
    leader: Candidate | None = None

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of events learned."""

    @property
    def is_fitted(self) -> bool:
        """Whether the mixture was fitted or given, so that its parameters mean something."""
        return False

    def may_fit(self, context: Context) -> bool:
        """Return whether a fit that takes long is in progress, or may follow at some count."""
        return not self.is_fitted

    def begin(self, context: Context) -> Phase:
        """Return the phase that learns the next rows."""
        return self

    def next_due(self, context: Context) -> int:
        """Return the count of learned events at which something is due."""
        return sys.maxsize

    def on_due(self, context: Context) -> None:  # noqa: B027 - most do nothing
        """Do what is due at this count."""

    @abstractmethod
    def learn(
        self, context: Context, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool
    ) -> mixture.Scores:
        """Learn raw rows; at most the last one makes something due.

        Args:
            context: context of the model.
            X: (n, F); Y: (n, Q), NaN where there is no target; weights: (n,).
            traced: whether to record each expert's part.

        Raises:
            UnsoundError: some of them leave the model with NaN or infinity; it must be discarded.
        """

    def served(self, context: Context) -> Served:
        """Return what predicts."""
        return Served([], None)

    def widen(self, context: Context, moves: Moves) -> None:  # noqa: B027 - same
        """Adapt to new columns of the encoder."""

    def add_class(self, context: Context, rng: np.random.Generator) -> None:  # noqa: B027 - same
        """Adapt to a label that was just added to the targets."""

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        return {}

    @property
    def residual(self) -> FloatArray:
        """Running means behind the convergence residual."""
        return np.zeros(0)

    @abstractmethod
    def copy(self, spare: Phase | None = None) -> Phase:
        """Return an independent copy; arrays of `spare` may be reused."""


def unlearned(context: Context, n: int, *, traced: bool) -> mixture.Scores:
    """Return the scores of n rows that nothing predicts."""
    predictions = np.full((n, context.targets.n_outputs), np.nan)
    return mixture.Scores(np.full(n, np.nan), predictions, mixture.blank_trace(n if traced else 0))


def in_units(scores: mixture.Scores, scaler: Scaler) -> mixture.Scores:
    """Convert scores to the target's own units."""
    center, scale = scaler.target_center, scaler.target_scale
    trace = scores.trace
    if len(trace.shares):
        trace = trace._replace(means=trace.means * scale + center, variances=trace.variances * (scale * scale))
    losses = scores.losses + sum(map(math.log, scale.tolist()))
    return scores._replace(losses=losses, predictions=scores.predictions * scale + center, trace=trace)
