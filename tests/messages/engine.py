"""Of the learning algorithms: arguments, events and arrays of checkpoints that they reject."""

import copy
import logging
from functools import cache

import numpy as np

from streammoe import MoEClassifier, MoERegressor, load
from streammoe.engine.drift import BLOCK, DriftDetector
from streammoe.engine.spectral import polynomials
from streammoe.kernels.compile import warn_damaged, warn_not_kept
from streammoe.options import WarmUp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(105, 3))
Y = np.abs(X[:, 0])


def _detector(name, at, value):
    """Restore a drift detector of which one number was changed."""
    detector = DriftDetector()
    detector.take(np.ones(BLOCK + 7), 0)
    arrays = {key: array.copy() for key, array in detector.arrays().items()}
    arrays[name][at] = value
    DriftDetector.from_arrays(arrays)


@cache
def _fitted(kind):
    logging.disable()
    model = kind(2, warmup=WarmUp(100, restarts=1), batch_size=8, range_factor=0.0)
    model.learn_array(X, Y > 1.0 if kind is MoEClassifier else Y)
    logging.disable(logging.NOTSET)
    return model


def _group(folder, place, value, kind=MoERegressor):
    """Load a model of which one number in the group that waits was changed."""
    model = copy.deepcopy(_fitted(kind))
    model.learner.state.group[place] = value
    model.save(folder / "m")
    load(folder / "m")


def _damaged(folder):
    warn_damaged.cache_clear()
    warn_damaged(folder / "gaussian-loop.learn_rows.nbi")


def _not_kept(_):
    warn_not_kept.cache_clear()
    warn_not_kept("Read-only file system")


CASES = {
    "kernels: a damaged file": _damaged,
    "kernels: no folder to keep them": _not_kept,
    "unknown link": lambda _: polynomials("tanh", 0.1),
    "a target too far for its group": lambda _: copy.deepcopy(_fitted(MoERegressor)).learn_one(
        {"x0": 0.0, "x1": 0.0, "x2": 0.0}, 1e31
    ),
    "checkpoint: drift, a full block": lambda _: _detector("drift.counts", 0, BLOCK),
    "checkpoint: drift, a count below 0": lambda _: _detector("drift.counts", 1, -1),
    "checkpoint: drift, a deviation below 0": lambda _: _detector("drift.usual", 1, -1.0),
    "checkpoint: group, full": lambda folder: _group(folder, np.s_[:, -2], 1.0),
    "checkpoint: group, a weight below 0": lambda folder: _group(folder, np.s_[2, -2], -1.0),
    "checkpoint: group, an event behind an empty row": lambda folder: _group(folder, np.s_[2, -2], 0.0),
    "checkpoint: group, a step outside of 0 to 1": lambda folder: _group(folder, np.s_[2, -1], 2.0),
    "checkpoint: group, a value too large": lambda folder: _group(folder, np.s_[2, 1], 1e31),
    "checkpoint: group, no class": lambda folder: _group(folder, np.s_[2, -3], 2.0, MoEClassifier),
}
