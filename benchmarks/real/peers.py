"""Learners on a stream, each of which predicts an event before it learns it; all with their defaults.

Peers get the inputs of `Stream.dense`: a missing number is replaced by the mean of its column so far, and a text by
one 0/1 column for each level. River's learners get numbers after its `StandardScaler`; 0/1 columns are not scaled.
Ours read texts and missing values themselves.

Some learners must be told the classes in advance, so every learner's probabilities are restricted to the classes that
have appeared, and the first event of each class counts for accuracy (as a miss) but not for log-loss.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from river import forest, linear_model, preprocessing, tree

from benchmarks.real.streams import Stream
from streammoe.configuration import settings_from
from streammoe.daemon.model import compile_kernels, model_from
from streammoe.invocation import python
from streammoe.model.learn_rows import Outcome, introduce

LEAST_PROBABILITY = 1e-15
"""Lower bound in log-losses, as in the scores of `streammoe evaluate`."""
PIECE = 4096
"""Rows that our learners are given at once; the result does not depend on it."""
WINDOW, NEAREST, PRIOR_COUNT = 1000, 10, 0.1
"""Events among which the nearest are looked for, their number, and how much the mean or the frequencies count."""
FIRST_FIT = 64
"""Events before LightGBM is fitted for the first time."""


class Predicted(NamedTuple):
    """Predictions of the events of a stream, each made before the event was learned."""

    values: np.ndarray
    """(n,) numbers, or (n, M) probabilities of the classes in the order of their appearance."""
    losses: np.ndarray | None = None
    """(n,) negative log-likelihoods of the targets, for learners that predict a distribution of numbers."""
    rejected: int = 0
    """Number of events that the learner rejected; their predictions are NaN."""


class Result(NamedTuple):
    """Scores of a learner on a stream, as results files hold them; None is not finite, or not known."""

    score: float | None
    """RMSE, or accuracy."""
    log_loss: float | None
    """Mean negative log-likelihood in nats; of numbers only where the learner predicts a density."""
    events: int
    """Number of events; fewer than the stream has if the learner was stopped early."""
    rejected: int
    seconds: float


class Learner(NamedTuple):
    """A learner."""

    predict: Callable[[Stream, int], Predicted]
    """Predicts and learns the first events of a stream."""
    needs: str = "river"
    """Module without which it cannot run."""
    slow: bool = False
    """Whether a run may be limited to fewer events."""


def result_of(name: str, stream: Stream, limit: int | None = None) -> Result:
    """Run a learner on a stream.

    Args:
        name: key of `LEARNERS`.
        stream: the events.
        limit: maximum number of events if the learner is slow.
    """
    n = events_of(name, stream, limit)
    # Shared by all learners, so none of them is charged for it.
    _ = stream.dense, stream.codes
    since = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Learners that diverge overflow; their scores say so.
        warnings.simplefilter("ignore")
        predicted = LEARNERS[name].predict(stream, n)
        seconds = time.perf_counter() - since
        score, log_loss = scores(stream, predicted)
    return Result(_finite(score), _finite(log_loss), n, predicted.rejected, round(seconds, 2))


def events_of(name: str, stream: Stream, limit: int | None) -> int:
    """Return the number of events of a stream that a learner is given."""
    return min(len(stream), limit) if limit is not None and LEARNERS[name].slow else len(stream)


def missing(name: str) -> str | None:
    """Return the command that installs what a learner needs, or None if it is installed."""
    needs = LEARNERS[name].needs
    return None if find_spec(needs) else f"{python()} -m pip install {needs}"


def scores(stream: Stream, predicted: Predicted) -> tuple[float, float | None]:
    """Return RMSE or accuracy, and the mean log-loss, over the events that were not rejected."""
    values, losses, _ = predicted
    y = stream.codes[: len(values)]
    if not stream.classify:
        used = ~np.isnan(values) if predicted.rejected else np.ones(len(y), np.bool_)
        rmse = float(np.sqrt(np.mean((y - values)[used] ** 2)))
        return rmse, None if losses is None else float(np.mean(losses[used]))
    used = ~np.isnan(values).any(axis=1)
    # Number of classes that have appeared before each event.
    known = np.concatenate([[0], np.maximum.accumulate(y)[:-1] + 1])
    probabilities = np.where(np.arange(values.shape[1]) < known[:, None], values, 0.0)
    totals = probabilities.sum(axis=1, keepdims=True)
    probabilities /= np.where(totals > 0.0, totals, 1.0)
    hits = (probabilities.argmax(axis=1) == y) & (totals[:, 0] > 0.0)
    log_losses = -np.log(np.maximum(probabilities[np.arange(len(y)), y], LEAST_PROBABILITY))
    return float(hits[used].mean()), float(log_losses[used & (y < known)].mean())


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


# -- Ours --------------------------------------------------------------------------------------------------------------


def ours(stream: Stream, n: int, **model_settings: Any) -> Predicted:
    """Run the model that `streammoe evaluate` makes of the default settings."""
    values = np.zeros((n, max(stream.n_classes, 1)))
    losses = np.zeros(n)
    rejected = 0
    for piece, outcome, _ in outcomes(stream, n, **model_settings):
        values[piece, : outcome.predictions.shape[1]] = outcome.predictions
        losses[piece] = outcome.losses
        rejected += len(outcome.rejected)
    return Predicted(values, None, rejected) if stream.classify else Predicted(values[:, 0], losses, rejected)


def outcomes(
    stream: Stream, n: int, *, traced: bool = False, **model_settings: Any
) -> Iterator[tuple[slice, Outcome, Any]]:
    """Let our model learn a stream; yield the rows of each piece, what it said of them, and the model."""
    tables = {
        "source": {"kind": "stdin", "format": "csv"},
        "schema": {"target": "y", "categorical": list(stream.texts)},
        "model": {"kind": stream.kind, **model_settings},
    }
    settings = settings_from(tables, "the benchmark")
    compile_kernels(settings)
    model = model_from(settings)
    X = np.full((n, len(stream.columns)), np.nan)
    for j, name in enumerate(stream.columns):
        if name in stream.numbers:
            X[:, j] = stream.numbers[name][:n]
    targets: Any = list(stream.y[:n]) if stream.classify else stream.codes[:n, None]
    introduce(model.learner, stream.columns, X[:1], targets[:1])
    for start in range(0, n, PIECE):
        piece = slice(start, min(start + PIECE, n))
        texts = {name: column[piece] for name, column in stream.texts.items()}
        yield piece, model.learn_rows(X[piece], targets[piece], texts=texts, traced=traced), model


def one_expert(stream: Stream, n: int) -> Predicted:
    """Run a single expert of ours."""
    return ours(stream, n, n_experts=1)


# -- Baselines ---------------------------------------------------------------------------------------------------------


def mean(stream: Stream, n: int) -> Predicted:
    """Predict the mean of the targets so far, or the frequencies of the classes."""
    y = stream.codes[:n]
    if stream.classify:
        y = np.eye(stream.n_classes)[y]
    counts = np.maximum(np.arange(n), 1.0)
    return Predicted((np.cumsum(y, axis=0) - y) / (counts[:, None] if stream.classify else counts))


def last(stream: Stream, n: int) -> Predicted:
    """Predict the last target, or the frequencies of the labels that have followed the last one."""
    y = stream.codes[:n]
    if not stream.classify:
        return Predicted(np.concatenate([np.zeros(1), y[:-1]]))
    counts, values, before = np.ones((stream.n_classes, stream.n_classes)), np.ones((n, stream.n_classes)), y[0]
    for i in range(1, n):
        values[i] = counts[before]
        counts[before, y[i]] += 1.0
        before = y[i]
    return Predicted(values / values.sum(axis=1, keepdims=True))


def nearest(stream: Stream, n: int) -> Predicted:
    """Predict the mean or the frequencies of the ten nearest of the last thousand events, on scales of all so far."""
    X, y = stream.dense[:n], stream.codes[:n]
    said = np.eye(stream.n_classes)[y] if stream.classify else y[:, None]
    values, mean, squares = np.zeros((n, said.shape[1])), np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for i in range(n):
        since = max(i - WINDOW, 0)
        scale = np.sqrt(squares / max(i, 1))
        distances = (((X[since:i] - X[i]) / np.where(scale > 0.0, scale, 1.0)) ** 2).sum(axis=1)
        near = np.argpartition(distances, NEAREST)[:NEAREST] if i > NEAREST else np.arange(i)
        values[i] = said[since:i][near].sum(axis=0) + PRIOR_COUNT * said[:i].mean(axis=0) if i else 0.0
        values[i] /= len(near) + PRIOR_COUNT
        error = X[i] - mean
        mean += error / (i + 1)
        squares += error * (X[i] - mean)
    return Predicted(values if stream.classify else values[:, 0])


# -- River -------------------------------------------------------------------------------------------------------------


def river_linear(stream: Stream, n: int) -> Predicted:
    """Linear, logistic or multinomial logistic regression by stochastic gradient descent."""
    if not stream.classify:
        return _river(linear_model.LinearRegression(), stream, n, sparse=True)
    model = linear_model.LogisticRegression() if stream.n_classes == 2 else linear_model.SoftmaxRegression()
    return _river(model, stream, n, sparse=True)


def hoeffding(stream: Stream, n: int) -> Predicted:
    """A Hoeffding tree that replaces its branches after drifts."""
    kinds = {True: tree.HoeffdingAdaptiveTreeClassifier, False: tree.HoeffdingAdaptiveTreeRegressor}
    return _river(kinds[stream.classify](seed=0), stream, n, sparse=False)


def adaptive_forest(stream: Stream, n: int) -> Predicted:
    """Ten of those on bootstrap samples."""
    kinds = {True: forest.ARFClassifier, False: forest.ARFRegressor}
    return _river(kinds[stream.classify](seed=0), stream, n, sparse=False)


def _river(model: Any, stream: Stream, n: int, *, sparse: bool) -> Predicted:
    """Run a River learner; `sparse` leaves out the columns of levels that an event does not have."""
    names = stream.dense_names
    count = len(stream.numbers)
    scaler = preprocessing.StandardScaler()
    values = np.zeros((n, stream.n_classes) if stream.classify else n)
    for i, (row, target) in enumerate(zip(stream.dense[:n].tolist(), stream.codes[:n].tolist(), strict=True)):
        numbers = dict(zip(names[:count], row[:count], strict=True))
        levels = {name: v for name, v in zip(names[count:], row[count:], strict=True) if v or not sparse}
        x = {**scaler.transform_one(numbers), **levels}
        if stream.classify:
            for label, probability in model.predict_proba_one(x).items():
                # A learner of two classes calls them False and True, which are 0 and 1.
                values[i, int(label)] = probability
        else:
            values[i] = model.predict_one(x) or 0.0
        scaler.learn_one(numbers)
        model.learn_one({**scaler.transform_one(numbers), **levels}, target)
    return Predicted(values)


# -- Vowpal Wabbit -----------------------------------------------------------------------------------------------------


def vowpal(stream: Stream, n: int, options: str = "") -> Predicted:
    """Run Vowpal Wabbit, with one classifier against all others for each class."""
    from vowpalwabbit import Workspace

    M = stream.n_classes
    kind = f"--oaa {M} --loss_function logistic --probabilities" if stream.classify else ""
    model = Workspace(f"--quiet {kind} {options}")
    values = np.zeros((n, M) if stream.classify else n)
    for i, (row, target) in enumerate(zip(stream.dense[:n].tolist(), stream.codes[:n].tolist(), strict=True)):
        features = " ".join(f"x{j}:{value:.9g}" for j, value in enumerate(row) if value)
        # Parsed apart from the target, by which it would widen the range that it clips predictions to.
        example = model.parse(f"|f {features}")
        values[i] = model.predict(example)
        model.finish_example(example)
        # It counts classes from 1.
        example = model.parse(f"{target + 1 if stream.classify else target} |f {features}")
        model.learn(example)
        model.finish_example(example)
    model.finish()
    return Predicted(values)


def vowpal_pairs(stream: Stream, n: int) -> Predicted:
    """Run Vowpal Wabbit with all products of two inputs."""
    return vowpal(stream, n, "-q ff")


# -- LightGBM ----------------------------------------------------------------------------------------------------------


def lightgbm(stream: Stream, n: int) -> Predicted:
    """Predict by trees boosted on all events so far, fitted again whenever their number has doubled.

    Before the first fit, the mean or the frequencies predict. Events are kept, which no other learner here does.
    """
    import lightgbm as boosting

    X, y = stream.dense, stream.codes
    values = mean(stream, min(n, FIRST_FIT)).values
    values = np.concatenate([values, np.zeros((n - len(values), *values.shape[1:]))])
    seen = FIRST_FIT
    while seen < n:
        ahead = slice(seen, min(2 * seen, n))
        M = int(y[:seen].max()) + 1 if stream.classify else 0
        if M == 1:
            values[ahead, 0] = 1.0
        else:
            kinds: dict[int, dict[str, Any]] = {0: {"objective": "regression"}, 2: {"objective": "binary"}}
            kind = kinds.get(M, {"objective": "multiclass", "num_class": M})
            options = {**kind, "num_threads": 1, "seed": 0, "deterministic": True, "verbosity": -1}
            model = boosting.train(options, boosting.Dataset(X[:seen], y[:seen]))
            found = np.asarray(model.predict(X[ahead]))
            if not stream.classify:
                values[ahead] = found
            else:
                values[ahead, :M] = np.column_stack([1.0 - found, found]) if M == 2 else found
        seen *= 2
    return Predicted(values)


LEARNERS = {
    "streammoe": Learner(ours),
    "mean": Learner(mean),
    "river-linear": Learner(river_linear),
    "one-expert": Learner(one_expert),
    "vw": Learner(vowpal, "vowpalwabbit"),
    "vw-ff": Learner(vowpal_pairs, "vowpalwabbit"),
    "lightgbm": Learner(lightgbm, "lightgbm"),
    "last": Learner(last),
    "nearest": Learner(nearest, slow=True),
    "hat": Learner(hoeffding, slow=True),
    "arf": Learner(adaptive_forest, slow=True),
}
"""Ours first; slow ones last."""
OURS = "streammoe"
BASELINES = ("mean", "last", "river-linear", "vw", "vw-ff", "one-expert")
"""Learners as cheap as ours; the best of them on a stream is what ours is compared with."""
