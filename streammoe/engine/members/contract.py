"""The contract of the members of a portfolio.

A new one is a file here, and `Portfolio.of` and `Portfolio.from_arrays` create it. Its state begins with that of the
mixture, and changes by events alone, one at a time, so that it does not depend on how they were grouped into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

import numpy as np

from streammoe.experts import Parameters
from streammoe.kernels.state import MMState
from streammoe.types import AnyArray, FloatArray, IntArray


class Predictor(NamedTuple):
    """The parameters and features by which a member predicts."""

    theta: Parameters
    terms: IntArray | None = None
    """(P, 2) factors of each feature of its experts; None if it sees the mixture's."""
    is_held: bool = True
    """Whether inputs are held to the range seen before."""


def features_of(R: FloatArray, terms: IntArray) -> FloatArray:
    """Return products of two features each, (n, P), of rows (n, p_v)."""
    first, second = terms.T
    # Unlike an index, `take` returns rows that are contiguous.
    products: FloatArray = np.take(R, first, axis=1)
    products *= np.take(R, second, axis=1)
    return products


class Member(ABC):
    """A model that predicts, and learns from each event after that.

    `arrays` returns what a member holds beyond the mixture that all share; a member without state implements only
    `parameters`. Members learn in the kernel (`streammoe.model.bound` says how).
    """

    name: ClassVar[str]
    """Its name in metrics and checkpoints."""
    is_on_probation: bool = False
    """Whether it leaves when `stays` says so."""
    rests: bool = False
    """Whether it may come back after it has left."""
    terms: IntArray | None = None
    """See `Predictor`."""
    is_held: ClassVar[bool] = True
    """See `Predictor`."""

    @abstractmethod
    def parameters(self, mixture_state: MMState) -> Parameters:
        """Return the parameters that predict now; `mixture_state` is the state of the mixture."""

    def stays(self, weight: float, n: int) -> bool:
        """Return whether it stays, given its weight at a review after n events, of which it may take note."""
        return True

    def comes_back(self, n: int) -> bool:
        """Return whether a member that has left may come back after n events."""
        return True

    def count_only(self) -> None:  # noqa: B027 - most members hold nothing
        """Count an event without learning it."""

    def widen(  # noqa: B027 - most members hold nothing
        self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int
    ) -> None:
        """Adapt to new features, of which `n_features` of the experts are not padding; see `state.widen`."""

    def see(self, terms: IntArray) -> None:  # noqa: B027 - same
        """See these products of two features, (P, 2), besides those that it sees."""

    def add_class(self, n_features: int) -> None:  # noqa: B027 - same
        """Adapt to a new class; `n_features` is the number of expert features, padding excluded."""

    def arrays(self) -> Mapping[str, AnyArray]:
        """Return everything that affects future learning, as arrays named ``name.array``."""
        return {}

    def copy(self, spare: Member | None = None) -> Self:
        """Return an independent copy; arrays of `spare` may be reused."""
        return self

    def is_finite(self) -> bool:
        """Return whether every number of its own is finite."""
        return True
