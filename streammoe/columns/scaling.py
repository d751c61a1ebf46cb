"""Scales of columns and targets, estimated from the first few hundred events and then kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.arrays import joined
from streammoe.columns.outliers import MAX_OUTLIER_SHARE, winsorised
from streammoe.kernels.features import STILL
from streammoe.kernels.linalg import VANISHED
from streammoe.types import AnyArray, BoolArray, FloatArray

LEAST_SCALE = 1e-3
"""Smallest scale of a column, relative to its standard deviation with outliers."""

LARGEST_SCALE = 1e300
"""The scale of a column that is to have no weight: squares of its scaled numbers vanish, and it is finite."""


class Scaler(NamedTuple):
    """Centers and scales, part of the state; the identity before the first event."""

    fill: FloatArray
    """(C,) what replaces a missing number, or the parts of a missing time: the column's mean, 0 before it is known."""
    center: FloatArray
    """(C,) and `scale` (C,): inputs become (x − center)/scale; 0 and 1 if the column is not a numeric field."""
    scale: FloatArray
    target_center: FloatArray
    """(Q,) and `target_scale` (Q,): likewise for the outputs."""
    target_scale: FloatArray


def identity_scaler(n_columns: int, n_outputs: int) -> Scaler:
    """Return a scaler that changes nothing; missing values become 0."""
    return Scaler(np.zeros(n_columns), np.zeros(n_columns), np.ones(n_columns), np.zeros(n_outputs), np.ones(n_outputs))


def wider_scaler(scaler: Scaler, n_columns: int) -> Scaler:
    """Extend a scaler to `n_columns` columns; new ones are neither centered nor scaled."""
    return joined(scaler, identity_scaler(n_columns - len(scaler.fill), 0))


def without_inputs(scaler: Scaler, Y: FloatArray) -> Scaler:
    """Return a scaler that makes all columns of numbers 0, given the first few targets (n, Q).

    So few targets deviate less from their own mean than later ones will. Where they are all equal, as a single one is,
    the scale is their size.
    """
    n, sizes = len(Y), np.abs(scaler.target_center)
    equal = Y.min(axis=0) == Y.max(axis=0)
    deviations = scaler.target_scale * (n + 1) / max(n - 1, 1)
    return scaler._replace(
        scale=np.full_like(scaler.scale, LARGEST_SCALE),
        target_scale=np.where(equal & (sizes > VANISHED), sizes, deviations),
    )


def restored_scaler(arrays: Mapping[str, AnyArray], prefix: str, n_columns: int, n_outputs: int) -> Scaler:
    """Restore the scaler whose arrays are called ``prefix.fill`` and so on; raise `CheckpointError` if invalid."""
    C, Q = n_columns, n_outputs
    shapes = {"fill": C, "center": C, "scale": C, "target_center": Q, "target_scale": Q}
    scaler = Scaler(*(array_of(arrays, f"{prefix}.{name}", "float64", (shapes[name],)) for name in Scaler._fields))
    for name in ("scale", "target_scale"):
        require((getattr(scaler, name) > 0.0).all(), f"array {prefix}.{name} holds scales that are not above 0")
    return scaler


def moments(
    values: FloatArray, share: float = MAX_OUTLIER_SHARE, *, codes: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return means and positive scales of columns; NaN is missing.

    They are kept, so one absurd value must not determine them: columns are winsorized, at most a `share` of their
    values, with `codes` more if these are equal. But if outliers turn out to be regular values, they must not become a
    million times larger than the rest; so no scale is below a thousandth of the standard deviation with outliers. A
    column that has not varied has exactly its value as center.
    """
    present = ~np.isnan(values)
    counts = np.maximum(present.sum(axis=0), 1)
    kept = winsorised(values, share=share, codes=codes)
    means = np.where(present, kept, 0.0).sum(axis=0) / counts
    deviations = np.sqrt(np.where(present, (kept - means) ** 2, 0.0).sum(axis=0) / counts)
    plain = np.sqrt(np.where(present, (values - means) ** 2, 0.0).sum(axis=0) / counts)
    scales = np.maximum(deviations, LEAST_SCALE * plain)
    for j in np.flatnonzero(~vary(scales, means)).tolist():
        # Not the mean, whose rounding error would be all that is left of the column.
        means[j] = np.median(values[present[:, j], j]) if present[:, j].any() else 0.0
        scales[j] = max(1.0, STILL * abs(means[j]))
    return means, scales


def vary(deviations: FloatArray, means: FloatArray) -> BoolArray:
    """Return which columns, with these means and standard deviations, vary beyond rounding."""
    found: BoolArray = deviations > STILL * np.abs(means) + VANISHED
    return found


def come_from_a_running_scaler(values: FloatArray) -> bool:
    """Return whether the first rows of a stream show a scaler in front that learns as it goes, as River's do.

    Its first event makes every column 0, whatever it was. Where a column then changes for the first time, after k equal
    values, a standard scaler makes of it ±√k; one by least and largest values fills the range from 0 to 1. All columns
    with fractions must show that; whole numbers, such as flags, may begin like this by themselves.
    """
    shows = 0
    for column in values.T:
        if np.isnan(column).any() or 2 * np.count_nonzero(column % 1.0) < len(column):
            continue
        at = int(np.argmax(column != column[0]))
        is_standard = math.isclose(abs(column[at]), math.sqrt(at), rel_tol=1e-6)
        if column[0] != 0.0 or not (is_standard or (column.min() == 0.0 and column.max() == 1.0)):
            return False
        shows += 1
    return shows > 0
