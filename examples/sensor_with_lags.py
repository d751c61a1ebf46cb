"""Predict a sensor that answers slowly, by its own last values and by those of what drives it."""

from collections.abc import Iterator

import numpy as np
from river import metrics

from streammoe import AutoLags, Lags, MoERegressor


def oven(n: int) -> Iterator[tuple[dict[str, float], float]]:
    """Yield power (kW) and temperature (°C) of an oven that warms up by the power of two steps ago."""
    rng = np.random.default_rng(2)
    power, temperature = [0.0, 0.0], 20.0
    for step in range(n):
        temperature += 0.1 * (20.0 - temperature) + 6.0 * power[-2] + rng.normal(0.0, 0.3)
        power.append(float(rng.uniform(2.0, 3.0) if step // 40 % 2 else rng.uniform(0.0, 1.0)))
        yield {"power": power[-1]}, temperature


def main() -> None:
    given: dict[str, Lags | AutoLags | None] = {
        "no lags": None,
        "automatic lags": AutoLags(),  # the default: one member of the portfolio sees the last targets
        "two lags of both": Lags(2, inputs=("power",)),
    }
    for name, lags in given.items():
        model, error = MoERegressor(n_experts=1, lags=lags), metrics.RMSE()
        for x, y in oven(2_000):
            if model.n >= 1_250:
                error.update(y, model.predict_one(x))
            model.learn_one(x, y)
        print(f"{name}: {error.get():.2f} °C off (root mean square)")
    print("the noise alone: 0.30 °C")


if __name__ == "__main__":
    main()
