"""Learn from labels that come late: keep each event until its label is there, and learn what was known then."""

import random
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from river import metrics, stats, stream

from streammoe import MoERegressor

Inputs = dict[Hashable, Any]


class Waiting(NamedTuple):
    """An event whose label has not come, and what was predicted of it."""

    x: Inputs
    prediction: float
    interval: tuple[float, float]


def deliveries(n: int) -> Iterator[tuple[Inputs, float]]:
    """Yield the way (km) and the load (kg) of deliveries, and how long they took, on days that differ."""
    rng, traffic = random.Random(3), 0.0
    for _ in range(n):
        traffic = 0.995 * traffic + rng.gauss(0.0, 0.1)
        way, load = rng.uniform(1.0, 10.0), rng.uniform(0.0, 50.0)
        minutes = 10.0 + 3.0 * way + max(0.0, load - 30.0) + traffic + rng.gauss(0.0, 1.0)
        yield {"way": way, "load": load}, minutes


def main() -> None:
    rng, model = random.Random(4), MoERegressor(n_experts=2, lags=1)
    waiting: dict[int, Waiting] = {}
    error, inside, longest = metrics.MAE(), stats.Mean(), 0

    # Each label comes 1 to 30 events after its inputs: first x without y is yielded, later x with y.
    for key, x, y in stream.simulate_qa(deliveries(2_500), moment=None, delay=lambda *_: rng.randint(1, 30)):
        if y is None:
            known = {**x, **model.lags_of_next()}  # with the last label that is known by now, as an input that stays
            waiting[key] = Waiting(known, model.predict_one(known), model.predict_interval_one(known))
            longest = max(longest, len(waiting))
        else:
            event = waiting.pop(key)
            if key >= 500:  # the score of what was predicted without the label
                error.update(y, event.prediction)
                inside.update(event.interval[0] <= y <= event.interval[1])
            model.learn_one(event.x, y)
    print(f"{model.n:,} events learned; at most {longest} were waiting, at the end {len(waiting)}")
    print(f"mean error at the time of the prediction: {error.get():.2f} minutes")
    print(f"{inside.get():.1%} of the labels were in their interval of 90 %")


if __name__ == "__main__":
    main()
