"""Does a mixture name the classes of real images as well as River's classifiers, each event predicted before learned?

River's ImageSegments, 2,310 events of 18 inputs and 7 classes, in the order in which River gives them. All learners
stand behind a StandardScaler, and take one event at a time. Speeds are the best of a few runs in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

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


def hits(make: Callable[[], base.Classifier], events: Events) -> tuple[np.ndarray, float]:
    """Which events were named rightly before they were learned, and how long the pass took."""
    model = preprocessing.StandardScaler() | make()
    found = np.zeros(len(events), np.bool_)
    begun = time.perf_counter()
    for i, (x, y) in enumerate(events):
        found[i] = model.predict_one(x) == y
        model.learn_one(x, y)
    return found, time.perf_counter() - begun


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each learner")
    repeats = parser.parse_args(argv).repeats
    print(machine(), "\n")
    events: Events = list(datasets.ImageSegments())
    learners = {**OURS, **RIVERS}
    hits(OURS[DEFAULT], events[:500])  # kernels are compiled or loaded at their first use
    right: dict[str, np.ndarray] = {}
    seconds = dict.fromkeys(learners, np.inf)
    for turn in range(repeats):
        for name, make in learners.items():
            print(f"{name}: {turn + 1} of {repeats}", file=sys.stderr, flush=True)
            right[name], took = hits(make, events)
            seconds[name] = min(seconds[name], took)
    accuracy = {name: float(found.mean()) for name, found in right.items()}
    rows = []
    for name, found in right.items():
        judged = ["", ""]
        if name in OURS:
            better = sum(accuracy[other] > accuracy[name] for other in RIVERS)
            judged = [f"≤ {AHEAD} of River's above", "met" if better <= AHEAD else "MISSED"]
        halves = (accuracy[name], float(found[len(found) // 2 :].mean()))
        rate = f"{len(events) / seconds[name]:,.0f}"
        rows.append([name, *(f"{100.0 * part:.2f}" for part in halves), rate, *judged])
    print(f"ImageSegments, {len(events):,} events, accuracy in %; settings that a row does not name are defaults")
    print(table(["learner", "all", "2nd half", "events/s", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
