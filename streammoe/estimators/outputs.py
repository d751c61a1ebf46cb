"""What an estimator adds to what all share: its family of experts, and what its targets look like."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from streammoe.errors import InvalidEvent
from streammoe.estimators.arguments import Arguments
from streammoe.experts import Family
from streammoe.types import AnyArray, BoolArray, FloatArray


class Outputs(Arguments):
    """Hooks, of which an estimator fills the abstract ones, and the others where its outputs come with events."""

    growing: ClassVar[tuple[str, ...]] = ()
    """Attributes with lists and dicts of its own that learning may lengthen."""

    @property
    @abstractmethod
    def _family(self) -> Family:
        """Of the experts."""

    @property
    @abstractmethod
    def _n_outputs(self) -> int:
        """Q, or the number of classes met."""

    @property
    def _most_outputs(self) -> int:
        """How many there may be in the end."""
        return self._n_outputs

    @property
    def output_names(self) -> list[Any]:
        """Names of the outputs where there may be several, or the labels met so far, in the order of the parameters."""
        return []

    # -- Targets -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _array_targets(self, y: AnyArray, n: int) -> Any:
        """Targets of n rows as users give them, checked, in the form that `_read_targets` takes."""

    @abstractmethod
    def _read_targets(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        """Targets of n rows as numbers; which rows hold a label that is new; and why some are refused."""

    def _check_labels(self, targets: Any, novel: BoolArray) -> None:
        """Raise `InvalidEvent` with its ``row`` if not every new label can be taken in."""

    def _admit(self, targets: Any, at: int) -> float:
        """Make room for the new label of row `at` and return its index."""
        raise NotImplementedError

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def _output_arrays(self) -> dict[str, AnyArray]:
        """What is known of the outputs, by name, for a checkpoint."""
        return {}

    def _restore_outputs(self, arrays: Mapping[str, AnyArray]) -> None:
        """The inverse of `_output_arrays`."""
