"""Prequential scores: each event is predicted before it is learned, and the losses are averaged in three ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.types import FloatArray

WINDOW = 10_000
"""Events of the windowed average."""
HORIZON = 1_000
"""Events after which an exponentially weighted one has forgotten all but 1/e."""
AVERAGES = ("running", "exponential", "window")


class Average:
    """Running, exponentially weighted and windowed mean of the same numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.exponential = 0.0
        self.weight = 0.0
        self.window = np.empty(0)

    def update(self, values: FloatArray) -> None:
        """Take `values`, (n,), in order."""
        n = len(values)
        if n == 0:
            return
        self.count += n
        self.total += float(values.sum())
        keep = math.exp(-1.0 / HORIZON)
        fades = keep ** np.arange(n - 1, -1, -1)
        self.exponential = self.exponential * keep**n + (1.0 - keep) * float(fades @ values)
        self.weight = self.weight * keep**n + (1.0 - keep) * float(fades.sum())
        self.window = np.concatenate([self.window, values])[-WINDOW:]

    def means(self) -> dict[str, float]:
        """The mean by each of `AVERAGES`; NaN before the first value."""
        if self.count == 0:
            return dict.fromkeys(AVERAGES, math.nan)
        return {
            "running": self.total / self.count,
            "exponential": self.exponential / self.weight,
            "window": float(self.window.mean()),
        }


class PrequentialScores:
    """Log-loss and squared error of the learner, beside the squared error of predicting the mean so far."""

    def __init__(self) -> None:
        self.log_loss = Average()
        self.squared_error = Average()
        self.baseline_squared_error = Average()
        self._targets = 0
        self._target_sum = 0.0

    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray) -> None:
        """Take learned events in order: (n,) log-losses, (n, Q) predictions and targets."""
        if len(losses) == 0:
            return
        targets = Y[:, 0]
        sums = self._target_sum + np.concatenate([[0.0], np.cumsum(targets)])
        counts = self._targets + np.arange(len(targets))
        baseline = sums[:-1] / np.maximum(counts, 1)
        self._target_sum = float(sums[-1])
        self._targets += len(targets)
        self.log_loss.update(losses)
        self.squared_error.update(((Y - predictions) ** 2).mean(axis=1))
        self.baseline_squared_error.update((targets - baseline) ** 2)

    def rmse(self) -> dict[str, float]:
        """Root mean squared error by each of `AVERAGES`."""
        return {name: math.sqrt(value) for name, value in self.squared_error.means().items()}

    def baseline_rmse(self) -> dict[str, float]:
        """The same for the running-mean predictor."""
        return {name: math.sqrt(value) for name, value in self.baseline_squared_error.means().items()}

    def to_json(self) -> dict[str, Any]:
        """All but the windows, for the checkpoint."""
        averages = {name: vars(getattr(self, name)) for name in _NAMES}
        return {
            "targets": self._targets,
            "target_sum": self._target_sum,
            **{name: {**values, "window": None} for name, values in averages.items()},
        }

    def arrays(self) -> dict[str, FloatArray]:
        """The windows, for the checkpoint."""
        return {f"scores.{name}": getattr(self, name).window for name in _NAMES}

    @classmethod
    def restore(cls, found: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> PrequentialScores:
        """The inverse of `to_json` and `arrays`."""
        scores = cls()
        scores._targets = found["targets"]
        scores._target_sum = found["target_sum"]
        for name in _NAMES:
            vars(getattr(scores, name)).update(found[name], window=arrays[f"scores.{name}"])
        return scores


_NAMES = ("log_loss", "squared_error", "baseline_squared_error")
