"""Are two versions of the code the same model, and as fast? For changes that must not move a bit.

    python -m benchmarks.judge digests --out old.json       # in each checkout
    python -m benchmarks.judge compare old.json new.json
    python -m benchmarks.judge speed OLD_CHECKOUT NEW_CHECKOUT

`digests` learns three streams with forty configurations in three ways: event by event, in arrays, and in arrays with a
checkpoint and a restart between them. Of each it writes the digest of the state and of what was predicted; the three
ways of one configuration must agree, and so must two versions. `speed` runs both checkouts by turns, and prints the
ratios of what they do in a second.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.distributions import Gaussian
from streammoe.options import Auto, Lags

N = 640
WARM = 120
REGRESSOR: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one expert": {"n_experts": 1},
    "eight experts": {"n_experts": 8},
    "no warm-up": {"warmup": 0, "standardize": False},
    "long warm-up": {"warmup": 400},
    "auto": {"n_experts": Auto(3)},
    "student_t": {"expert": "student_t"},
    "laplace": {"expert": "laplace"},
    "student_t alone": {"expert": "student_t", "n_experts": 1},
    "degree 2": {"degree": 2},
    "gate degree 2": {"gate_degree": 2},
    "wide": {"degree": 8},
    "lags": {"lags": 2},
    "lags of two": {"lags": Lags(2, ("a", "b"))},
    "average alone": {"serve": "polyak"},
    "curved on": {"curved": "on"},
    "curved off": {"curved": "off"},
    "not held": {"hold": False},
    "drift off": {"drift": "off"},
    "top 1": {"top_k": 1},
    "tight bound": {"bound": "tight"},
    "adaptive bound": {"bound": "adaptive"},
    "constant steps": {"schedule": schedules.Constant(0.02)},
    "exponential average": {"averaging": "exponential"},
    "decaying average": {"averaging": "decay"},
    "strong prior": {"prior_strength": 5.0},
    "reservoir": {"reservoir": 60},
    "few levels": {"max_levels": 3},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "defaults": {},
    "full": {"expert": Gaussian("full")},
    "student_t": {"expert": "student_t"},
    "lags": {"lags": 2},
}
CLASSES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one expert": {"n_experts": 1},
    "auto": {"n_experts": Auto(3)},
    "paper bound": {"bound": "paper"},
    "adaptive bound": {"bound": "adaptive"},
    "degree 2": {"degree": 2},
    "no warm-up": {"warmup": 0, "standardize": False},
    "average alone": {"serve": "polyak"},
}
KINDS = {
    "regressor": (MoERegressor, REGRESSOR),
    "several": (MoEMultiTargetRegressor, SEVERAL),
    "classifier": (MoEClassifier, CLASSES),
}
NAMES = ["a", "b", "c", "d"]


def plain(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two regions with a relation each, and labels and targets that are wrong now and then."""
    X = rng.normal(size=(N, 4))
    y = np.where(X[:, 0] > 0.0, X @ [1.0, 2.0, 0.0, 0.5], X @ [1.0, -2.0, 1.0, 0.0]) + 0.2 * rng.normal(size=N)
    y[rng.random(N) < 0.02] += 15.0
    return X, y


