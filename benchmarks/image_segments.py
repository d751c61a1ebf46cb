"""Does a mixture classify real images as well as River's classifiers, predicting each event before it is learned?

River's ImageSegments, 2,310 events of 18 inputs and 7 classes, in River's order. River's learners follow a
StandardScaler. All take one event at a time. Speeds are the best of a few runs in turn. A mixture starts after its
warm-up, whose fit is one long event; before that a single expert predicts, or a mixture fitted to the first few hundred
events.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from river import base, datasets, forest, linear_model, naive_bayes, preprocessing, tree

from benchmarks.report import machine, table
from streammoe import MoEClassifier

AHEAD = 1
"""Most of River's learners that may be better over all events."""
DEFAULT = "streammoe, default settings"
OURS: dict[str, Callable[[], base.Classifier]] = {
    DEFAULT: MoEClassifier,
    "streammoe, 2 experts, warmup=300": lambda: MoEClassifier(2, warmup=300),
}
RIVERS: dict[str, Callable[[], base.Classifier]] = {
    "river SoftmaxRegression": linear_model.SoftmaxRegression,
    "river HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier,
    "river ARFClassifier, seed=0": lambda: forest.ARFClassifier(seed=0),
    "river GaussianNB": naive_bayes.GaussianNB,
}
Events = list[tuple[dict[str, float], str]]


class Pass(NamedTuple):
    """Results of one learner over all events."""

    right: np.ndarray
    """(n,) which were named rightly before they were learned."""
    seconds: np.ndarray
    """(n,) to predict and learn each."""
    begins: int | None
    """How many events a mixture has met when it begins; None for other learners, and where that never comes."""


def one_pass(make: Callable[[], base.Classifier], events: Events) -> Pass:
    """Predict, then learn every event."""
    learner = make()
    model = learner if isinstance(learner, MoEClassifier) else preprocessing.StandardScaler() | learner
    right, seconds = np.zeros(len(events), np.bool_), np.zeros(len(events))
    begins = None
    for i, (x, y) in enumerate(events):
        begun = time.perf_counter()
        right[i] = model.predict_one(x) == y
        model.learn_one(x, y)
        seconds[i] = time.perf_counter() - begun
        if begins is None and isinstance(learner, MoEClassifier) and not learner.is_warming_up:
            begins = i + 1
    return Pass(right, seconds, begins)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each learner")
    repeats = parser.parse_args(argv).repeats
    print(machine(), "\n")
    events: Events = list(datasets.ImageSegments())
    learners = {**OURS, **RIVERS}
    one_pass(OURS[DEFAULT], events[:500])  # kernels are compiled or loaded at their first use
    best: dict[str, Pass] = {}
    for turn in range(repeats):
        for name, make in learners.items():
            print(f"{name}: {turn + 1} of {repeats}", file=sys.stderr, flush=True)
            found = one_pass(make, events)
            if name not in best or found.seconds.sum() < best[name].seconds.sum():
                best[name] = found
    accuracy = {name: float(found.right.mean()) for name, found in best.items()}
    rows = []
    for name, found in best.items():
        begins, judged = "", ["", ""]
        if name in OURS:
            begins = "never" if found.begins is None else f"{found.begins:,}"
            better = sum(accuracy[other] > accuracy[name] for other in RIVERS)
            judged = [f"≤ {AHEAD} of River's above", "met" if better <= AHEAD else "MISSED"]
        halves = (accuracy[name], float(found.right[len(events) // 2 :].mean()))
        rows.append(
            [
                name,
                *(f"{100.0 * part:.2f}" for part in halves),
                f"{len(events) / found.seconds.sum():,.0f}",
                f"{1e3 * found.seconds.max():,.0f}",
                begins,
                *judged,
            ]
        )
    print(f"ImageSegments, {len(events):,} events, accuracy in %; settings not listed in a row are defaults")
    headers = ["learner", "all", "2nd half", "events/s", "longest event, ms", "mixture from event", "target", "verdict"]
    print(table(headers, rows))


if __name__ == "__main__":
    main()
