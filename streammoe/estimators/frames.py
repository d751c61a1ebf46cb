"""Pandas in, pandas out; pandas itself is imported only where a frame is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.types import AnyArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd


class Learner(Protocol):
    """What `learn_frame` needs of an estimator."""

    def learn_array(
        self,
        X: AnyArray,
        y: AnyArray,
        *,
        weights: AnyArray | None = None,
        feature_names: Sequence[Any] | None = None,
    ) -> FloatArray:
        """Learn rows in order."""
        ...


def learn_frame(model: Learner, X: pd.DataFrame, y: Any, w: AnyArray | None) -> None:
    """Learn the rows of a frame.

    Raises:
        InvalidEvent: a row is no good, or a value is missing: leave its column out, or fill it.
    """
    rows, names = columns_of(X)
    model.learn_array(rows, y.to_numpy(), weights=None if w is None else np.asarray(w), feature_names=names)


def columns_of(X: pd.DataFrame) -> tuple[AnyArray, list[Any]]:
    """The rows of a frame as numbers, and the names of its columns.

    Raises:
        InvalidEvent: a column holds something else.
    """
    for name, kind in X.dtypes.items():
        if not isinstance(kind, np.dtype) or kind.kind not in "fiub":
            msg = f"X: the column {name!r} is of type {kind}; it must hold numbers: convert it, or leave it out"
            raise InvalidEvent(msg, reason="wrong_type", feature=name)
    return X.to_numpy(dtype=np.float64), list(X.columns)


def series_like(X: pd.DataFrame, values: AnyArray) -> pd.Series:
    """One value for each row of a frame, under its index."""
    import pandas as pd

    return pd.Series(values, index=X.index)


def frame_like(X: pd.DataFrame, values: AnyArray, columns: Sequence[Any]) -> pd.DataFrame:
    """Values for each row of a frame, under its index."""
    import pandas as pd

    return pd.DataFrame(values, index=X.index, columns=list(columns))
