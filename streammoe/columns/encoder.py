"""The encoder: raw rows screened and held to what was seen before, and as features."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from streammoe.checked import array_of
from streammoe.columns.arrays import joined, part
from streammoe.columns.kinds import GivenKinds
from streammoe.columns.layout import NO_ADDITIONS, Additions, Columns, padded
from streammoe.columns.ranges import Bounds, Scales
from streammoe.columns.row_reader import RowReader
from streammoe.columns.scaling import identity_scaler, restored_scaler, wider_scaler
from streammoe.errors import InvalidEvent
from streammoe.kernels.features import (
    PATIENCE,
    SETTLED,
    clip_rows,
    expand_rows,
    hold_predictions,
    screen_rows,
    widen_times,
)
from streammoe.types import AnyArray, FloatArray, IntArray

ABSOLUTE_LIMIT = 1e50
"""Beyond this, a square no longer fits into a Gram matrix with others."""
FURTHEST = 25.0
"""Deviations from the center of a column to which numbers are held in a warm-up."""
NO_TARGETS = np.empty((0, 1))
UNASKED = np.empty(0, dtype=np.bool_)


class Encoder(RowReader):
    """Encoder of events into raw rows, and of raw rows into features.

    Args:
        n_outputs: Q.
        degree: highest power of the numeric fields in expert features.
        gate_degree: highest power in gate features.
        range_factor: factor of the range rule for numeric fields and targets; 0 disables it.
        given: what settings say that fields hold; of others the first value decides.
        max_levels: maximum number of levels of a field that become columns.
        holds: whether inputs and predictions are held to what was seen.
        lagged: names of the first fields, the lags.
    """

    def __init__(
        self,
        *,
        n_outputs: int,
        degree: int,
        gate_degree: int,
        range_factor: float,
        given: GivenKinds,
        max_levels: int = 64,
        holds: bool = False,
        lagged: Sequence[str] = (),
    ) -> None:
        limit = float(min(ABSOLUTE_LIMIT, 1e150 ** (1.0 / max(degree, gate_degree, 1))))
        self.n_outputs = n_outputs
        self.degree = degree
        self.gate_degree = gate_degree
        self.range_factor = range_factor
        self.holds = holds
        self.limit = limit
        """Largest absolute value of a number whose highest power is still in range."""
        self.n_lags_of_targets = len(lagged) * n_outputs // max(n_outputs + len(given.lagged), 1)
        """Number of lags that are earlier targets; they come first."""
        self.scaler = identity_scaler(0, n_outputs)
        self.scales, self.target_scales = Scales.blank(0), Scales.blank(n_outputs)
        self.bounds, self.target_bounds = Bounds.blank(0), Bounds.blank(n_outputs)
        self.doubts = np.zeros(n_outputs)
        """(Q,) how many targets far out there were of late; see `kernels.features.hold_predictions`."""
        self.limits: tuple[FloatArray, FloatArray] | None = None
        """(F,) and (Q,) largest sizes in range of buffered inputs and targets, for an encoder that gets those in parts;
        others find them. Not saved in checkpoints."""
        lags = tuple((name, None) for name in lagged)
        super().__init__(Columns(given, tuple(lagged), max_levels, limit, dict.fromkeys(lagged, "number"), lags))

    def use(self, columns: Columns) -> None:
        """Have these columns, which begin with those so far."""
        super().use(columns)
        self.n_gate_features, self.n_expert_features = self.widths_with(NO_ADDITIONS)
        self.gate_width, self.expert_width = padded(self.n_gate_features), padded(self.n_expert_features)
        more = len(self.fields) - len(self.scales.scales)
        self.scales, self.bounds = joined(self.scales, Scales.blank(more)), joined(self.bounds, Bounds.blank(more))
        self.scaler = wider_scaler(self.scaler, len(self.feature_names))

    def copy(self) -> Encoder:
        """Return an independent copy."""
        other = copy.copy(self)
        other.scales, other.target_scales = joined(self.scales), joined(self.target_scales)
        other.bounds, other.target_bounds = joined(self.bounds), joined(self.target_bounds)
        other.doubts = self.doubts.copy()
        return other  # all else is never changed, only replaced

    def hold_loosely(self) -> None:
        """Hold numbers to within `FURTHEST` deviations of their center, since no range is known yet."""
        if not self.holds:
            return
        self.bounds = Bounds.blank(len(self.fields))
        fields, columns = self.plan.numeric.T
        center, scale = self.scaler.center[columns], self.scaler.scale[columns]
        self.bounds.low[fields], self.bounds.high[fields] = center - FURTHEST * scale, center + FURTHEST * scale
        self.bounds.seen[fields] = np.where((scale != 1.0) | (center != 0.0), 1 + SETTLED, 0)

    def take_scales(self, other: Encoder) -> None:
        """Take over scales and bounds of an encoder of these fields, or of the first ones."""
        F = len(other.fields)
        self.scaler = wider_scaler(other.scaler, len(self.feature_names))
        later = part(self.bounds, np.arange(F, len(self.fields)))
        self.bounds, self.target_bounds = joined(other.bounds, later), joined(other.target_bounds)
        self.doubts = other.doubts.copy()

    def with_first(self, n_entries: int) -> Encoder:
        """Return the encoder as it was when it had so many fields and levels, unscaled."""
        other = self.copy()
        other.scales, other.bounds, other.scaler = Scales.blank(0), Bounds.blank(0), identity_scaler(0, self.n_outputs)
        other.use(self.columns.first(n_entries))
        return other

    def change(self, range_factor: float, max_levels: int) -> None:
        """Apply settings that may change over a checkpoint."""
        self.range_factor, self.columns = range_factor, replace(self.columns, max_levels=max_levels)

    def widths_with(self, additions: Additions) -> tuple[int, int]:
        """Return p_w and p_v, the numbers of gate and expert features, with `additions` added."""
        layout = self.columns.extended(additions).layout
        return layout.n_features(self.gate_degree), layout.n_features(self.degree)

    # -- Raw rows to features --------------------------------------------------------------------------------------

    def take(self, row: FloatArray, target: FloatArray, additions: Additions = NO_ADDITIONS) -> None:
        """Take a row, (1, F + new fields), into the ranges, and add its new fields and levels.

        Raises:
            InvalidEvent: a value is out of range; nothing was changed.
        """
        self.columns.check_not_lagged(additions.fields)
        trial = self.copy() if additions else self
        if additions:
            trial.use(self.columns.extended(additions))
        verdict = int(trial.screen(row, target)[0])
        if verdict >= 0:
            error = trial.out_of_range(row[0], target[0], verdict)
            error.row = 0
            raise error
        if additions:
            self.use(trial.columns)
            self._notice_mixed(additions.levels)
            self.scales, self.target_scales = trial.scales, trial.target_scales

    def screen(self, X: FloatArray, Y: FloatArray) -> IntArray:
        """Return −1 for each raw row in range, else the offending field; accepted rows are taken into the ranges."""
        verdicts, factor = np.empty(len(X), dtype=np.int64), self.range_factor
        screen_rows(X, Y, self.columns.judged, *self.scales, *self.target_scales, factor, self.limit, verdicts)
        return verdicts

    def out_of_range(self, row: FloatArray, target: FloatArray, verdict: int) -> InvalidEvent:
        """Return the error for a raw row that `screen` rejected."""
        name = [*self.fields, *["target"] * len(target)][verdict]
        value = float(np.concatenate([row, target])[verdict])
        scale = float(np.concatenate([self.scales.scales, self.target_scales.scales])[verdict])
        if verdict < len(row) and self.columns.kinds[name] == "time":
            rule = "a time is in seconds since 1970-01-01 UTC, in the years 1 to 9999; divide milliseconds by 1000"
        elif abs(value) > self.limit:
            rule = f"the limit is {self.limit:g}, regardless of range_factor; rescale it, or correct the record"
        else:
            rule = (
                f"accepted values are about {scale:g} and range_factor is {self.range_factor:g}; rescale it or raise "
                "range_factor (0 disables the rule)"
            )
        msg = f"{name!s}: {value:g} is out of range: {rule}"
        return InvalidEvent(msg, reason="out_of_range", feature=name)

    def bounded(self, X: FloatArray) -> FloatArray:
        """Clip raw rows to the absolute limits, for predictions, which never raise on range."""
        bounded: FloatArray = np.minimum(np.maximum(X, self.plan.lowest), self.plan.highest)
        return bounded

    def hold(self, X: FloatArray, Y: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return raw rows with their numbers held to what was seen before them, and with those far beyond it held.

        Rows in range that have a target, (n, Q), move the bounds; those without, or with NaN, are only predicted.
        """
        if not self.holds:
            return X, X
        held, near, targets = X.copy(), X.copy(), NO_TARGETS if Y is None else Y
        clip_rows(X, targets, self.plan.numeric, *self.bounds, self.n_lags_of_targets, held, near)
        widen_times(X, targets, self.plan.timed, *self.bounds)
        return held, near

    def hold_predictions(self, predictions: FloatArray, Y: FloatArray | None = None) -> None:
        """Hold predictions of numbers, (n, Q), in place to the targets seen before them; targets move the bounds."""
        if self.holds:
            targets = NO_TARGETS if Y is None else Y
            hold_predictions(predictions, targets, *self.target_bounds, self.doubts, UNASKED)

    def design(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute gate features W and expert features R of raw rows X (n, F), each padded with zeros to its width."""
        R = self._expand(X, self.degree, self.expert_width)
        return R if self.gate_degree == self.degree else self._expand(X, self.gate_degree, self.gate_width), R

    def designs(self, held: FloatArray, near: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute W and R of held rows as `design` does, and R of those of which only numbers far beyond are held."""
        W, R = self.design(held)
        return W, R, R if held is near or ((held == near) | np.isnan(near)).all() else self.design(near)[1]

    def _expand(self, X: FloatArray, degree: int, width: int) -> FloatArray:
        _, _, _, numeric, coded, places, timed = self.plan
        fill, center, scale, _, _ = self.scaler
        out = np.zeros((len(X), width))
        low, high, _, seen = self.bounds
        expand_rows(X, numeric, coded, places, timed, fill, center, scale, low, high, seen, degree, out)
        return out

    # -- In a checkpoint -------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays; names and levels are JSON."""
        return {
            **self.columns.arrays(),
            **self.scales.arrays("encoder.largest"),
            **self.target_scales.arrays("encoder.target_largest"),
            **self.coordinates("encoder"),
        }

    def coordinates(self, prefix: str) -> dict[str, AnyArray]:
        """Return what inputs and targets are scaled and held by, as arrays named ``prefix.name``."""
        arrays: dict[str, AnyArray] = {f"{prefix}.{name}": array for name, array in self.scaler._asdict().items()}
        if self.holds:
            arrays |= self.bounds.arrays(f"{prefix}.bounds") | self.target_bounds.arrays(f"{prefix}.target_bounds")
            arrays[f"{prefix}.doubts"] = self.doubts
        return arrays

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore a new encoder from what `arrays` returned; raise `CheckpointError` if it is not of these settings."""
        self.use(self.columns.restored(arrays))
        F, Q = len(self.fields), self.n_outputs
        self.scales = Scales.restored(arrays, "encoder.largest", F)
        self.target_scales = Scales.restored(arrays, "encoder.target_largest", Q)
        self.restore_coordinates(arrays, "encoder")

    def restore_coordinates(self, arrays: Mapping[str, AnyArray], prefix: str) -> None:
        """Restore what `coordinates` returned; raise `CheckpointError` if it is not of these columns."""
        F, Q = len(self.fields), self.n_outputs
        self.scaler = restored_scaler(arrays, prefix, len(self.feature_names), Q)
        if self.holds:
            self.bounds = Bounds.restored(arrays, f"{prefix}.bounds", F)
            self.target_bounds = Bounds.restored(arrays, f"{prefix}.target_bounds", Q)
            self.doubts = array_of(arrays, f"{prefix}.doubts", "float64", (Q,), least=0.0, most=PATIENCE + 1.0).copy()
