"""Time until the defaults predict as before when all targets shift at once.

Streams of `benchmarks.tasks`, whose targets shift by ten deviations of the noise, or of the targets themselves, at
event 10,000. Errors are prequential, in windows of events since the shift, over those of the same model on the same
stream without a shift.
"""

from __future__ import annotations

import numpy as np

from benchmarks import tasks
from benchmarks.report import Target, parsed, table
from streammoe import MoERegressor

BEFORE, AFTER = 10_000, 1_000
NOISE = 0.1
DEVIATIONS = 10.0
LIMIT = 1.1
"""Most that the error may be in the window of `JUDGED`."""
WINDOWS = ((0, 50), (100, 150), (200, 250), (250, 300), (300, 450), (450, 600))
JUDGED = (250, 300)


def errors(n_experts: int, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, int]:
    """Return squared errors of the predictions after the shift, and the event since then at which it is found."""
    model = MoERegressor(n_experts)
    predictions = tasks.predicted(model, X, y)
    found = -1 if model.last_drift is None else model.last_drift.n - BEFORE
    return (y - predictions)[BEFORE:] ** 2, found


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    seeds = parsed(__doc__, argv, seeds=6).seeds
    rows = []
    for name, (n_experts, make) in tasks.MIXTURES.items():
        streams = [make(BEFORE + AFTER, seed=seed, noise=NOISE) for seed in range(seeds)]
        plain = sum(errors(n_experts, stream.X, stream.y)[0] for stream in streams)
        for what in ("noise", "targets"):
            total, found = np.zeros(AFTER), []
            for stream in streams:
                y = stream.y.copy()
                y[BEFORE:] += DEVIATIONS * (NOISE if what == "noise" else y[:BEFORE].std())
                squares, at = errors(n_experts, stream.X, y)
                total += squares
                found.append(at)
            ratios = {
                window: float(np.sqrt(total[slice(*window)].sum() / plain[slice(*window)].sum())) for window in WINDOWS
            }
            delays = sorted(at for at in found if at >= 0)
            shown = f"{delays[0]} to {delays[-1]}" if delays else "-"
            judged = Target(name, ratios[JUDGED], LIMIT).cells
            missing = seeds - len(delays)
            rows.append([name, what, shown, missing, *(f"{ratio:.2f}" for ratio in ratios.values()), *judged])
    print(f"Shift by {DEVIATIONS:.0f} deviations; RMSE over that without the shift, {seeds} seeds;")
    print(f"the target is for events {JUDGED[0] + 1} to {JUDGED[1]}")
    windows = [f"{start + 1} to {stop}" for start, stop in WINDOWS]
    print(table(["stream", "of the", "found after", "not found", *windows, "target", "verdict"], rows))


if __name__ == "__main__":
    main()
