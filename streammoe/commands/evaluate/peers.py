"""River's learners, by name, as baselines of a run; names are looked up, never imported or evaluated."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from river import base, multiclass, preprocessing

from streammoe.errors import ConfigError

LOGGER = logging.getLogger("streammoe.commands.evaluate")
PREFIX = "river:"
MODULES = ("facto", "forest", "linear_model", "naive_bayes", "neighbors", "rules", "tree")
"""River's modules with learners that do not wrap another learner."""
TAKE_TEXT = {
    "ARFClassifier",
    "ExtremelyFastDecisionTreeClassifier",
    "HoeffdingAdaptiveTreeClassifier",
    "HoeffdingTreeClassifier",
    "LASTClassifier",
    "SGTClassifier",
    "SGTRegressor",
}
"""Learners that accept texts; all others get a one-hot column for each text."""


class Event(NamedTuple):
    """An event that the model has learned, in the form that River expects."""

    numbers: dict[str, float]
    """Excluding missing values."""
    texts: dict[str, str]
    y: tuple[float, ...] | str
    weight: float


class Peer:
    """A River learner with its scaler, score and time; one learner per output.

    Args:
        name: name in the table.
        learner: its class.
        classify: whether targets are labels.
        outputs: number of targets.
    """

    def __init__(self, name: str, learner: type[Any], *, classify: bool, outputs: int) -> None:
        self.name = name
        self.scores: list[float] = []
        """Squared errors, or whether it was right."""
        self.seconds = 0.0
        self.failure: str | None = None
        """Why the learner failed, if it did."""
        self._classify = classify
        self._takes_text = learner.__name__ in TAKE_TEXT
        self._scaler = preprocessing.StandardScaler()
        given = {"seed": 0} if _takes(learner, "seed") else {}
        self._models = [learner(**given) for _ in range(outputs)]
        if classify and not self._models[0]._multiclass:  # noqa: SLF001 - River has no other way to ask
            self._models = list(map(multiclass.OneVsRestClassifier, self._models))
        self._takes_weights = _takes(self._models[0], "w")

    def run(self, events: Sequence[Event]) -> None:
        """Predict and learn these events, one after the other, unless the learner has failed."""
        if self.failure is not None:
            return
        started = time.perf_counter()
        try:
            for event in events:
                self.scores.append(self._run_one(event))
        except Exception as error:  # noqa: BLE001 - an error of a foreign learner must not end the run
            self.failure = f"{type(error).__name__} after {len(self.scores):,} events: {error}"
            LOGGER.warning("%s failed: %s", self.name, self.failure)
        self.seconds += time.perf_counter() - started

    def _run_one(self, event: Event) -> float:
        x = self._features(event, learn=False)
        if self._classify:
            score = float(self._models[0].predict_one(x) == event.y)
        else:
            assert not isinstance(event.y, str)  # noqa: S101 - for the type checker
            predictions = [model.predict_one(x) or 0.0 for model in self._models]  # some predict None at first
            score = sum((y - p) ** 2 for y, p in zip(event.y, predictions, strict=True)) / len(event.y)
        x = self._features(event, learn=True)
        more = {"w": event.weight} if self._takes_weights and event.weight != 1.0 else {}
        for model, y in zip(self._models, (event.y,) if self._classify else event.y, strict=True):
            model.learn_one(x, y, **more)
        return score

    def _features(self, event: Event, *, learn: bool) -> dict[str, Any]:
        if learn:
            self._scaler.learn_one(event.numbers)
        x: dict[str, Any] = self._scaler.transform_one(event.numbers)
        if event.texts:
            x |= event.texts if self._takes_text else {f"{name}={text}": 1.0 for name, text in event.texts.items()}
        return x


def make_peer(name: str, *, classify: bool, outputs: int) -> Peer:
    """Create a learner by name: ``river:LinearRegression`` or ``river:linear_model.LinearRegression``.

    Raises:
        ConfigError: there is no such learner for this task.
    """
    known = learners(classify=classify)
    if not name.startswith(PREFIX):
        raise ConfigError(f"--against {name!r}: must begin with {PREFIX!r}, such as river:{min(known)}")
    wanted = name.removeprefix(PREFIX).strip()
    module, _, short = wanted.removeprefix("river.").rpartition(".")
    found = known.get(short)
    if found is None or module not in {"", found[0]}:
        near = difflib.get_close_matches(short, known, n=1)
        hint = f"did you mean {PREFIX}{near[0]}?" if near else f"choose one of {', '.join(sorted(known))}"
        task = "classifier" if classify else "regressor"
        raise ConfigError(f"--against {name!r}: must be a River {task}; {hint}")
    return Peer(f"river {short}", found[1], classify=classify, outputs=outputs)


def learners(*, classify: bool) -> Mapping[str, tuple[str, type[Any]]]:
    """Return River's learners for a task that require no arguments: module and class by class name."""
    kind = base.Classifier if classify else base.Regressor
    found: dict[str, tuple[str, type[Any]]] = {}
    for name in MODULES:
        # From the list above: user input is only compared with the names found here.
        module = importlib.import_module(f"river.{name}")
        members: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isclass)
        for short, learner in members:
            if (
                issubclass(learner, kind)
                and not issubclass(learner, base.MultiTargetRegressor)
                and not inspect.isabstract(learner)
                and _has_only_defaults(learner)
            ):
                found[short] = (name, learner)
    return found


def _has_only_defaults(learner: type[Any]) -> bool:
    parameters = inspect.signature(learner).parameters.values()
    kinds = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return all(parameter.default is not parameter.empty or parameter.kind in kinds for parameter in parameters)


def _takes(thing: Any, name: str) -> bool:
    called = thing if inspect.isclass(thing) else thing.learn_one
    return name in inspect.signature(called).parameters
