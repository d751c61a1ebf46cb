"""The latest events that a model has learned, from which another model can learn what it lacks of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streammoe.pipeline.pipeline import BatchResult
from streammoe.ports import Batch, Position

MAX_BYTES = 256 * 2**20
"""Bytes of records that are held; the oldest are dropped beyond that."""


class _Saved(NamedTuple):
    """A checkpoint, and which part is the first that it does not contain."""

    generation: int
    state_digest: str
    position: str
    """As JSON, as which it may come back."""
    first: int


class Part(NamedTuple):
    """Events as the model was given them, without those that it rejected."""

    batch: Batch
    learned: int
    """How many of them it has learned; the others have no target."""


class Journal:
    """The events since the oldest checkpoint from which another model may have to go on.

    They are held in memory, so that neither the source nor its retention matters, and their order is that in which they
    were learned, whatever the number of partitions.

    Args:
        max_bytes: of records to hold.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[Part] = []
        self._first = 0
        """Number of the first of these parts, counted from the start of the run."""
        self._bytes = 0
        self._saved: list[_Saved] = []

    @property
    def mark(self) -> int:
        """Return this moment, at which a checkpoint takes the state of the model."""
        return self._first + len(self._parts)

    @property
    def n_bytes(self) -> int:
        """Bytes of the records that are held."""
        return self._bytes

    def add(self, batch: Batch, result: BatchResult) -> None:
        """Add events that the model was given, with what became of them."""
        learned = result.outcomes["learned"]
        if not learned:
            return
        batch = replace(batch, headers=None)  # which nobody learns from, and whose size is not counted
        if result.bad.any():
            batch = batch.select(np.flatnonzero(~result.bad))
        self._parts.append(Part(batch, learned))
        self._bytes += _size(batch)
        while self._bytes > self._max_bytes:
            if self._saved:
                del self._saved[0]
            self._drop_before(self._saved[0].first if self._saved else self.mark)

    def add_saved(self, generation: int, state_digest: str, position: Position | None, mark: int) -> None:
        """Record that the state of this moment is durable."""
        if mark < self._first:
            return
        if not self._saved:
            self._drop_before(mark)
        self._saved.append(_Saved(generation, state_digest, _as_json(position), mark))

    def since(self, generation: int, state_digest: str, position: Position | None) -> list[Part] | None:
        """Return what the model has learned since a checkpoint, or None if that is not known any more.

        Numbers of generations are reused after a rollback, so that everything about the checkpoint must agree.
        """
        for saved in self._saved:
            if saved[:3] == (generation, state_digest, _as_json(position)):
                return self._parts[saved.first - self._first :]
        return None

    def forget_before(self, generation: int) -> None:
        """Drop what only models that lack this checkpoint would need."""
        self._saved = [saved for saved in self._saved if saved.generation >= generation]
        self._drop_before(self._saved[0].first if self._saved else self.mark)

    def roll_back(self, generation: int) -> None:
        """Drop what the model has learned since this checkpoint, as the model does."""
        good = next((saved for saved in self._saved if saved.generation == generation), None)
        self._saved = [] if good is None else [saved for saved in self._saved if saved.generation <= generation]
        keep = 0 if good is None else good.first - self._first
        self._bytes -= sum(_size(part.batch) for part in self._parts[keep:])
        del self._parts[keep:]

    def _drop_before(self, first: int) -> None:
        n = first - self._first
        self._bytes -= sum(_size(part.batch) for part in self._parts[:n])
        del self._parts[:n]
        self._first = first


def _as_json(position: Position | None) -> str:
    return json.dumps(position, sort_keys=True)


def _size(batch: Batch) -> int:
    return len(batch.block) + batch.ends.nbytes if batch.table is None else int(batch.table.nbytes)
