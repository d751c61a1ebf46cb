"""Prequential scores: each event is predicted before it is learned, and its loss enters three kinds of averages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from streammoe.checked import array_of, is_count, is_finite_number, require
from streammoe.distributions import ExpertNoise
from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.intervals import level_intervals
from streammoe.errors import PoisonedModel
from streammoe.estimators import MixtureOfExperts
from streammoe.kernels.state import Trace
from streammoe.persistence import Checkpoint
from streammoe.pipeline.schema import Schema
from streammoe.text import shown
from streammoe.types import FloatArray

WINDOW = 10_000
"""Events of the windowed average."""
HORIZON = 1_000
"""Events after which the weight of a value in an exponential average has dropped to 1/e."""
AVERAGES = ("running", "exponential", "window")
EVERY = 32
"""Of so many events one enters the averages of intervals: to find those at all levels takes twice as long as a step."""
MIN_PROBABILITY = 1e-15
"""Lower bound of a class probability in log-losses, so that one surprise does not make them infinite."""


class Average:
    """The running, exponentially weighted and windowed means of a sequence of numbers.

    Args:
        every: how many events there are for each number; `HORIZON` and `WINDOW` count events.
    """

    def __init__(self, every: int = 1) -> None:
        self.keep, self.size = math.exp(-every / HORIZON), WINDOW // every
        self.count = 0
        self.total = 0.0
        self.exponential = 0.0
        self.weight = 0.0
        self.window = np.empty(0)

    def update(self, values: FloatArray) -> None:
        """Add `values`, (n,), in order."""
        n = len(values)
        if n == 0:
            return
        self.count += n
        self.total += float(values.sum())
        keep = self.keep
        fades = keep ** np.arange(n - 1, -1, -1)
        self.exponential = self.exponential * keep**n + (1.0 - keep) * float(fades @ values)
        self.weight = self.weight * keep**n + (1.0 - keep) * float(fades.sum())
        self.window = np.concatenate([self.window, values])[-self.size :]

    def means(self) -> dict[str, float]:
        """Return the mean by each of `AVERAGES`; NaN before the first value."""
        if self.count == 0:
            return dict.fromkeys(AVERAGES, math.nan)
        return {
            "running": self.total / self.count,
            "exponential": self.exponential / self.weight,
            "window": float(self.window.mean()),
        }


class Spread(NamedTuple):
    """The distributions that a model has predicted for learned events."""

    trace: Trace
    noise: ExpertNoise


class Scores(ABC):
    """Named averages that a checkpoint can save and restore.

    Attributes:
        every: of how many events one should come with its spread; 0: none.
    """

    every = 0

    def __init__(self, *names: str) -> None:
        self.averages = {name: Average() for name in ("log_loss", *names)}
        self.log_loss = self.averages["log_loss"]
        self.intervals: dict[tuple[str, int, float], Average] = {}

    @abstractmethod
    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray, spread: Spread | None = None) -> None:
        """Add learned events in order.

        Args:
            losses: (n,) log-losses.
            predictions: (n, Q), or probabilities (n, M).
            Y: (n, Q) targets, or (n, 1) class indexes.
            spread: if their intervals are to be scored.
        """

    @abstractmethod
    def means(self) -> dict[str, dict[str, float]]:
        """Return the scores by name and by each of `AVERAGES`."""

    def summary(self) -> dict[str, float | None]:
        """Return the running means by name; ``None`` before the first event."""
        known = self.log_loss.count > 0
        return {name: means["running"] if known else None for name, means in self.means().items()}

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the state of the baseline, for the checkpoint."""

    def arrays(self) -> dict[str, FloatArray]:
        """Return the averages, for the checkpoint; raise `PoisonedModel` if one is not finite."""
        windows = {f"scores.{name}": average.window for name, average in self.averages.items()}
        sums = [(each.count, each.total, each.exponential, each.weight) for each in self.averages.values()]
        arrays: dict[str, FloatArray] = {"scores": np.array(sums), **windows}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise PoisonedModel(
                "the scores are not finite, and nothing is saved; resume from the last checkpoint, and please report "
                "this bug"
            )
        return arrays

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        """Restore the results of `to_json` and `arrays`; call within `streammoe.checked.restoring`."""
        sums = array_of(arrays, "scores", "float64", (len(self.averages), 4))
        for (name, average), (n, total, exponential, weight) in zip(self.averages.items(), sums.tolist(), strict=True):
            least = -math.inf if name == "log_loss" else 0.0
            count = int(n)
            is_sound = 0 <= count == n and min(total, exponential) >= least and (weight > 0.0 or not count)
            require(is_sound, f"array scores holds {shown([n, total, exponential, weight])} for {name}")
            window = array_of(arrays, f"scores.{name}", "float64", (min(count, average.size),), least=least)
            vars(average).update(count=count, total=total, exponential=exponential, weight=weight, window=window)
        return self


