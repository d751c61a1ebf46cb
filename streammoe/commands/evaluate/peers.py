"""River's learners, by name, beside which a run is judged; names are looked up, never imported or evaluated."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from river import base, dummy, multiclass, preprocessing, stats

from streammoe.commands.evaluate.curve import Curve
from streammoe.errors import ConfigError

LOGGER = logging.getLogger("streammoe.commands.evaluate")
PREFIX = "river:"
MODULES = ("facto", "forest", "linear_model", "naive_bayes", "neighbors", "rules", "tree")
"""River's modules with learners that need no other learner inside."""
TAKE_TEXT = {
    "ARFClassifier",
    "ExtremelyFastDecisionTreeClassifier",
    "HoeffdingAdaptiveTreeClassifier",
    "HoeffdingTreeClassifier",
    "LASTClassifier",
    "SGTClassifier",
    "SGTRegressor",
}
"""Learners that split on texts by themselves; all others get a column of ones for each text."""


class Event(NamedTuple):
    """What a peer sees: the event that our model has learned, as a dict."""

    numbers: dict[str, float]
    """Without those that are missing."""
    texts: dict[str, str]
    y: tuple[float, ...] | str
    weight: float


class Peer:
    """A learner with its scaler, its score and its time; one for each output if there are several.

    Args:
        name: in the table.
        make: makes a learner.
        classify: whether targets are labels.
        outputs: how many targets there are.
        takes_text: whether it is given texts as they are.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], *, classify: bool, outputs: int = 1, takes_text: bool = False
    ) -> None:
        self.name = name
        self.curve = Curve()
        self.seconds = 0.0
        self.failure: str | None = None
        """Why it gave up, if it did."""
        self._classify = classify
        self._takes_text = takes_text
        self._scaler = preprocessing.StandardScaler()
        self._models = [make() for _ in range(outputs)]
        self._takes_weights = _takes(self._models[0], "w")
        self.looks = not isinstance(self._models[0], dummy.PriorClassifier | dummy.StatisticRegressor)
        """Whether it cares for what an event holds beside its target."""

    @property
    def events_per_second(self) -> float:
        """Of predicting and learning; making the dicts is not in it."""
        return self.curve.count / self.seconds if self.seconds else math.nan

    def run(self, events: Sequence[Event]) -> None:
        """Predict and learn these events, one after the other, unless it has given up."""
        if self.failure is not None:
            return
        losses: list[float] = []
        started = time.perf_counter()
        try:
            for event in events:
                losses.append(self._run_one(event))  # noqa: PERF401 - those before a failure count
        except Exception as error:  # noqa: BLE001 - whatever a foreign learner raises ends that learner, not the run
            self.failure = f"{type(error).__name__} after {self.curve.count + len(losses):,} events: {error}"
            LOGGER.warning("%s gave up: %s", self.name, self.failure)
        self.seconds += time.perf_counter() - started
        self.curve.add(np.array(losses).reshape(-1, 1))

    def _run_one(self, event: Event) -> float:
        x = self._features(event, learn=False)
        if self._classify:
            loss = float(self._models[0].predict_one(x) != event.y)
        else:
            assert not isinstance(event.y, str)  # noqa: S101 - for the type checker
            predictions = [model.predict_one(x) or 0.0 for model in self._models]  # some begin with None
            loss = sum((y - p) ** 2 for y, p in zip(event.y, predictions, strict=True)) / len(event.y)
        x = self._features(event, learn=True)
        more = {"w": event.weight} if self._takes_weights and event.weight != 1.0 else {}
        for model, y in zip(self._models, (event.y,) if self._classify else event.y, strict=True):
            model.learn_one(x, y, **more)
        return loss

    def _features(self, event: Event, *, learn: bool) -> dict[str, Any]:
        if not self.looks:
            return {}
        if learn:
            self._scaler.learn_one(event.numbers)  # type: ignore[no-untyped-call]
        x: dict[str, Any] = self._scaler.transform_one(event.numbers)  # type: ignore[no-untyped-call]
        if event.texts:
            x |= event.texts if self._takes_text else {f"{name}={text}": 1.0 for name, text in event.texts.items()}
        return x


def baseline(*, classify: bool, outputs: int) -> Peer:
    """What any learner must beat: the mean so far, or the class that was most frequent so far."""
    if classify:
        return Peer("most frequent class", dummy.PriorClassifier, classify=True)
    return Peer("running mean", lambda: dummy.StatisticRegressor(stats.Mean()), classify=False, outputs=outputs)


def peer(name: str, *, classify: bool, outputs: int, seed: int) -> Peer:
    """The learner that a user names, ``river:LinearRegression`` or ``river:linear_model.LinearRegression``.

    Raises:
        ConfigError: there is none of that name for this task.
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
        raise ConfigError(f"--against {name!r}: must be a {task} of River; {hint}")
    learner = found[1]
    given = {"seed": seed} if _takes(learner, "seed") else {}
    wrap = classify and not learner(**given)._multiclass  # noqa: SLF001 - River has no other way to ask

    def make() -> Any:
        model = learner(**given)
        return multiclass.OneVsRestClassifier(model) if wrap else model

    return Peer(f"river {short}", make, classify=classify, outputs=outputs, takes_text=short in TAKE_TEXT)


def learners(*, classify: bool) -> Mapping[str, tuple[str, type[Any]]]:
    """River's learners for a task, which need no arguments: module and class by the class's name."""
    kind = base.Classifier if classify else base.Regressor
    found: dict[str, tuple[str, type[Any]]] = {}
    for name in MODULES:
        # From the list above: what a user writes is only compared with what is found here.
        module = importlib.import_module(f"river.{name}")
        members: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isclass)
        for short, learner in members:
            if (
                issubclass(learner, kind)
                and not issubclass(learner, base.MultiTargetRegressor)
                and not inspect.isabstract(learner)
                and _needs_nothing(learner)
            ):
                found[short] = (name, learner)
    return found


def _needs_nothing(learner: type[Any]) -> bool:
    parameters = inspect.signature(learner).parameters.values()
    kinds = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return all(parameter.default is not parameter.empty or parameter.kind in kinds for parameter in parameters)


def _takes(thing: Any, name: str) -> bool:
    called = thing if inspect.isclass(thing) else thing.learn_one
    return name in inspect.signature(called).parameters
