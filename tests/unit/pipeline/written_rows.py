"""Rows of predictions, and the files that they are written into."""

import json
import math

import numpy as np

from streammoe.ports import Predictions


def rows_from(first=0, n=2, **others):
    """Return rows of a regressor with one output."""
    given = {
        "locations": [{"path": "a.csv", "offset": 10 * i} for i in range(first, first + n)],
        "versions": np.arange(first, first + n),
        "predictions": np.arange(first, first + n)[:, None] + 0.5,
        "targets": np.where(np.arange(n) % 2, math.nan, 1.0)[:, None],
        "outputs": ("y",),
    }
    return Predictions(**given | others)


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]