class PrequentialScores(Scores):
    """Log-loss, squared error and intervals of a regressor; predicting the mean so far is the baseline of its error.

    Args:
        outputs: number of targets. Errors are averaged over them, and also available for each.
        every: of how many events one comes with its spread.
    """

    def __init__(self, outputs: int = 1, *, every: int = EVERY) -> None:
        self.outputs, self.every = outputs, every
        each = [f"squared_error.{q}" for q in range(outputs if outputs > 1 else 0)]
        super().__init__("squared_error", "baseline_squared_error", *each)
        self.intervals = {
            (score, q, level): Average(every)
            for score in ("coverage", "width")
            for q in range(outputs)
            for level in LEVELS
        }
        """How many targets were in intervals, and how wide these were, by output and level."""
        self.averages |= {f"{score}.{q}.{level:g}": each for (score, q, level), each in self.intervals.items()}
        self._targets = 0
        self._target_sums = np.zeros(outputs)

    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray, spread: Spread | None = None) -> None:
        if len(losses) == 0:
            return
        self.score_intervals(Y, spread)
        sums = self._target_sums + np.concatenate([np.zeros((1, self.outputs)), np.cumsum(Y, axis=0)])
        counts = self._targets + np.arange(len(Y))
        baseline = sums[:-1] / np.maximum(counts, 1)[:, None]
        self._target_sums = sums[-1]
        self._targets += len(Y)
        self.log_loss.update(losses)
        squares = (Y - predictions) ** 2
        self.averages["squared_error"].update(squares.mean(axis=1))
        for q in range(self.outputs if self.outputs > 1 else 0):
            self.averages[f"squared_error.{q}"].update(squares[:, q])
        self.averages["baseline_squared_error"].update(((Y - baseline) ** 2).mean(axis=1))

    def score_intervals(self, Y: FloatArray, spread: Spread | None) -> None:
        """Add the intervals of events that have one."""
        if spread is None:
            return
        ends = level_intervals(*spread)
        known = np.isfinite(ends).all(axis=(1, 2, 3))
        ends, targets = ends[known], Y[known, :, None]
        values = {
            "coverage": (ends[..., 0] <= targets) & (targets <= ends[..., 1]),
            "width": ends[..., 1] - ends[..., 0],
        }
        for (score, q, level), average in self.intervals.items():
            average.update(values[score][:, q, LEVELS.index(level)].astype(np.float64))

    def means(self) -> dict[str, dict[str, float]]:
        return {
            "rmse": self._root("squared_error"),
            "log_loss": self.log_loss.means(),
            "baseline_rmse": self._root("baseline_squared_error"),
        }

    def of_intervals(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return coverage and mean width of intervals by output and level; ``None`` before the first event."""
        running = {key: each.means()["running"] if each.count else None for key, each in self.intervals.items()}
        return [
            {"output": name, "level": level, **{score: running[score, q, level] for score in ("coverage", "width")}}
            for q, name in enumerate(names)
            for level in LEVELS
        ]

    def rmse(self, output: int) -> dict[str, float]:
        """Return the root mean squared error of one of several outputs by each of `AVERAGES`."""
        return self._root(f"squared_error.{output}")

    def _root(self, name: str) -> dict[str, float]:
        return {average: math.sqrt(value) for average, value in self.averages[name].means().items()}

    def to_json(self) -> dict[str, Any]:
        return {"targets": self._targets, "target_sums": self._target_sums.tolist()}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        sums, n = state["target_sums"], state["targets"]
        sound = isinstance(sums, list) and all(map(is_finite_number, sums)) and is_count(n)
        require(sound, f"scores has the sums {shown(sums)} of {shown(n)} targets")
        require(len(sums) == self.outputs, f"scores has {len(sums)} outputs, but schema.target names {self.outputs}")
        self._targets, self._target_sums = n, np.array(sums)
        return super().restore(state, arrays)


class ClassificationScores(Scores):
    """Log-loss and accuracy of a classifier, with the accuracy of predicting the most frequent class so far.

    Of classes equally frequent that is the one that was known first.
    """

    def __init__(self) -> None:
        super().__init__("hits", "baseline_hits")
        self._counts: list[int] = []

    @property
    def classes(self) -> int:
        """The number of classes seen."""
        return len(self._counts)

    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray, spread: Spread | None = None) -> None:
        """Add learned events in order.

        Args:
            losses: (n,) −log of the model's probability for each event's class; a class that was unknown when its
                event was predicted is rare, not impossible.
            predictions: (n, M) probabilities before the event was learned. M may grow between calls.
            Y: (n, 1) index of each event's class, in the order in which classes became known.
            spread: none.
        """
        n = len(losses)
        if n == 0:
            return
        classes = Y[:, 0].astype(np.int64)
        probabilities = predictions[np.arange(n), classes]
        best = predictions.argmax(axis=1)
        self.log_loss.update(np.minimum(losses, -math.log(MIN_PROBABILITY)))
        self.averages["hits"].update(((best == classes) & (probabilities > 0.0)).astype(np.float64))
        hits, counts = [], [*self._counts, *[0] * (int(classes.max()) + 1 - len(self._counts))]
        usual = counts.index(max(counts)) if any(counts) else -1  # before the first event nothing is predicted
        for c in classes.tolist():
            hits.append(float(c == usual))
            counts[c] += 1
            if (counts[c], -c) > (counts[usual], -usual) or usual < 0:
                usual = c
        self._counts = counts
        self.averages["baseline_hits"].update(np.array(hits))

    def means(self) -> dict[str, dict[str, float]]:
        sources = {"accuracy": "hits", "log_loss": "log_loss", "baseline_accuracy": "baseline_hits"}
        return {name: self.averages[source].means() for name, source in sources.items()}

    def to_json(self) -> dict[str, Any]:
        return {"counts": self._counts}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        counts = state["counts"]
        sound = isinstance(counts, list) and all(map(is_count, counts))
        require(sound, f"scores counts {shown(counts)} events of each class")
        self._counts = list(counts)
        return super().restore(state, arrays)


def new_scores(model: MixtureOfExperts, schema: Schema) -> Scores:
    """Return the scores of a model that has predicted nothing yet."""
    return ClassificationScores() if model.is_classifier else PrequentialScores(len(schema.targets))


def saved_scores(checkpoint: Checkpoint) -> Scores | None:
    """Restore the scores that a daemon has saved with its model; None for a model saved from Python.

    Call it within `streammoe.checked.restoring`.
    """
    state = checkpoint.metadata.get("scores")
    if state is None:
        return None
    scores: Scores = PrequentialScores(len(state["target_sums"])) if "targets" in state else ClassificationScores()
    return scores.restore(state, checkpoint.arrays)
