"""How fast are frames of polars and Arrow learned, next to the same ones of pandas?

    python -m benchmarks.frames

Each rate is the best of several, in turns. Overhead is the time that a call with one row of many columns takes beyond
that of the same call with an array, whose columns need no names.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from streammoe import MoERegressor
from streammoe.estimators.frames import table_of

N, WIDTH, TURNS, CALLS = 20_000, 200, 5, 200
KINDS: Mapping[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "pyarrow": lambda table: table,
}


def make_table() -> pa.Table:
    """Return rows of numbers, whole numbers and truth values with holes, categories, texts and times."""
    rng = np.random.default_rng(0)
    holes = rng.random(N) < 0.1
    columns = {f"x{j}": pa.array(rng.normal(size=N)) for j in range(6)}
    columns["count"] = pa.array(rng.integers(0, 100, N), mask=holes)
    columns["flag"] = pa.array(rng.random(N) < 0.5)
    columns["kind"] = pa.array(np.array(["r", "g", "b"])[rng.integers(0, 3, N)]).dictionary_encode()
    columns["text"] = pa.array(np.array(["u", "v"])[rng.integers(0, 2, N)])
    columns["at"] = pa.array(np.datetime64("2026-01-01", "us") + rng.integers(0, 10**13, N), pa.timestamp("us", "UTC"))
    columns["y"] = pa.array(columns["x0"].to_numpy() * (columns["x1"].to_numpy() > 0.0) + 0.1 * rng.normal(size=N))
    return pa.table(columns)


def best(turns: int, *calls: Callable[[], Any]) -> list[float]:
    """Return the least seconds of each call, made in turns."""
    found = [float("inf")] * len(calls)
    for _ in range(turns):
        for at, call in enumerate(calls):
            began = time.perf_counter()
            call()
            found[at] = min(found[at], time.perf_counter() - began)
    return found


def parts(frame: Any) -> tuple[Any, Any]:
    """Return inputs and targets."""
    if isinstance(frame, pa.Table):
        return frame.drop_columns("y"), frame["y"]
    return frame.drop(columns="y") if isinstance(frame, pd.DataFrame) else frame.drop("y"), frame["y"]


def main() -> None:
    given = {kind: parts(make(make_table())) for kind, make in KINDS.items()}
    models: dict[str, MoERegressor] = {}

    def learn(kind: str) -> None:
        models[kind] = MoERegressor(2)
        models[kind].learn_many(*given[kind])

    learning = best(TURNS, *(lambda kind=kind: learn(kind) for kind in given))
    encoder = models["pandas"].learner.encoder
    reading = best(TURNS, *(lambda X=X: table_of(encoder, X) for X, _ in given.values()))
    print(f"{'':10}{'rows/s':>10}{'of pandas':>11}{'read alone, rows/s':>20}{'of pandas':>11}  same model")
    for kind, learned, read in zip(given, learning, reading, strict=True):
        same = models[kind].state_digest() == models["pandas"].state_digest()
        shares = f"{N / learned:10,.0f}{learning[0] / learned:11.2f}{N / read:20,.0f}{reading[0] / read:11.2f}"
        print(f"{kind:10}{shares}  {same}")

    X = np.random.default_rng(0).normal(size=(1_000, WIDTH))
    wide = MoERegressor(1, warmup=0)
    wide.learn_array(X[:300], X[:300, 0])
    one = pa.table({f"x{j}": X[:1, j] for j in range(WIDTH)})
    for kind, make in KINDS.items():
        frame = make(one)
        array, many = best(CALLS, lambda: wide.predict_array(X[:1]), lambda frame=frame: wide.predict_many(frame))
        print(f"{kind}: a call with {WIDTH} columns takes {1e3 * (many - array):.2f} ms more than with an array")


if __name__ == "__main__":
    main()
