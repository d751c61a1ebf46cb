"""Run other online learners on the same events, predicting first: River's and, if installed, Vowpal Wabbit.

Vowpal Wabbit is optional: `pip install vowpalwabbit`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from river import forest, linear_model, preprocessing, tree

from streammoe.invocation import python


def river(make: Callable[[], Any], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the predictions of a River model, (n,); y are floats, or class indexes."""
    model = make()
    names = [f"x{j:02}" for j in range(X.shape[1])]
    predictions = np.zeros(len(y))
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        x = dict(zip(names, row, strict=True))
        predicted = model.predict_one(x)
        # A classifier that has seen no class predicts none.
        predictions[i] = -1.0 if predicted is None else predicted
        model.learn_one(x, target)
    return predictions


def vowpal(arguments: str, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the predictions of Vowpal Wabbit, whose classes count from 1."""
    from vowpalwabbit import Workspace

    classes = np.issubdtype(y.dtype, np.integer)
    model = Workspace(f"--quiet {arguments}")
    predictions = np.zeros(len(y))
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        features = " ".join(f"x{j}:{value:.9g}" for j, value in enumerate(row))
        example = model.parse(f"{target + 1 if classes else target} |f {features}")
        predictions[i] = model.predict(example) - (1 if classes else 0)
        model.learn(example)
        model.finish_example(example)
    model.finish()
    return predictions


def has_vowpal() -> bool:
    """Return whether Vowpal Wabbit is installed."""
    return find_spec("vowpalwabbit") is not None


def linear_regression() -> Any:
    """Stochastic gradient descent after a scaler."""
    return preprocessing.StandardScaler() | linear_model.LinearRegression()


def quadratic_bayesian() -> Any:
    """All products of two inputs, and Bayesian linear regression."""
    from river.feature_extraction import PolynomialExtender

    return PolynomialExtender(2) | linear_model.BayesianLinearRegression()


def forest_regressor() -> Any:
    """Ten adaptive trees."""
    return forest.ARFRegressor(seed=0)


def softmax() -> Any:
    """Multinomial logistic regression after a scaler."""
    return preprocessing.StandardScaler() | linear_model.SoftmaxRegression()


def quadratic_softmax() -> Any:
    """All products of two inputs, and multinomial logistic regression."""
    from river.feature_extraction import PolynomialExtender

    return PolynomialExtender(2) | linear_model.SoftmaxRegression()


def forest_classifier() -> Any:
    """Ten adaptive trees."""
    return forest.ARFClassifier(seed=0)


RIVER_REGRESSORS: dict[str, tuple[Callable[[], Any], int, int | None]] = {
    "river LinearRegression": (linear_regression, 2, None),
    "river PolynomialExtender(2) | BayesianLinearRegression": (quadratic_bayesian, 2, None),
    "river HoeffdingTreeRegressor": (tree.HoeffdingTreeRegressor, 2, None),
    "river ARFRegressor, 6,000 events": (forest_regressor, 1, 6000),
}
"""How it is made, on how many streams, and of how many events."""
RIVER_CLASSIFIERS: dict[str, tuple[Callable[[], Any], int, int | None]] = {
    "river SoftmaxRegression": (softmax, 2, None),
    "river PolynomialExtender(2) | SoftmaxRegression": (quadratic_softmax, 1, None),
    "river HoeffdingTreeClassifier": (tree.HoeffdingTreeClassifier, 2, None),
    "river ARFClassifier, 6,000 events": (forest_classifier, 1, 6000),
}
VOWPAL_REGRESSORS = {"Vowpal Wabbit": "", "Vowpal Wabbit -q ff": "-q ff"}
VOWPAL_CLASSIFIERS = {"Vowpal Wabbit --oaa": "--oaa {}", "Vowpal Wabbit --oaa -q ff": "--oaa {} -q ff"}


class Job(NamedTuple):
    """Result of a learner on a stream, as passed between processes."""

    name: str
    seed: int
    events: int | None


def jobs(classes: int | None, *, quick: bool) -> list[Job]:
    """Return all learners to compare with on one kind of stream; `classes` is None for regression."""
    rivers = RIVER_REGRESSORS if classes is None else RIVER_CLASSIFIERS
    vowpals = VOWPAL_REGRESSORS if classes is None else VOWPAL_CLASSIFIERS
    found = [Job(name, seed, events) for name, (_, seeds, events) in rivers.items() for seed in range(seeds)]
    if has_vowpal():
        found += [Job(name, seed, None) for name in vowpals for seed in range(2)]
    return [job._replace(events=200) for job in found if job.seed == 0] if quick else found


def run(name: str, X: np.ndarray, y: np.ndarray, classes: int | None) -> np.ndarray:
    """Return the predictions of a learner by its name."""
    if classes is None and name in RIVER_REGRESSORS:
        return river(RIVER_REGRESSORS[name][0], X, y)
    if classes is not None and name in RIVER_CLASSIFIERS:
        return river(RIVER_CLASSIFIERS[name][0], X, y)
    arguments = VOWPAL_REGRESSORS[name] if classes is None else VOWPAL_CLASSIFIERS[name].format(classes)
    return vowpal(arguments, X, y)


NO_VOWPAL = f"Vowpal Wabbit: not installed; `{python()} -m pip install vowpalwabbit` adds its rows."
