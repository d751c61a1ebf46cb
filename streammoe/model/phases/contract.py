"""The protocol of the phases of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.engine import mixture
from streammoe.engine.mean_trust import MeanTrust
from streammoe.engine.members.contract import Predictor
from streammoe.engine.mixture import Candidate
from streammoe.engine.state import MMState
from streammoe.model.context import Context, Moves
from streammoe.types import AnyArray, FloatArray

Change: TypeAlias = Callable[[MMState], MMState]
"""A function from a state to one with more columns or classes."""


class Served(NamedTuple):
    """What predicts, and the encoder for its coordinates."""

    members: Sequence[Predictor]
    """What each member predicts by; none before anything was learned. The first is the mixture, or the one expert."""
    weights: FloatArray
    """(m,) the weight of each."""
    encoder: Encoder
    means: MeanTrust | None = None
    """Weights of their means in the point prediction, if it has any of its own."""
    point: Served | None = None
    """What makes the point prediction, if it is something else."""

    @classmethod
    def alone(cls, state: MMState, encoder: Encoder) -> Served:
        """Return one mixture, which predicts by its average."""
        return cls([Predictor(mixture.served_parameters(state))], np.ones(1), encoder)


class Phase(ABC):
    """A phase of a model: it learns and scores rows, and returns the next phase when that is due.

    Rows are validated; they are in the model's own order of fields, with categories as codes.

    Attributes:
        leader: the mixture that serves predictions, if any.
    """

    weighs_events: bool = True
    """Whether events count relative to those before them; a fit of all of them weighs them together."""
    refits: bool = False
    """Whether the last `on_due` began a fit, which takes too long to be repeated."""
    leader: Candidate | None = None

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of events learned, including those in a buffer."""

    def begin(self, context: Context) -> Phase:
        """Return the phase that learns the next rows."""
        return self

    @abstractmethod
    def next_due(self, context: Context) -> int:
        """Return the count of learned events at which something is due."""

    @abstractmethod
    def on_due(self, context: Context) -> Phase:
        """Do what is due at this count, and return the phase after it."""

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

    @abstractmethod
    def served(self, context: Context) -> Served:
        """Return what predicts."""

    @abstractmethod
    def widen(self, context: Context, moves: Moves) -> None:
        """Adapt to new columns of the encoder."""

    @abstractmethod
    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        """Adapt to a label that was just added to the targets."""

    @abstractmethod
    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""

    @property
    def residual(self) -> FloatArray:
        """Running means behind the convergence residual."""
        return np.zeros(0)

    @abstractmethod
    def copy(self, spare: Phase | None = None) -> Phase:
        """Return an independent copy; arrays of `spare` may be reused."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Return whether every number that predictions depend on is finite."""
