"""See that a relation has changed, when, and how fast the model follows."""

from collections.abc import Iterator

import numpy as np
from river import metrics

from streammoe import MoERegressor

CHANGE, EVENTS = 4_000, 8_000


def machine(n: int) -> Iterator[tuple[dict[str, float], float]]:
    """Yield what eight sensors of a machine read, and its wear; at `CHANGE` a tool is replaced by another one."""
    rng = np.random.default_rng(4)
    tools = rng.normal(size=(2, 8))
    for event in range(n):
        sensors = rng.normal(size=8)
        wear = float(tools[int(event >= CHANGE)] @ sensors) + (2.0 if sensors[0] > 0.0 else 0.0)
        yield {f"sensor {at}": float(value) for at, value in enumerate(sensors)}, wear + rng.normal(0.0, 0.1)


def main() -> None:
    model, frozen = MoERegressor(n_experts=2), MoERegressor(n_experts=2)
    stretches = {"before": (2_000, CHANGE), "soon after": (CHANGE, CHANGE + 500), "later": (CHANGE + 500, EVENTS)}
    errors, unchanged = {name: metrics.MAE() for name in stretches}, metrics.MAE()
    for event, (x, y) in enumerate(machine(EVENTS)):
        for name, (first, end) in stretches.items():
            if first <= event < end:
                errors[name].update(y, model.predict_one(x))
        drifts = model.drifts
        model.learn_one(x, y)
        if model.drifts > drifts and (found := model.last_drift) is not None:
            print(f"drift seen at event {found.n:,}: a loss of {found.after:.2f} after {found.before:.2f} nats")
        if event < CHANGE:
            frozen.learn_one(x, y)
        else:
            unchanged.update(y, frozen.predict_one(x))
    for name, error in errors.items():
        print(f"mean error, {name}: {error.get():.2f}")
    print(f"mean error of a model that learns nothing after the change: {unchanged.get():.2f}")


if __name__ == "__main__":
    main()
