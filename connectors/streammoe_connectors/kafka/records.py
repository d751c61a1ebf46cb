"""Records of Kafka as rows of one structured array, in which both clients return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Headers = Sequence[tuple[str, bytes | None]]
Records = NDArray[np.void]
"""Records, in order; see `RECORD`."""
RECORD: np.dtype[Any] = np.dtype(
    [
        ("offset", np.int64),
        ("time", np.int64),
        ("value", object),
        ("key", object),
        ("headers", object),
        ("topic", object),
        ("partition", np.int64),
        ("arrived", float),
    ]
)
"""A record: its offset in its partition; its timestamp in milliseconds since 1970, −1 if unknown; its value, ``None``
for a tombstone; its key, ``None`` without one; its `Headers`. Where it is from, and when it arrived, in monotonic
seconds, is noted by the buffer that it is put into."""
NONE: Records = np.empty(0, RECORD)
"""No record."""
