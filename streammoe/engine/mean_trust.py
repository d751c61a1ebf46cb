"""The point prediction of a portfolio, in which each member counts by how small its errors were of late.

A density may be likely and its mean poor: where targets are counts, or repeat, a mixture that has narrow peaks on the
commonest values is far likelier than one expert, and says nothing better about the mean. So the mean has weights of its
own. Candidates are the mean of the served density, and the means of the members.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of
from streammoe.engine import trust
from streammoe.engine.state import copy_array
from streammoe.kernels.portfolio import combine_means
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray

NAME = "mean"


class MeanTrust(Noticed):
    """Weights of the means of a portfolio's members.

    Attributes:
        weights: (1 + m,) the weight of the mean of the served density, and of each member's; they add up to 1.
        surprise: (1,) see `kernels.portfolio.combine_means`.
        squares: (Q,) running mean of the squared errors of what was predicted.
        count: (1,) number of events behind it.
    """

    def __init__(self, weights: FloatArray, surprise: FloatArray, squares: FloatArray, count: AnyArray) -> None:
        self.weights = weights
        self.surprise = surprise
        self.squares = squares
        self.count = count

    @classmethod
    def of(cls, n_members: int, n_outputs: int, *, trusted: bool) -> MeanTrust:
        """Return equal weights, or nearly all of it for the mean of the density if that is `trusted`."""
        weights = trust.beginning(1 + n_members, trusted=trusted)
        return cls(weights, np.zeros(1), np.zeros(n_outputs), np.zeros(1, dtype=np.int64))

    def of_members(self, weights: FloatArray) -> FloatArray:
        """Return how much of the point prediction each member makes up, (m,), given the weights of their densities."""
        parts: FloatArray = self.weights[0] * weights + self.weights[1:]
        return parts

    def combine(
        self, predictions: FloatArray, targets: FloatArray, event_weights: FloatArray, served: FloatArray
    ) -> None:
        """Make of the means of served densities, (n, Q), the point predictions, and learn from the errors.

        Args:
            predictions: (m, n, Q) of the members.
            targets: (n, Q), NaN where there is none.
            event_weights: (n,) how much each row counts; empty if the rows are not learned.
            served: (n, Q), changed in place.
        """
        scratch = np.empty((2, len(self.weights)))
        combine_means(
            self.weights, self.surprise, self.squares, self.count, event_weights, predictions, targets, served, scratch
        )

    def insert(self, at: int, share: float) -> None:
        """Make room for a member that gets this share."""
        self.weights = trust.with_another(self.weights, 1 + at, share)

    def remove(self, at: int) -> None:
        """Let a member go."""
        self.weights = trust.without(self.weights, 1 + at)

    def copy(self, spare: MeanTrust | None = None) -> MeanTrust:
        """Return an independent copy; arrays of `spare` may be reused."""
        weights = copy_array(self.weights, None if spare is None else spare.weights)
        return MeanTrust(weights, self.surprise.copy(), self.squares.copy(), self.count.copy())

    def is_finite(self) -> bool:
        """Return whether every number is finite."""
        return bool(np.isfinite(self.weights).all() and np.isfinite(self.squares).all())

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        return {f"{NAME}_{name}": array for name, array in self.named().items()}

    def named(self) -> dict[str, AnyArray]:
        """Return its arrays by their names."""
        return {"weights": self.weights, "surprise": self.surprise, "squares": self.squares, "count": self.count}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], prefix: str, *, n_members: int, n_outputs: int) -> MeanTrust:
        """Restore the weights from the arrays that `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        weights = trust.restored(arrays, f"{prefix}{NAME}_weights", 1 + n_members)
        squares = array_of(arrays, f"{prefix}{NAME}_squares", "float64", (n_outputs,), least=0.0)
        count = array_of(arrays, f"{prefix}{NAME}_count", "int64", (1,), least=0)
        surprise = trust.restored_surprise(arrays, f"{prefix}{NAME}_surprise")
        return cls(weights, surprise, squares.copy(), count.copy())
