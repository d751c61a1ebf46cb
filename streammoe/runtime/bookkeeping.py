"""What a daemon keeps in a checkpoint beside its model: positions, counters, runs."""

from __future__ import annotations

from typing import Any

from streammoe.persistence import Checkpoint
from streammoe.restoring import array_of, counts_of, must_be, shown, table_of


def check_bookkeeping(found: Checkpoint) -> None:
    """Make sure that everything in a daemon's checkpoint but model, scores and labels is what it must be.

    What a position holds is its source's affair.

    Raises:
        CheckpointError: something is not.
    """
    metadata = found.metadata
    positions = metadata.get("positions")
    sound = isinstance(positions, list) and len(positions) == 1 and isinstance(positions[0], dict | None)
    must_be(sound, f"positions is {shown(positions)}, and must be a list of one table")
    counters = table_of(metadata, "counters")
    for name in ("outcomes", "reasons"):
        must_be(name in counters, f"counters lacks {name}")
        counts_of(counters, name)
    counts_of(metadata, "runs")
    for file, letters in table_of(metadata, "replayed").items():
        _must_be_texts(letters, f"replayed names {shown(letters)} of {shown(file)}")
    for section in table_of(metadata, "settings"):
        table_of(metadata["settings"], section)
    must_be(isinstance(metadata.get("transactional", False), bool), "transactional is neither true nor false")
    table_of(metadata, "scores")
    array_of(found.arrays, "guard.latest", "bool", (None,))


def _must_be_texts(value: Any, problem: str) -> None:
    must_be(isinstance(value, list) and all(isinstance(text, str) for text in value), f"{problem}, which are no texts")
