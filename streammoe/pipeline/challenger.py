"""A second model that learns what a pipeline's own model learns, and is only scored: would it predict better?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar, copy_context

import numpy as np

from streammoe.errors import StreammoeError
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.pipeline import LOGGER, LearnedRows, Pipeline
from streammoe.pipeline.scores import Scores
from streammoe.ports import Batch
from streammoe.types import IntArray

_is_learning = ContextVar("is_learning", default=False)


for _logger in (LOGGER, logging.getLogger("streammoe.estimators")):
    # What is said of records and columns would come twice, and what is said of a model would seem to be the champion's.
    _logger.addFilter(lambda _: not _is_learning.get())


class Challenger:
    """A model that learns each batch after the champion, the model that predicts, and is compared with it.

    Args:
        pipeline: its model, with columns of its own, and its scores.
        champion_scores: those of the champion over the same events, which both have learned.
        missed: events that the champion has learned, and it has not.
    """

    def __init__(self, pipeline: Pipeline, champion_scores: Scores, missed: int = 0) -> None:
        self.pipeline = pipeline
        self.champion_scores = champion_scores
        self.missed = missed
        self.failure = ""
        """Why it learns no more, and is to be dropped; empty while it does."""

    @property
    def model(self) -> MixtureOfExperts:
        """What learns."""
        return self.pipeline.model

    @property
    def scores(self) -> dict[str, Scores]:
        """By the name of each model."""
        return {"champion": self.champion_scores, "challenger": self.pipeline.scores}

    def summary(self) -> dict[str, object]:
        """Return, as JSON values, how it does; scores are running means."""
        return {
            "events": self.champion_scores.log_loss.count,
            "missed": self.missed,
            "model_events": self.model.n,
            "warming_up": self.model.is_warming_up,
            **{f"{name}_scores": scores.summary() for name, scores in self.scores.items()},
        }

    def learn(self, batch: Batch, champion: Sequence[LearnedRows]) -> None:
        """Learn a batch, of which this became of the champion's records; whatever goes wrong is its `failure`.

        Raises:
            FitCancelled: a stop was requested during a fit; everything is as it was before the batch.
        """
        if self.failure:
            return
        try:
            own = copy_context().run(self._learn, batch)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the champion goes on
            self.fail(error)
            return
        both = np.intersect1d(_learned(champion), _learned(own), assume_unique=True)
        self.missed += sum(int(each.outcome.learned.sum()) for each in champion) - len(both)
        for scores, parts in ((self.champion_scores, champion), (self.pipeline.scores, own)):
            for rows, outcome, *_ in parts:
                at = outcome.learned & np.isin(rows, both)
                scores.update(outcome.losses[at], outcome.predictions[at], outcome.targets[at])

    def _learn(self, batch: Batch) -> list[LearnedRows]:
        _is_learning.set(True)  # in a context of its own, which ends with the call
        return self.pipeline.learn(batch)[1]

    def fail(self, error: Exception) -> None:
        """Learn no more because of this error."""
        self.failure = f"{type(error).__name__}: {error}"
        LOGGER.error(
            "the challenger learns no more (%s); the model goes on, and the next start begins a new challenger",
            self.failure,
            exc_info=None if isinstance(error, StreammoeError) else error,
            extra={"event": "challenger_failed"},
        )


def _learned(parts: Sequence[LearnedRows]) -> IntArray:
    """Return the numbers of the records that were learned."""
    return np.concatenate([np.empty(0, np.int64), *(each.rows[each.outcome.learned] for each in parts)])
