"""What a daemon keeps in a checkpoint beside its model: positions, counters, runs."""

from __future__ import annotations

from typing import Any

from streammoe.checked import array_of, counts_of, is_count, is_finite_number, require, table_of
from streammoe.persistence import Checkpoint
from streammoe.text import shown


def check_bookkeeping(found: Checkpoint) -> None:
    """Make sure that everything in a daemon's checkpoint but model, scores and labels is what it must be.

    What a position holds is its source's affair.

    Raises:
        CheckpointError: something is not.
    """
    metadata = found.metadata
    require(is_count(metadata.get("n")), f"n is {shown(metadata.get('n'))}, and must count events")
    positions = metadata.get("positions")
    sound = isinstance(positions, list) and len(positions) == 1 and isinstance(positions[0], dict | None)
    require(sound, f"positions is {shown(positions)}, and must be a list of one table")
    counters = table_of(metadata, "counters")
    for name in ("outcomes", "reasons"):
        require(name in counters, f"counters lacks {name}")
        counts_of(counters, name)
    counts_of(metadata, "runs")
    for file, letters in table_of(metadata, "replayed").items():
        _must_be_texts(letters, f"replayed names {shown(letters)} of {shown(file)}")
    for section in table_of(metadata, "settings"):
        table_of(metadata["settings"], section)
    require(isinstance(metadata.get("transactional", False), bool), "transactional is neither true nor false")
    table_of(metadata, "scores")
    array_of(found.arrays, "guard.latest", "bool", (None,))
    if "guard" in metadata:
        _check_guard(table_of(metadata, "guard"))


def _check_guard(guard: dict[str, Any]) -> None:
    """What is kept of the losses that are usual, and of the checkpoints that were saved before they were in doubt."""
    jumps = table_of(guard, "jumps")
    for name in ("history", "high"):
        losses = jumps.pop(name, None)
        sound = isinstance(losses, list) and all(map(is_finite_number, losses))
        require(sound, f"guard.jumps.{name} is {shown(losses)}, and must be a list of losses")
    total = jumps.pop("sum", None)
    require(is_finite_number(total), f"guard.jumps.sum is {shown(total)}, and must be a number")
    counts = counts_of({"guard.jumps": jumps}, "guard.jumps")
    require(
        counts.keys() == {"count", "length", "events", "sound", "jumps"}, f"guard.jumps counts {shown(sorted(counts))}"
    )
    require(
        counts["count"] < max(counts["length"], 1),
        f"guard.jumps.count is {counts['count']}, in a window of {counts['length']}",
    )
    saved = guard.get("saved")
    pairs = isinstance(saved, list) and all(
        isinstance(entry, list) and len(entry) == 2 and all(map(is_count, entry)) for entry in saved
    )
    require(
        pairs, f"guard.saved is {shown(saved)}, and must be a list of generations with the events that they learned"
    )


def _must_be_texts(value: Any, problem: str) -> None:
    require(isinstance(value, list) and all(isinstance(text, str) for text in value), f"{problem}, which are no texts")
