"""The way back: a model from before what has made it go bad, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from streammoe.engine.drift import DriftWatch
from streammoe.engine.model_selection import Race
from streammoe.engine.state import MMState, UnsoundError
from streammoe.engine.warming import WarmUp
from streammoe.errors import InvalidEvent
from streammoe.features import Encoder
from streammoe.kernels.state import LearningOptions
from streammoe.model.phases.provisional import ProvisionalMixture
from streammoe.model.tables import Events
from streammoe.types import FloatArray, IntArray

EVERY = 64
"""Rows after which what was learned is copied anew. A copy costs about as much as learning one event, whatever the
size of the model, and what was learned since is kept and learned again."""
POISON = "poison"
"""The reason for refusing an event that would leave no finite model."""


class Snapshot(NamedTuple):
    """All that learning changes in a model."""

    encoder: Encoder
    outputs: dict[str, Any]
    """The attributes that `Outputs.growing` names."""
    warm_up: WarmUp | None
    interim: ProvisionalMixture | None
    state: MMState | None
    residual: FloatArray
    options: LearningOptions
    race: Race | None
    """Where there is one, it holds the state."""
    reseeds: IntArray
    watch: DriftWatch | None


class Guarded(Protocol):
    """A model that knows a way back."""

    def copied(self, spare: Snapshot | None = None) -> Snapshot:
        """All that learning changes."""

    def go_back(self, copied: Snapshot) -> None:
        """The inverse of it."""


class Undo:
    """Learns by a model's own methods, and takes it back where one of them has left it unsound.

    Copies of a model begin with a guard of their own.
    """

    def __init__(self) -> None:
        self._copied: Snapshot | None = None
        self._since: list[tuple[str, Sequence[Any]]] = []
        """Methods and their arguments that lead from the copy to the model as it is."""
        self._rows = 0
        """Learned by them."""
        self._has_expired = False
        """Whether the way back is not to be kept beyond the call that is under way."""
        self._spare: Snapshot | None = None
        """A copy that is no longer wanted: arrays of a large model are slow to come by."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Undo:
        return Undo()

    def __reduce__(self) -> tuple[type[Undo], tuple[()]]:
        return Undo, ()

    def learn(self, model: Guarded, rows: int, method: str, *arguments: Any, shared: bool = True) -> Any:
        """What a method of the model returns that learns so many rows.

        Args:
            model: that has this guard.
            rows: how many.
            method: its name.
            *arguments: of the method.
            shared: whether somebody else may change the arguments later.

        Raises:
            UnsoundError: it would leave numbers that are not finite; the model is as it was before.
            InvalidEvent: the method has refused to begin; the same.

        The same holds for anything else that is raised, such as Ctrl-C.
        """
        self._has_expired = False
        if self._copied is None or self._rows + rows > EVERY:
            self.forget()
            self._copied = model.copied(self._spare)
            self._spare = None
        kept: Sequence[Any] | None = None
        if rows < EVERY:
            kept = [_own(argument) for argument in arguments] if shared else arguments
        try:
            result = getattr(model, method)(*arguments)
            if kept is None or self._has_expired:
                self.forget()
            else:
                self._since.append((method, kept))
                self._rows += rows
        except InvalidEvent:
            raise
        except BaseException:
            self._go_back(model)
            raise
        return result

    def expire(self) -> None:
        """What is learned right now took so long that it is not to be learned again, were a later event taken back."""
        self._has_expired = True

    def forget(self) -> None:
        """The model was changed by other means, so that nothing before it counts."""
        self._spare = self._copied or self._spare
        self._copied = None
        self._since = []
        self._rows = 0

    def _go_back(self, model: Guarded) -> None:
        copied, since = self._copied, self._since
        # The model takes the copy's arrays, so they are spare no more.
        self._copied, self._since, self._rows, self._spare = None, [], 0, None
        if copied is None:  # interrupted once everything was learned
            return
        model.go_back(copied)
        for method, arguments in since:
            getattr(model, method)(*arguments)


def poisonous(error: UnsoundError, row: int | None = None) -> InvalidEvent:
    """The error for an event that would leave no finite model."""
    where = "the event" if row is None else f"row {row}"
    message = (
        f"{where} would make numbers of the model infinite or NaN ({error}), although each value is in range; look at "
        "its values and its weight, rescale what is very large or very small, and let prior_strength be above 0"
    )
    return InvalidEvent(message, reason=POISON, row=row)


def _own(argument: Any) -> Any:
    """The same, safe from whoever else holds it."""
    if isinstance(argument, np.ndarray | list):
        return argument.copy()
    if isinstance(argument, dict):
        return {name: list(column) for name, column in argument.items()}
    if isinstance(argument, Events):
        return Events(*map(_own, argument))
    return argument
