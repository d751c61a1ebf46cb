"""Scales and bounds that an encoder gets at once: from buffered rows, from another encoder, or as parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.columns.arrays import joined, part
from streammoe.columns.encoder import Encoder
from streammoe.columns.layout import CYCLES
from streammoe.columns.outliers import MAX_ERROR_SHARE, code_of
from streammoe.columns.ranges import Bounds, Scales, limits_of, within
from streammoe.columns.scaling import identity_scaler, moments
from streammoe.errors import CheckpointError, ConfigError
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray, IntArray


def fit_scaler(encoder: Encoder, X: FloatArray, Y: FloatArray, *, standardize: bool) -> None:
    """Freeze means, and with `standardize` the scales, of the numeric fields in buffered rows; hold to their range."""
    fit_bounds(encoder, X, Y)
    columns, scaler = encoder.plan.numeric[:, 1], identity_scaler(len(encoder.feature_names), encoder.n_outputs)
    # What is held cannot be far out later either.
    means, scales = moments(encoder.columns.numbers(encoder.hold(plausible_inputs(encoder, X))[0]), codes=True)
    scaler.fill[columns] = means
    for field, first in encoder.plan.timed.tolist():
        rows = X[np.isfinite(X[:, field])]
        if len(rows):
            at = slice(1 + first, 1 + first + len(CYCLES))  # behind the intercept
            scaler.fill[first : first + len(CYCLES)] = encoder.design(rows)[1][:, at].mean(axis=0)
    if standardize:
        scaler.center[columns], scaler.scale[columns] = means, scales
        center, scale = moments(plausible_targets(encoder, Y), MAX_ERROR_SHARE)
        scaler = scaler._replace(target_center=center, target_scale=scale)
    encoder.scaler = scaler


def fit_bounds(encoder: Encoder, X: FloatArray | None, Y: FloatArray, *, joining: bool = False) -> None:
    """Hold inputs, if given, and predictions to the range of buffered rows; `joining`: to what was seen before too."""
    if encoder.holds:
        inputs = encoder.bounds
        if X is not None:
            fields = np.concatenate([encoder.plan.numeric[:, 0], encoder.plan.timed[:, 0]])
            inputs = Bounds.of(plausible_inputs(encoder, X), fields, codes=True)
        targets = Bounds.of(plausible_targets(encoder, Y), np.arange(Y.shape[1]), share=MAX_ERROR_SHARE)
        encoder.bounds = encoder.bounds.union(inputs) if joining else inputs
        encoder.target_bounds = encoder.target_bounds.union(targets) if joining else targets
        encoder.doubts = np.zeros(encoder.n_outputs)


def plausible_inputs(encoder: Encoder, X: FloatArray) -> FloatArray:
    """Return buffered rows with NaN for numbers that would be out of range if they came now."""
    if encoder.limits is not None:
        return within(X, encoder.limits[0])
    limits, fields = np.full(X.shape[1], np.inf), encoder.plan.numeric[:, 0]
    limits[fields] = limits_of(encoder.columns.numbers(X), encoder.range_factor)
    return within(X, limits)


def plausible_targets(encoder: Encoder, Y: FloatArray) -> FloatArray:
    """Return buffered targets that are numbers, likewise."""
    return within(Y, limits_of(Y, encoder.range_factor) if encoder.limits is None else encoder.limits[1])


def codes_in(encoder: Encoder, X: FloatArray) -> dict[Any, tuple[float, int]]:
    """Return the columns of numbers that have a code in these rows, with what `code_of` says; of lags none."""
    own = [at for at in encoder.plan.numeric[:, 0].tolist() if at >= len(encoder.lagged)]
    return {encoder.fields[at]: code for at in own if (code := code_of(X[:, at])) is not None}


def ranges_of(encoder: Encoder) -> dict[str, AnyArray]:
    """Return copies of what inputs and predictions are held to, for a model that continues elsewhere."""
    arrays = encoder.bounds.arrays("inputs") | encoder.target_bounds.arrays("targets")
    return {name: array.copy() for name, array in arrays.items()}


def set_ranges(encoder: Encoder, ranges: Mapping[str, AnyArray]) -> None:
    """Hold to what `ranges_of` returned, or raise `ConfigError` for anything else; without `hold` nothing is held."""
    if encoder.holds:
        if not isinstance(ranges, Mapping):
            raise ConfigError(f"parameters: 'ranges' is {shown(ranges)}; it must be as `parameters` returns it")
        ranges = {name: np.asarray(array) for name, array in ranges.items()}
        try:
            encoder.bounds = Bounds.restored(ranges, "inputs", len(encoder.fields))
            encoder.target_bounds = Bounds.restored(ranges, "targets", encoder.n_outputs)
        except CheckpointError as error:
            raise ConfigError(f"parameters: 'ranges': {error}") from None


def join_ranges(encoder: Encoder, other: Encoder, outputs: IntArray) -> None:
    """Accept, and hold to, what another encoder of these fields does as well; its outputs are at `outputs`.

    It may lack means of identifiers.
    """
    at = np.array([other.columns.index.get(field, -1) for field in encoder.fields], dtype=np.int64)
    encoder.scales = encoder.scales.union(part(joined(other.scales, Scales.blank(1)), at))
    encoder.target_scales = encoder.target_scales.union(part(other.target_scales, outputs))
    encoder.bounds = encoder.bounds.union(part(joined(other.bounds, Bounds.blank(1)), at))
    encoder.target_bounds = encoder.target_bounds.union(part(other.target_bounds, outputs))
