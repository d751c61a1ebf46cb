"""What it takes to go back: which generation was saved before anything was in doubt, and what was read since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streammoe.ports import Batch


class Saved(NamedTuple):
    """A generation."""

    generation: int
    learned: int
    """Events that its model had learned."""
    batches: int
    """Batches of this run that had been dealt with when its state was taken."""


class Mark(NamedTuple):
    """The moment at which a checkpoint's state was taken."""

    learned: int
    batches: int
    """Both as in `Saved`."""


class WayBack:
    """Knows the last good generation, and keeps every batch since then.

    Args:
        keep: generations that the store keeps anyway, as `least`.
        found: what `to_json` of an earlier run gave.
        keeps_batches: whether the records since are wanted.
    """

    def __init__(self, keep: int, found: Sequence[Sequence[int]] = (), *, keeps_batches: bool) -> None:
        self.least = keep
        self._saved = [Saved(generation, learned, 0) for generation, learned in found]
        self._keeps_batches = keeps_batches
        self._batches: list[Batch] = []
        self._dealt_with = 0

    def took(self, batch: Batch) -> None:
        """A batch has been dealt with."""
        self._dealt_with += 1
        if self._keeps_batches:
            self._batches.append(batch)

    def mark(self, learned: int) -> Mark:
        """This moment, at which the model has learned so many events."""
        return Mark(learned, self._dealt_with)

    def saved(self, generation: int, mark: Mark, sound: int) -> None:
        """The state of that moment was saved, and nothing up to event number `sound` is in doubt."""
        self._saved.append(Saved(generation, *mark))
        good = self.good(sound)
        if good is not None:
            self._saved = [saved for saved in self._saved if saved.generation >= good.generation]
            first = self._dealt_with - len(self._batches)
            del self._batches[: max(good.batches - first, 0)]

    def good(self, sound: int) -> Saved | None:
        """The newest generation that nothing is in doubt of."""
        return max((saved for saved in self._saved if saved.learned <= sound), default=None)

    def keep(self, newest: int, sound: int) -> int:
        """How many generations are to be kept once another one is saved after the `newest`, the last good one too."""
        good = self.good(sound)
        return self.least if good is None else max(self.least, newest + 2 - good.generation)

    @property
    def batches(self) -> list[Batch]:
        """All since the last good generation, in order."""
        return self._batches

    def begin_anew(self, good: Saved) -> None:
        """The model is that of this generation again, and all that was read since has been set aside."""
        self._saved = [good._replace(batches=self._dealt_with)]
        self._batches = []

    def to_json(self) -> list[list[int]]:
        """All but the batches, for the checkpoint."""
        return [[saved.generation, saved.learned] for saved in self._saved]


def last_good(metadata: Mapping[str, Any]) -> int | None:
    """The generation to go back to from a checkpoint that is in doubt, if one is known."""
    guard = metadata.get("guard")
    if not guard:
        return None
    sound = guard["jumps"]["sound"]
    if metadata["n"] <= sound:
        return None
    return max((generation for generation, learned in guard["saved"] if learned <= sound), default=None)
