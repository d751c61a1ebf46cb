"""Batch fits: all rows at once, by EM; the model can continue to learn from a stream.

>>> import numpy as np
>>> from streammoe import MoERegressor, batch
>>> X = np.random.default_rng(0).normal(size=(500, 2))
>>> y = np.where(X[:, 0] > 0, 1 + X[:, 1], -X[:, 1]) + 0.1 * np.random.default_rng(1).normal(size=500)
>>> model = MoERegressor(n_experts=2)
>>> done = batch.fit(model, X, y)
>>> done.converged, model.n, bool(done.rmse < 0.2)
(True, 500, True)
>>> model.learn_one({"x0": 0.5, "x1": 2.0}, 3.0)  # continues from a stream
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streammoe.engine.batch import NOTHING_TO_GAIN, Listener, Round
from streammoe.engine.state import UnsoundError
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators import MixtureOfExperts, problem_of
from streammoe.estimators.frames import frame_of
from streammoe.model import fitting
from streammoe.model.checks import by_rows, is_amount, is_whole
from streammoe.model.gathering import gathering
from streammoe.model.predicting import score
from streammoe.text import shown
from streammoe.types import AnyArray

__all__ = ["STARTS", "Fit", "FitPlan", "Listener", "Round", "fit", "fit_gathered"]

STARTS = ("warmup", "model")
ROUNDS = 1_000
TOLERANCE = 1e-7


@dataclass(frozen=True)
class Fit:
    """A fitted model, with the rounds that led to it."""

    model: MixtureOfExperts
    start: str
    n: int
    """Number of rows fitted: those with a target and a weight above 0."""
    trace: tuple[Round, ...]
    """The rounds from the start that led to the best result, the start included."""
    reason: str
    """Why the fit ended."""
    log_loss: float
    """Weighted mean of −log s(y|x) over the rows under the model, in the target's own units, in nats."""
    score: float
    """Weighted mean squared error over rows and outputs, or fraction of rows whose likeliest class is correct."""
    seconds: float
    """Duration of the fit, starts included."""

    @property
    def rmse(self) -> float | None:
        """Root of the weighted mean squared error over rows and outputs; None for classifiers."""
        return None if self.model.is_classifier else math.sqrt(self.score)

    @property
    def accuracy(self) -> float | None:
        """Weighted fraction of rows whose likeliest class is correct; None for regressors."""
        return self.score if self.model.is_classifier else None

    @property
    def converged(self) -> bool:
        """Whether it ended because there was nothing more to gain."""
        return self.reason in NOTHING_TO_GAIN

    @property
    def rounds(self) -> int:
        """Number of rounds after the start."""
        return self.trace[-1].number

    @property
    def objective(self) -> float:
        """Final penalized log-likelihood per event, in the model's own coordinates."""
        return max(each.objective for each in self.trace)


class FitPlan(NamedTuple):
    """How rows are fitted; `fit` says what each of these is."""

    start: str = "warmup"
    rounds: int = ROUNDS
    tolerance: float = TOLERANCE
    on_round: Listener | None = None

    def check(self, model: MixtureOfExperts) -> None:
        """Check that a model can be fitted like this.

        Raises:
            ConfigError: it cannot; it lists all reasons.
        """
        if problem := problem_of(model):
            raise ConfigError(f"model: {problem}")
        start, rounds, tolerance, on_round = self
        is_known = type(start) is str and start in STARTS
        rules = [
            (is_known, f"start: {shown(start)} is not known; choose one of {', '.join(STARTS)}"),
            (is_whole(rounds, 1), f"rounds: got {shown(rounds)}; it must be a whole number ≥ 1"),
            (is_amount(tolerance), f"tolerance: got {shown(tolerance)}; it must be a finite number ≥ 0"),
            (
                on_round is None or callable(on_round),
                f"on_round: got {shown(on_round)}; it must be a function of a Round",
            ),
            (
                not (is_known and start == "model" and model.is_warming_up),
                'start: "model" needs a model that has parameters; the warm-up of this one is not over; use "warmup"',
            ),
            (
                not (is_known and start == "warmup" and model.n),
                f'start: "warmup" needs a model that has learned nothing, and not {model.n} events; use "model" here',
            ),
        ]
        problems = [problem for holds, problem in rules if not holds]
        if problems:
            raise ConfigError(*problems)


