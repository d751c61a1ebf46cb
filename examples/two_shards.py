"""Merge two models, each of which has learned one half of the events, into one."""

import math
import tempfile
from pathlib import Path

import numpy as np

from streammoe import MoERegressor, load, reduce


def main() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(4_000, 8))
    y = np.where(X[:, 0] > 0.0, X @ rng.normal(size=8), 3.0 + X @ rng.normal(size=8)) + rng.normal(size=len(X))
    past, future = slice(2_000), slice(2_000, None)

    with tempfile.TemporaryDirectory() as folder:
        for shard in range(2):
            worker = MoERegressor(n_experts=2, reservoir=1_000)  # it keeps events, by which merging gets better
            worker.learn_array(X[past][shard::2], y[past][shard::2])
            worker.save(Path(folder, f"shard {shard}"))
        models = {path.stem: load(path) for path in sorted(Path(folder).iterdir())}

    merged = reduce(list(models.values()))
    whole = MoERegressor(n_experts=2)
    whole.learn_array(X[past], y[past])
    for name, model in {**models, "merged": merged, "one of all": whole}.items():
        loss = -model.log_likelihood_array(X[future], y[future]).mean()
        print(f"{name}: {model.n:,} events, log-loss of later ones {loss:.3f} nats")
    print(f"the noise alone: {0.5 * math.log(math.tau * math.e):.3f} nats")


if __name__ == "__main__":
    main()
