"""Rows of predictions for a sink, from what models say of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streammoe.engine.intervals import mixture_intervals
from streammoe.estimators import MixtureOfExperts
from streammoe.kernels.state import Trace
from streammoe.pipeline.sink_wait import SinkWait
from streammoe.ports import Predictions, PredictionSink
from streammoe.types import FloatArray


def predicted(
    model: MixtureOfExperts, predictions: FloatArray, trace: Trace, interval: float, known: int | None = None
) -> dict[str, Any]:
    """Return what `Predictions` hold of what a model has predicted.

    Args:
        model: what predicted.
        predictions: (n, Q) means, or (n, M) probabilities of classes.
        trace: of a regressor, for the intervals.
        interval: their probability; 0 leaves them out.
        known: how many classes count, the first so many; by default all.
    """
    if not model.is_classifier:
        more = {"intervals": partial(mixture_intervals, *trace, interval, model.noise)} if interval > 0.0 else {}
        return {"predictions": predictions, **more}
    names = tuple(map(str, model.output_names))[:known]
    probabilities = predictions[:, : len(names)]
    labels = [names[at] for at in probabilities.argmax(axis=1)] if names else [None] * len(predictions)
    return {"predictions": labels, "classes": names, "probabilities": probabilities}


@dataclass(frozen=True)
class PredictionWriter:
    """A sink for predictions, and what to write to it."""

    sink: PredictionSink
    interval: float
    """Probability of the interval; 0 leaves it out."""
    gate: bool
    wait: SinkWait = field(default_factory=SinkWait)
    """Shows how long the sink takes."""

    def write(self, rows: Predictions) -> None:
        """Write rows, in order."""
        with self.wait.call(is_answer=False):
            self.sink.write(rows)