def drifting(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A relation that changes at once, a column that does not vary until then, and inputs out of range."""
    X, y = plain(rng)
    after = np.arange(N) >= 420
    X[:, 3] = np.where(after, 1.4, 1.1)
    y = np.where(after, 3.0 - y, y)
    X[rng.random(N) < 0.01, 1] *= 3e3
    return X, y


def broken(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Missing values, a column that comes late, and targets that grow."""
    X, y = plain(rng)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[:200, 2] = np.nan
    return X, y + 0.01 * np.arange(N)


STREAMS = {stream.__name__: stream for stream in (plain, drifting, broken)}
WAYS = {"events": range(N + 1), "arrays": [0, 50, 130, 131, 430, N], "restart": [0, 90, 300, 500, N]}


def judged(kind: str, name: str, stream: str) -> dict[str, list[str]]:
    """Return the digests of state and predictions of a configuration, by the way in which it learned."""
    warnings.simplefilter("ignore")
    made, configurations = KINDS[kind]
    options = {"warmup": WARM, **configurations[name]}
    X, y = STREAMS[stream](np.random.default_rng(5))
    given = pd.DataFrame(X, columns=NAMES).assign(k=np.where(np.arange(N) % 7 < 3, "u", "v"))
    given.loc[500:, "k"] = "w"
    T: Any = pd.Series(y, name="y")
    if kind == "several":
        T = pd.DataFrame({"p": y, "q": 0.5 * np.nan_to_num(X[:, 1]) - y})
    elif kind == "classifier":
        T = pd.Series(np.digitize(y, [-1.0, 1.5]).astype(str), name="y")
    found = {}
    for way, cuts in WAYS.items():
        model = made(categorical=["k"], **options)
        predicted = []
        for first, last in pairwise(cuts):
            if way == "events":
                predicted.append(np.asarray(model.predict_many(given[first:last])).tolist())
            model.learn_many(given[first:last], T[first:last])
            if way == "restart":
                with tempfile.TemporaryDirectory() as folder:
                    model.save(Path(folder) / "model")
                    model = load(Path(folder) / "model")
        last_ones = np.asarray(model.predict_many(given[-40:])).tolist()
        found[way] = [model.state_digest(), digest(last_ones), digest(predicted)]
    return found


def digest(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def digests(out: Path, jobs: int) -> None:
    cases = [(kind, name, stream) for kind, (_, options) in KINDS.items() for name in options for stream in STREAMS]
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(judged, *zip(*cases, strict=True))
        result = {", ".join(case): ways for case, ways in zip(cases, found, strict=True)}
    out.write_text(json.dumps(result, indent=1))


def compare(old: Path, new: Path) -> int:
    """Print what differs, within each version and between them; return the number of differences."""
    one, other = (json.loads(path.read_text()) for path in (old, new))
    found = 0
    for name in sorted({*one, *other}):
        if name not in one or name not in other:
            print(f"{name}: only in {old if name in one else new}")
            continue
        for which, result in ((old, one[name]), (new, other[name])):
            if len({tuple(ways[:2]) for ways in result.values()}) > 1:
                found += 1
                print(f"{name}: its ways differ in {which}: {result}")
        states, predictions = ([[ways[at] for ways in r.values()] for r in (one[name], other[name])] for at in (0, 1))
        if one[name]["events"][1:] != other[name]["events"][1:] or predictions[0] != predictions[1]:
            found += 1
            print(f"{name}: predictions differ")
        elif states[0] != states[1]:
            found += 1
            print(f"{name}: states differ, predictions are equal")
    print(f"{len(one)} and {len(other)} cases, {found} differences")
    return found


def measure(events: int) -> dict[str, float]:
    """Return how many events a second are learned one by one, in arrays, and by the daemon from csv and JSON Lines."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(events, 10)).round(6)
    y = (np.where(X[:, 0] > 0, X[:, 1], -X[:, 2]) + 0.1 * rng.normal(size=events)).round(6)
    names = [f"x{j}" for j in range(10)]
    model = MoERegressor()
    model.learn_array(X, y, feature_names=names)
    rows = [dict(zip(names, row, strict=True)) for row in X[:5_000].tolist()]
    rates = {}
    began = time.process_time()
    for x, target in zip(rows, y.tolist(), strict=False):
        model.predict_one(x)
        model.learn_one(x, target)
    rates["one event"] = len(rows) / (time.process_time() - began)
    began = time.process_time()
    for first in range(0, events, 1_000):
        model.learn_array(X[first : first + 1_000], y[first : first + 1_000], feature_names=names)
    rates["arrays"] = events / (time.process_time() - began)
    table = pd.DataFrame(X, columns=names).assign(y=y)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("csv", "jsonl"):
            path = Path(folder) / f"data.{kind}"
            if kind == "csv":
                table.to_csv(path, index=False)
            else:
                table.to_json(path, orient="records", lines=True)
            config = Path(folder) / f"{kind}.toml"
            config.write_text(
                f'[source]\nkind = "file"\npath = "{path}"\n[schema]\ntarget = "y"\n[metrics]\nport = 0\n'
                f'[checkpoint]\ndir = "{folder}/{kind}"\n[dead_letters]\npath = "{folder}/{kind}.dead"\n'
            )
            before = os.times()
            subprocess.run([sys.executable, "-m", "streammoe", "run", config], check=True, capture_output=True)
            after = os.times()
            rates[kind] = events / (after.children_user - before.children_user)
    return rates


def speed(checkouts: list[Path], rounds: int, events: int) -> None:
    """Print the rates of two checkouts by turns, and the median of their ratios."""
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates = []
        for checkout in checkouts:
            environment = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout}/connectors", "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, str(Path(__file__).resolve()), "measure", "--events", str(events)]
            done = subprocess.run(command, check=True, capture_output=True, cwd=checkout, env=environment)
            rates.append(json.loads(done.stdout))
        print({name: (round(rates[0][name]), round(rate)) for name, rate in rates[1].items()}, flush=True)
        for name, rate in rates[1].items():
            ratios.setdefault(name, []).append(rate / rates[0][name])
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("digests", "compare", "speed", "measure"):
        command = commands.add_parser(name)
        if name == "digests":
            command.add_argument("--out", type=Path, required=True)
            command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        elif name == "measure":
            command.add_argument("--events", type=int, default=100_000)
        else:
            command.add_argument("given", type=Path, nargs=2)
        if name == "speed":
            command.add_argument("--rounds", type=int, default=7)
            command.add_argument("--events", type=int, default=100_000)
    given = parser.parse_args()
    if given.command == "digests":
        digests(given.out, given.jobs)
    elif given.command == "compare":
        sys.exit(compare(*given.given) > 0)
    elif given.command == "speed":
        speed([path.resolve() for path in given.given], given.rounds, given.events)
    else:
        print(json.dumps(measure(given.events)))


if __name__ == "__main__":
    main()
