"""Undo changes that left a model unsound: restore it bit for bit as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from streammoe.engine.interruption import uninterrupted
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.model.tables import Events
from streammoe.types import FloatArray

EVERY = 256
"""Rows after which a new snapshot is taken; calls since then are recorded and replayed. A snapshot takes as long
as some fifty events of a small model, and no more than one event in a hundred should wait for one."""
FIRST_NOTES = 32
"""Rows for which a kernel has room at first; each time twice as many, up to `EVERY`."""
POISON = "poison"
"""The reason for rejecting an event that would leave no finite model."""
Snapshot = TypeVar("Snapshot")
Result = TypeVar("Result")


class Notes:
    """Rows that a kernel has learned, and has noted itself.

    Attributes:
        rows: (n, F + Q + 1) fields, targets and weights, of which the first ones are in use.
        used: (2,) number of rows in use, and of those for which there is room; none once something else was noted.
    """

    def __init__(self, n: int, n_fields: int, n_targets: int) -> None:
        self.rows = np.empty((n, n_fields + n_targets + 1))
        self.used = np.array([0, n])
        self._n_fields = n_fields

    @property
    def n_free(self) -> int:
        """Number of rows that may follow."""
        return int(self.used[1] - self.used[0])

    def events(self) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Yield each event in use: its row, (1, F), its targets, (1, Q), and its weight, (1,)."""
        for i in range(int(self.used[0])):
            row = self.rows[i : i + 1]
            yield row[:, : self._n_fields].copy(), row[:, self._n_fields : -1].copy(), row[:, -1].copy()

    def close(self) -> int:
        """Let no row follow; return how many there are."""
        n = int(self.used[0])
        self.used[1] = n
        return n

    def drop_last(self) -> None:
        """Drop the last row, which was not learned as a whole."""
        self.used[0] -= 1


class Restorable(Protocol[Snapshot]):
    """A model that can be copied and restored."""

    def snapshot(self, spare: Snapshot | None = None) -> Snapshot:
        """Copy everything that learning changes; the arrays of `spare` may be reused."""

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot, which must not be used afterwards."""


class Undo(Generic[Snapshot]):
    """A caller of the functions that change a model, which undoes those that leave it unsound.

    Copies of a model begin with an empty record.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._since: list[tuple[Callable[..., Any], Sequence[Any]]] = []
        """Functions and arguments that lead from the snapshot to the current model."""
        self._rows = 0
        """Rows learned by them."""
        self._has_expired = False
        """Whether the record ends with the current call."""
        self._notes: Notes | None = None
        """What a kernel notes in; it is the last of these arguments, and its rows do not count yet."""
        self._room = FIRST_NOTES
        self._spare: Snapshot | None = None
        """An obsolete snapshot to reuse, since arrays of a large model are slow to allocate."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Undo[Snapshot]:
        return Undo()

    def __reduce__(self) -> tuple[type[Undo[Snapshot]], tuple[()]]:
        return Undo, ()

    def call(
        self,
        model: Restorable[Snapshot],
        rows: int,
        function: Callable[..., Result],
        *arguments: Any,
    ) -> Result:
        """Call a function that learns some rows and return its result; undo its changes if it raises.

        Args:
            model: the model that owns this record.
            rows: number of rows.
            function: takes the model and `arguments`, and may be called again with them. It is not a bound method, so
                that a model and its record do not keep each other alive.
            *arguments: arguments of the function, which the caller may change later.

        Raises:
            UnsoundError: numbers would not be finite; the model is as it was before.
            InvalidEvent: the function rejected its input; the model is as it was before.

        The same holds for anything else that is raised, such as Ctrl-C.
        """
        self.begin(model, rows)
        kept = [_own(argument) for argument in arguments] if rows < EVERY else None
        try:
            result = function(model, *arguments)
            if kept is None or self._has_expired:
                self.forget()
            else:
                self._since.append((function, kept))
                self._rows += rows
        except InvalidEvent:
            raise
        except BaseException:
            self.take_back(model)
            raise
        return result

    def begin(self, model: Restorable[Snapshot], rows: int) -> None:
        """Make sure that a change of the model, which learns so many rows, can be taken back."""
        self._close()
        self._has_expired = False
        if self._snapshot is None or self._rows + rows > EVERY:
            self.forget()
            self._snapshot = model.snapshot(self._spare)
            self._spare = None

    def notes(
        self, model: Restorable[Snapshot], function: Callable[[Any, Notes], None], n_fields: int, n_targets: int
    ) -> Notes:
        """Return where a kernel may note the rows that it learns next, until anything else is noted or taken back.

        Args:
            model: the model that owns this record.
            function: takes the model and notes, and learns their rows again.
            n_fields: number of fields.
            n_targets: number of targets.
        """
        self.begin(model, 1)
        self._notes = Notes(min(self._room, EVERY - self._rows), n_fields, n_targets)
        self._room = min(2 * self._room, EVERY)
        self._since.append((function, (self._notes,)))
        return self._notes

    def _close(self) -> None:
        if self._notes is not None:
            self._rows += self._notes.close()
            self._notes = None

    def expire(self) -> None:
        """End the record with the current call, which took too long to be repeated."""
        self._has_expired = True

    def forget(self) -> None:
        """Drop the record, because the model was changed by other means."""
        self._close()
        self._spare = self._snapshot or self._spare
        self._snapshot = None
        self._since = []
        self._rows = 0

    def take_back(self, model: Restorable[Snapshot]) -> None:
        """Let the model be as it was when the last change that was recorded had been made."""
        self._close()
        snapshot, since = self._snapshot, self._since
        # The model takes over the arrays of the snapshot, so they are no longer spare.
        self._snapshot, self._since, self._rows, self._spare = None, [], 0, None
        if snapshot is None:  # interrupted after everything was learned
            return
        with uninterrupted():
            model.restore(snapshot)
            for function, arguments in since:
                function(model, *arguments)


def poison_error(error: UnsoundError, row: int | None = None) -> InvalidEvent:
    """Return the error for an event that would leave the model with NaN or infinity."""
    where = "the event" if row is None else f"row {row}"
    message = (
        f"{where} would make the model infinite or NaN ({error}), although each value is in range; check its values "
        "and its weight, rescale what is very large or very small, and set prior_strength above 0"
    )
    return InvalidEvent(message, reason=POISON, row=row)


def _own(argument: Any) -> Any:
    """Copy an argument that the caller may change."""
    if isinstance(argument, np.ndarray | list):
        return argument.copy()
    if isinstance(argument, dict):
        return {name: list(column) for name, column in argument.items()}
    if isinstance(argument, Events):
        return Events(*map(_own, argument))
    return argument
