"""Predict the bikes at stations from a CSV file, each row before it is learned."""

import csv
import math
import random
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from river import metrics, stats

from streammoe import MoERegressor

STATIONS = {"museum": 25.0, "station": 40.0, "park": 15.0}  # with the bikes that each holds
START = datetime(2026, 3, 2)  # noqa: DTZ001 - the file has local times without a zone


def write(path: Path, hours: int) -> None:
    """Write a file of one row per hour and station: full by night, empty after the rush, less used in the rain."""
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        (rows := csv.writer(file)).writerow(["time", "station", "temperature", "weather", "bikes"])
        for now in (START + timedelta(hours=hour) for hour in range(hours)):
            weather = rng.choices(["rain", "dry"], [1, 4])[0]
            warmth = 12.0 + 8.0 * math.sin((now.hour - 9) / 24 * math.tau) + rng.gauss(0.0, 2.0)
            temperature = "" if rng.random() < 0.05 else f"{warmth:.1f}"  # the thermometer fails now and then
            out = 0.6 if now.weekday() < 5 and 7 <= now.hour < 19 else 0.01 * warmth
            out *= 0.5 if weather == "rain" else 1.0
            for station, capacity in STATIONS.items():
                bikes = max(0, round(capacity * (1.0 - out) + rng.gauss(0.0, 1.5)))
                rows.writerow([now.isoformat(), station, temperature, weather, bikes])


def read(path: Path) -> Iterator[tuple[dict[str, object], float]]:
    """Read inputs and target of each row; a field that is empty is missing."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            bikes, temperature = float(row.pop("bikes")), row["temperature"]
            yield {**row, "temperature": float(temperature) if temperature else None}, bikes


def main() -> None:
    model = MoERegressor(timestamps=["time"])
    ours, usual, mean, inside = metrics.MAE(), metrics.MAE(), stats.Mean(), stats.Mean()
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder, "bikes.csv"), hours=500)
        for x, y in read(path):
            ours.update(y, model.predict_one(x))
            inside.update(y in model.predict_one(x, with_interval=True))
            usual.update(y, mean.get())
            model.learn_one(x, y)
            mean.update(y)
    print(f"{model.n:,} rows; {model.column_kinds}")
    print(f"mean error: {ours.get():.2f} bikes, by the mean of all before {usual.get():.2f}")
    print(f"{inside.get():.1%} of the rows were in their interval of 90 %")


if __name__ == "__main__":
    main()
