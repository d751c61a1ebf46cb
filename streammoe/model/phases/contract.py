"""The protocol of the phases of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.model_selection import Candidate
from streammoe.engine.state import MMState
from streammoe.features import Encoder
from streammoe.model.context import Context, Moves
from streammoe.types import AnyArray, FloatArray

Change: TypeAlias = Callable[[MMState], MMState]
"""Makes a state with more columns or classes of one with fewer."""


class Phase(ABC):
    """One phase of a model: it learns and scores rows, and returns the next phase when that is due.

    Rows were checked; they are in the model's own order of fields, with categories as codes.

    Attributes:
        leader: the mixture that serves, if there is one.
        n_candidates: how many mixtures learn side by side.
    """

    refits: ClassVar[bool] = False
    """Whether what falls due is a fit, which takes too long to be repeated."""
    leader: Candidate | None = None
    n_candidates: int = 0

    @property
    @abstractmethod
    def n(self) -> int:
        """Events learned, those in a buffer and those that wait for their group included."""

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
        """Learn raw rows, of which at most the last one makes something due.

        Args:
            context: of the model.
            X: (n, F); Y: (n, Q), NaN where there is no target; weights: (n,).
            traced: whether to keep what each expert said.

        Raises:
            UnsoundError: some of them leave no finite model; the one that there is must be thrown away.
        """

    @abstractmethod
    def served(self, context: Context) -> tuple[MMState | None, Encoder]:
        """Return the state that predicts now, if any, and what brings rows into its coordinates."""

    @abstractmethod
    def widen(self, context: Context, moves: Moves) -> None:
        """Follow the encoder after it grew."""

    @abstractmethod
    def add_class(self, context: Context, rng: np.random.Generator) -> None:
        """Make room for a label that was just added to the targets."""

    @abstractmethod
    def arrays(self) -> dict[str, AnyArray]:
        """Return all that shapes what comes next, by name."""

    @property
    def residual(self) -> FloatArray:
        """The running means behind the convergence residual, of all mixtures."""
        return np.zeros(0)

    @abstractmethod
    def copy(self, spare: Phase | None = None) -> Phase:
        """Return a phase that learning changes independently of this one; arrays of `spare` may be reused."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Return whether every number that predictions depend on is finite."""
