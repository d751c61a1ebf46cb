"""Of the learning algorithms: arguments, events and arrays of checkpoints that they reject."""

import numpy as np

from streammoe.engine.drift import BLOCK, DriftDetector
from streammoe.kernels.compile import warn_damaged, warn_not_kept

RNG = np.random.default_rng(0)
X = RNG.normal(size=(105, 3))
Y = np.abs(X[:, 0])


def _detector(name, at, value):
    """Restore a drift detector of which one number was changed."""
    detector = DriftDetector()
    arrays = {key: array.copy() for key, array in detector.arrays().items()}
    arrays[name][at] = value
    DriftDetector.from_arrays(arrays)


def _damaged(folder):
    warn_damaged.cache_clear()
    warn_damaged(folder / "gaussian-loop.learn_rows.nbi")


def _not_kept(_):
    warn_not_kept.cache_clear()
    warn_not_kept("Read-only file system")


CASES = {
    "kernels: a damaged file": _damaged,
    "kernels: no folder to keep them": _not_kept,
    "checkpoint: drift, a full block": lambda _: _detector("drift.counts", 0, BLOCK),
    "checkpoint: drift, a count below 0": lambda _: _detector("drift.counts", 1, -1),
    "checkpoint: drift, a deviation below 0": lambda _: _detector("drift.usual", 1, -1.0),
}