def fit(
    model: MixtureOfExperts,
    X: Any,
    y: Any,
    *,
    start: str = "warmup",
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
    w: AnyArray | None = None,
    feature_names: Sequence[Any] | None = None,
    on_round: Listener | None = None,
) -> Fit:
    """Fit a model to all rows at once; it can then predict, be saved, and continue with `learn_one`.

    The rows pass through the model's own encoder, like those of a warm-up: categories, times, missing values, and, with
    ``standardize``, moments that are frozen from then on. Afterwards the model is one whose warm-up was these rows:
    its statistics are their averages and ``model.n`` is their number.

    EM ([MD] Algorithm 1) takes responsibilities, then weighted least squares and weighted softmax regressions to
    convergence. It maximizes the mean log-likelihood, with the prior's `prior_strength` pseudo-events (at least
    0.001, or a degenerate expert would have unbounded likelihood).

    Args:
        model: a regressor or classifier of this package. On an error it is not modified.
        X: (n, P) finite numbers; or a data frame; or a sequence of n dicts, in which a key may be missing.
        y: targets as `learn_array`, `learn_many` or `learn_one` take them.
        start: ``"warmup"``: the starts of a warm-up, over all rows, for a model that has learned nothing; EM runs
            from the likeliest few, and the best result counts. ``"model"``: the parameters that the model serves,
            with its own prior and scales; what it has learned so far affects only this start.
        rounds: maximum number of rounds from each start.
        tolerance: stop when a round changes the penalized mean log-likelihood by no more than this.
        w: (n,) weight of each row, in [0, 1e6]; by default 1.
        feature_names: names of the columns of an array; by default x0, x1, …
        on_round: called with each `Round` as it ends; if it returns True, the fit ends there.

    Raises:
        ConfigError: an argument is invalid, or the fit is not finite.
        InvalidEvent: a row is invalid or would make a parameter non-finite; its index is in ``row``.
    """
    plan = FitPlan(start, rounds, tolerance, on_round)
    plan.check(model)
    trial = copy.deepcopy(model)
    with gathering(trial.learner):
        _gather(trial, X, y, w, feature_names)
        done = fit_gathered(trial, plan)
    vars(model).update(vars(trial))
    return Fit(**{**vars(done), "model": model})


def not_converged(error: UnsoundError) -> ConfigError:
    """Return the error of a batch fit that is not finite."""
    return ConfigError(
        f"fit: no convergence to finite parameters ({error}); look for outliers, and set prior_strength above 0"
    )


def fit_gathered(model: MixtureOfExperts, plan: FitPlan) -> Fit:
    """Fit the rows that a model has learned within `gathering`; discard the model on an error.

    Raises:
        ConfigError: there are no rows, or the fit is not finite.
    """
    began = time.perf_counter()
    try:
        descent, (X, Y, weights) = fitting.fit_gathered(
            model.learner,
            from_model=plan.start == "model",
            rounds=plan.rounds,
            tolerance=plan.tolerance,
            on_round=plan.on_round,
        )
    except UnsoundError as error:
        raise not_converged(error) from error
    losses, predictions, *_ = score(model.learner, X, Y)[0]
    scores = predictions.argmax(axis=1) == Y[:, 0] if model.is_classifier else ((Y - predictions) ** 2).mean(axis=1)
    log_loss, mean = (float(np.average(each, weights=weights)) for each in (losses, scores))
    return Fit(model, plan.start, len(X), descent.trace, descent.reason, log_loss, mean, time.perf_counter() - began)


def _gather(model: Any, X: Any, y: Any, weights: AnyArray | None, feature_names: Sequence[Any] | None) -> None:
    if isinstance(X, Sequence) and not len(X):
        raise ConfigError("X: got no rows; give at least one, with a target and a weight above 0")
    if frame_of(X, "X") is not None:
        if feature_names is not None:
            raise ConfigError("feature_names: a data frame has its own column names; omit feature_names")
        model.learn_many(X, y, weights)
    elif isinstance(X, Sequence) and isinstance(X[0], Mapping):
        targets, counts = list(y), [1.0] * len(X) if weights is None else list(weights)
        if not len(X) == len(targets) == len(counts):
            got = f"{len(X)} events, {len(targets)} targets and {len(counts)} weights"
            raise InvalidEvent(f"X: got {got}; each event needs its own", reason="wrong_shape")
        by_rows(lambda event: model.learn_one(*event), zip(X, targets, counts, strict=True))
    else:
        model.learn_array(X, y, w=weights, feature_names=feature_names)
