"""Rows of predictions for a sink, from what models say of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streammoe.engine.intervals import mixture_intervals
from streammoe.estimators import MixtureOfExperts
from streammoe.kernels.state import Trace
from streammoe.pipeline.sink_wait import Answer, SinkWait
from streammoe.ports import Location, Predictions, PredictionSink
from streammoe.types import FloatArray, IntArray


class Written(NamedTuple):
    """What is known of events whose predictions are written."""

    locations: Sequence[Location]
    """Empty, as in `Predictions`."""
    keys: Sequence[bytes | None] | None
    versions: IntArray
    predictions: FloatArray
    targets: FloatArray
    labels: list[str | None] | None
    losses: FloatArray
    trace: Trace
    gate: FloatArray

    def part(self, piece: slice) -> Written:
        """Return a slice of events."""
        parts: dict[str, Any] = {
            name: each if each is None else each[piece] for name, each in self._asdict().items() if name != "trace"
        }
        return Written(**parts, trace=Trace(*(part[piece] for part in self.trace)))


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

    def write(
        self,
        rows: Written,
        model: MixtureOfExperts,
        outputs: tuple[str, ...],
        version: int | None,
        known: IntArray | None,
    ) -> None:
        """Write rows for events that a model has predicted.

        Args:
            rows: the events.
            model: what predicted them.
            outputs: names of the targets.
            version: that of the rival if it predicted, 0 for the own model where there may be a rival, else None.
            known: (n,) for a classifier, how many classes were known at each prediction, the first so many.
        """
        n = len(rows.versions)
        cuts = [] if known is None else (np.flatnonzero(np.diff(known)) + 1).tolist()
        for start, stop in pairwise([0, *cuts, n]):
            each = rows.part(slice(start, stop)) if cuts else rows
            M = None if known is None else int(known[start])
            with self.wait.call(Answer.UNKNOWN):
                self.sink.write(
                    Predictions(
                        locations=each.locations,
                        keys=each.keys,
                        versions=each.versions,
                        global_versions=None if version is None else np.full(stop - start, version),
                        targets=each.targets if known is None else each.labels or [],
                        losses=each.losses,
                        outputs=outputs,
                        gate=_padded(each.gate, model.options.most_experts) if self.gate else None,
                        **predicted(model, each.predictions, each.trace, self.interval, M),
                    )
                )


def _padded(values: FloatArray, size: int) -> FloatArray:
    """Pad (n, K) values of experts with zeros for those that exist only after the warm-up, up to so many.

    So a row does not depend on whether its batch ended the warm-up.
    """
    return np.pad(values, ((0, 0), (0, max(size - values.shape[1], 0))))
