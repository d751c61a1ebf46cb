"""A file of predictions: one row per event, made before it was learned."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streammoe.persistence.append_log import AppendLog
from streammoe.ports import Predictions, PredictionSink, nothing_more
from streammoe.rows import json_lines

LOGGER = logging.getLogger("streammoe.predictions")


class RestartPlan(NamedTuple):
    """The steps that a start has to take once nothing else can fail, before anything is read."""

    begin: Callable[[], object] = nothing_more
    """Removes predictions or checkpoints that are not continued."""
    must_save: bool = False
    """Whether there has to be a checkpoint before anything is read: to know the end of the predictions, or to hold a
    model whose file may be gone at the next start."""


def plan_restart(sink: PredictionSink, metadata: Mapping[str, Any] | None, *, replayable: bool = True) -> RestartPlan:
    """Determine what to do with existing predictions when a daemon starts from a checkpoint, if any, or fresh.

    Args:
        sink: of the predictions.
        metadata: of the checkpoint.
        replayable: whether the source can read again what came after it.

    Raises:
        CheckpointError: predictions have changed since the checkpoint was written.
    """
    if sink.position() is None:
        return RestartPlan()
    if metadata is None:
        return RestartPlan(must_save=True)
    known = metadata.get("predictions")
    if known is None:
        LOGGER.info("the checkpoint has no position of the predictions; those after it are written again")
        return RestartPlan(must_save=True)
    if not replayable:
        LOGGER.warning("predictions after the checkpoint are kept: the source cannot be read again to recreate them")
        return RestartPlan()
    return RestartPlan(sink.restore(known))


class JsonlPredictions(AppendLog, PredictionSink):
    """A file with one JSON object per row, see `json_lines`; unknown and non-finite values are null.

    Durable after `flush`. Without a checkpoint to go back to, the next start ends a line that a killed process left
    incomplete; it stays as a line of invalid JSON.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "predictions.path")

    def write(self, rows: Predictions) -> None:
        self.append(json_lines(rows))
