"""The demonstration: a real data set, streamed through the whole daemon, beside plain baselines on the same events.

The data are River's TrumpApproval: 1,001 days of five pollsters' approval ratings and the date, to predict the
average that FiveThirtyEight made of them. The relation drifts, so the daemon learns with constant steps.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from river import datasets, dummy, linear_model, preprocessing, stats

from streammoe.assembly import load_settings, open_daemon
from streammoe.errors import ConfigError
from streammoe.runtime.daemon import ProgressListener
from streammoe.runtime.signals import StopFlag
from streammoe.types import FloatArray

TARGET = "five_thirty_eight"
CONFIG = """\
# Written by `streammoe demo`; `streammoe run {folder}/demo.toml --fresh` streams the same file again.
[source]
kind = "file"
path = {data}
block_bytes = 4096

[schema]
target = "five_thirty_eight"

[model]
n_experts = 2
warmup = 200
schedule = {{ kind = "constant", gamma = 0.05 }}  # the relation drifts: the last 20 days or so count
averaging = "none"

[checkpoint]
dir = {state}

[dead_letters]
path = {dead_letters}

[metrics]
port = {port}
"""


class Report(NamedTuple):
    """What the demonstration found, and where to look."""

    table: str
    places: list[str]
    wait: Callable[[], None]
    """Blocks until SIGINT or SIGTERM, for a look at the metrics."""


class Row(NamedTuple):
    """One learner: root mean squared error over all events and over the second half, and its speed."""

    name: str
    rmse: float
    second_half: float
    events_per_second: float


@contextmanager
def run_demo(folder: Path, *, port: int, on_batch: ProgressListener) -> Iterator[Report]:
    """Stream the data; the metrics stay up until the context ends.

    Args:
        folder: where data, configuration, checkpoint and dead letters go.
        port: of the metrics; 0 takes any free one.
        on_batch: told the progress after each batch.
    """
    events = list(datasets.TrumpApproval())  # type: ignore[no-untyped-call]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "trump-approval.csv"
        _write_csv(data, events)
        config = folder / "demo.toml"
        config.write_text(
            CONFIG.format(
                folder=folder,
                data=json.dumps(str(data)),
                state=json.dumps(str(folder / "checkpoints")),
                dead_letters=json.dumps(str(folder / "dead-letters.jsonl")),
                port=port,
            )
        )
    except OSError as error:
        raise ConfigError(f"--dir {folder}: cannot be written ({error.strerror}); name another folder") from error
    with (
        StopFlag() as stop,
        open_daemon(load_settings(config, environment={}), fresh=True, on_batch=on_batch) as running,
    ):
        summary = running.daemon.run(stop)
        # The window of the scores is longer than this stream, so it holds every error.
        squared_errors = running.daemon.scores.averages["squared_error"].window
        rows = [_row("streammoe, 2 experts", squared_errors, summary.events_per_second)]
        if not stop.requested:
            rows += [_baseline(name, model, events) for name, model in _baselines().items()]
        yield Report(
            table=_table(summary.learned, rows),
            places=[
                f"metrics     {running.metrics_url} (while this runs; --stay keeps it up)",
                f"checkpoint  {summary.checkpoint} (streammoe inspect {folder / 'checkpoints'})",
                f"config      {config} (streammoe run {config} --fresh)",
            ],
            wait=lambda: _wait(stop),
        )


def _write_csv(path: Path, events: list[tuple[dict[str, Any], float]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        names = list(events[0][0])
        writer.writerow([*names, TARGET])
        for x, y in events:
            writer.writerow([*(x[name] for name in names), y])


def _baselines() -> dict[str, Any]:  # a pipeline that ends in a regressor is one, which River cannot say in types
    scaler = preprocessing.StandardScaler
    return {
        "river BayesianLinearRegression": scaler() | linear_model.BayesianLinearRegression(),
        "river LinearRegression (SGD)": scaler() | linear_model.LinearRegression(),
        "running mean": dummy.StatisticRegressor(stats.Mean()),
    }


def _baseline(name: str, model: Any, events: list[tuple[dict[str, Any], float]]) -> Row:
    started = time.perf_counter()
    squared_errors = []
    for x, y in events:
        squared_errors.append((y - model.predict_one(x)) ** 2)
        model.learn_one(x, y)
    return _row(name, np.array(squared_errors), len(events) / (time.perf_counter() - started))


def _row(name: str, squared_errors: FloatArray, events_per_second: float) -> Row:
    half = squared_errors[len(squared_errors) // 2 :]
    return Row(name, float(np.sqrt(squared_errors.mean())), float(np.sqrt(half.mean())), events_per_second)


def _table(n: int, rows: list[Row]) -> str:
    lines = [
        f"{n:,} events, each predicted before it is learned (prequential root mean squared error)",
        "",
        f"{'':32}{'all':>10}{'2nd half':>10}{'events/s':>12}",
    ]
    lines += [f"{row.name:32}{row.rmse:>10.3f}{row.second_half:>10.3f}{row.events_per_second:>12,.0f}" for row in rows]
    return "\n".join(lines)


def _wait(stop: StopFlag) -> None:
    while not stop.requested:
        time.sleep(0.2)
