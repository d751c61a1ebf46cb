"""Rows of raw fields to rows of features, and the guard that keeps poison out."""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline, jit, part
from streammoe.types import BoolArray, FloatArray, IntArray

NUMERIC, CATEGORICAL, TIMESTAMP = 0, 1, 2
"""Kinds of fields: a number; the code of a level; seconds since 1970-01-01 UTC."""
BLOCK = 31
"""Number of values whose median judges the range of a column; odd, so that it is one of them."""
SETTLED = 300
"""Number of values, other than the first and those equal to it, after which the bounds of a column hold."""
RUN = 64
"""Number of values far beyond settled bounds after which a column has jumped there."""
WITHIN = 8
"""How many of them another value takes back, so that errors among others never add up to `RUN`."""
MARGIN = 0.1
"""How far beyond the range seen so far a value may be, in widths of that range."""
INPUT_PACE = 1e-4
"""How far an event whose input is outside of its range widens that, likewise: slower than a mixture learns there."""
TARGET_PACE = 0.1
"""How far an event whose target is outside of its range widens that: predictions must follow a shift at once."""
JUMP = 0.5
"""How far beyond its bounds such a value is, in widths."""
LEAP = 1_000.0
"""How far beyond its bounds a number is for no linear relation to go on there, in widths."""
APART = 0.01
"""How far it is from the one before it, at least, in units of that distance; closer ones are a level of their own."""
FEW = 10
"""The same for targets, to which predictions are held, and for times."""
CENTERED_AT = 3
"""Up to so many events inputs say nothing yet: any line fits them, so the mean of the targets predicts."""
FARTHEST, SCALED = 12.0, 400
"""Up to so many events, when scales are settled, last targets are moved to within so many of them: one may be wrong."""
FEWEST = 3
"""Number of different targets from which on predictions are held to their range: powers of the first inputs, of which
nothing is known yet, may be anything."""
FAR = 5.0
"""How far beyond the bounds of targets one is far out, in widths of their range."""
PATIENCE = 10.0
"""Most doubts for which a target far out is taken for an error: as many in a row."""
RELIEF = 0.015
"""By how much a target that is not far out lowers doubts: about that share of targets may be errors for long."""
DAY = 86_400.0
WEEK = 7.0 * DAY
YEAR = 365.2425 * DAY
MONDAY = 3.0 * DAY
"""1970-01-01 was a Thursday: so long after the week had begun."""
EARLIEST, LATEST = -62_135_596_800.0, 253_402_300_800.0
"""Seconds since 1970-01-01 UTC at which the years 1 to 9999, those of a `datetime`, begin and end."""
STILL = 1e-11
"""Deviation from the center of a column, in units of that center, up to which a number has not varied: sums and
conversions leave rounding errors, which say nothing."""


@inline
def held(x: float, j: int, low: FloatArray, high: FloatArray) -> float:
    """Return a number moved to within reach of the bounds of its column."""
    reach = MARGIN * (high[j] - low[j])
    held: float = min(max(x, low[j] - reach), high[j] + reach)
    return held


@inline
def _angle(
    seconds: float, period: float, shift: float, j: int, low: FloatArray, high: FloatArray, seen: IntArray
) -> float:
    """How far into a cycle a time is, NaN if it is missing.

    Until the times seen cover a whole cycle, one beyond them is held to them, and a missing one is the latest.
    """
    if seen[j] > FEW and high[j] - low[j] < period:
        seconds = high[j] if math.isnan(seconds) else held(seconds, j, low, high)
    return 2.0 * math.pi * (((seconds + shift) % period) / period)


@inline
def _expand_number(
    x: float,
    i: int,
    c: int,
    r: int,
    N: int,
    fill: FloatArray,
    center: FloatArray,
    scale: FloatArray,
    degree: int,
    out: FloatArray,
) -> None:
    """Write the powers of one number, the r-th of N, whose column is c."""
    value = fill[c] if math.isnan(x) else x
    deviation = value - center[c]
    # Of a column that has varied, whose scale is hardly ever 1, the values near the center count as any other.
    z = deviation / scale[c] if scale[c] != 1.0 or abs(deviation) > STILL * abs(center[c]) else 0.0
    out[i, 1 + c] = z
    power = z
    for d in range(degree - 1):
        power *= z
        out[i, 1 + len(fill) + d * N + r] = power


@jit
def expand_rows(
    X: FloatArray,
    numeric: IntArray,
    coded: IntArray,
    places: IntArray,
    timed: IntArray,
    fill: FloatArray,
    center: FloatArray,
    scale: FloatArray,
    low: FloatArray,
    high: FloatArray,
    seen: IntArray,
    degree: int,
    out: FloatArray,
) -> None:
    """Write φ(x): 1, the columns of degree 1 in order, and the powers 2 … degree of the numeric ones.

    A numeric field x is one column z = (x − center)/scale ([MM] §4.1.1), 0 where the column has not varied, nor x from
    its center (`STILL`); NaN takes the column's `fill`. A categorical field is one column for each level, 1 for the
    event's own and else 0. A timestamp t is six: sin and cos of its place in the day, the week from Monday on, and the
    year of 365.2425 days from 1970-01-01 on, each held as in `_angle`; a missing one takes the `fill` of these columns,
    as zeros are no point of a circle. A missing category, and a code without a column, are all zeros.

    Args:
        X: (n, F) raw fields.
        numeric: (N, 2) field and column of each numeric field.
        coded: (K,) the categorical fields.
        places: (K, L) column of each of their codes, −1 for a code that has none.
        timed: (T, 2) field and first column of each timestamp.
        fill: (C,) and `center` and `scale`: of each column.
        low: (F,) and `high` and `seen`: bounds as in `clip_rows`, those of timestamps from `widen_times`.
        degree: highest power.
        out: (n, 1 + C + (degree − 1) · N), zeros; all of degree 2 before all of degree 3.
    """
    N, C, L = len(numeric), len(fill), places.shape[1]
    for i in range(X.shape[0]):
        out[i, 0] = 1.0
        if N == C == X.shape[1]:  # all numeric, and so in order: worth a loop that looks nothing up
            for c in range(C):
                _expand_number(X[i, c], i, c, c, N, fill, center, scale, degree, out)
            continue
        for r in range(N):
            c = numeric[r, 1]
            _expand_number(X[i, numeric[r, 0]], i, c, r, N, fill, center, scale, degree, out)
        for k in range(len(coded)):
            code = X[i, coded[k]]
            # Compared as floats: what is NaN or too large has no integer.
            if 0.0 <= code < L:
                c = places[k, int(code)]
                if c >= 0:
                    out[i, 1 + c] = 1.0
        for k in range(len(timed)):
            j, c = timed[k, 0], timed[k, 1]
            for period, shift in ((DAY, 0.0), (WEEK, MONDAY), (YEAR, 0.0)):
                angle = _angle(X[i, j], period, shift, j, low, high, seen)
                out[i, 1 + c] = fill[c] if math.isnan(angle) else math.sin(angle)
                out[i, 2 + c] = fill[c + 1] if math.isnan(angle) else math.cos(angle)
                c += 2


@inline
def _is_far(size: float, scale: float, factor: float) -> bool:
    """Whether a number is out of range for a column whose numbers have this scale, 0 while that is unknown."""
    return scale > 0.0 and size > factor * scale


@part
def _raise_scale(block: FloatArray, scale: float) -> float:
    """Return the median of a full block or `scale`, whichever is larger; the block is sorted only if need be."""
    above = 0
    for size in block:
        above += size > scale
    if 2 * above < len(block):
        return scale
    for i in range(1, len(block)):
        size, at = block[i], i
        while at > 0 and block[at - 1] > size:
            block[at] = block[at - 1]
            at -= 1
        block[at] = size
    median: float = block[len(block) // 2]
    return max(scale, median)


@inline
def _measure(size: float, j: int, scales: FloatArray, blocks: FloatArray, filled: IntArray) -> None:
    """Take the |v| of an accepted value into its column's block; the median of a full one may raise the scale."""
    if size > 0.0:  # a zero says nothing about the unit, and NaN is missing
        blocks[j, filled[j]] = size
        filled[j] += 1
        if filled[j] == BLOCK:
            scales[j] = _raise_scale(blocks[j], scales[j])
            blocks[j, :] = 0.0
            filled[j] = 0


@jit
def screen_rows(
    X: FloatArray,
    Y: FloatArray,
    kinds: IntArray,
    scales: FloatArray,
    blocks: FloatArray,
    filled: IntArray,
    target_scales: FloatArray,
    target_blocks: FloatArray,
    target_filled: IntArray,
    factor: float,
    limit: float,
    verdicts: IntArray,
) -> int:
    """Find values out of range, row by row, and let accepted rows move the ranges; return how many rows are rejected.

    A number or target is out of range when |v| > `limit`, or, in a row that has a target, when `factor` > 0 and
    |v| > factor · scale; a timestamp outside the years 1 to 9999; a code never is. The scale of a column is the largest
    median of |v| in a block of `BLOCK` successive accepted values other than 0; until a block is full it is 0, and the
    column is not judged by it. `verdicts` gets −1, or the field at fault, outputs counted after the F fields. NaN in X
    is a missing value; a row whose Y is NaN has no target and moves nothing.

    Args:
        X: (n, F) raw fields.
        Y: (n, Q) targets.
        kinds: (F,) which field is what.
        scales: (F,) or 0; `blocks`: (F, BLOCK) |v| of the values in the block that fills; `filled`: (F,) their number.
        target_scales: (Q,) and `target_blocks` and `target_filled`: the same of targets.
        factor: of the rule, or 0.
        limit: largest |v| in any case.
        verdicts: (n,) written.
    """
    F, Q = X.shape[1], Y.shape[1]
    refused = 0
    for i in range(X.shape[0]):
        learns = not math.isnan(Y[i, 0])
        ruled = learns and factor > 0.0
        verdicts[i] = -1
        for j in range(F):
            value = X[i, j]
            if kinds[j] == NUMERIC:
                size = abs(value)
                refuses = size > limit or (ruled and _is_far(size, scales[j], factor))
            else:
                refuses = kinds[j] == TIMESTAMP and (value < EARLIEST or value > LATEST)
            if refuses:
                verdicts[i] = j
                break
        if verdicts[i] < 0 and learns:
            for q in range(Q):
                size = abs(Y[i, q])
                if size > limit or (ruled and _is_far(size, target_scales[q], factor)):
                    verdicts[i] = F + q
                    break
        if verdicts[i] >= 0:
            refused += 1
        elif learns:
            for j in range(F):
                if kinds[j] == NUMERIC:
                    _measure(abs(X[i, j]), j, scales, blocks, filled)
            for q in range(Q):
                _measure(abs(Y[i, q]), q, target_scales, target_blocks, target_filled)
    return refused


@inline
def _widen(x: float, j: int, low: FloatArray, high: FloatArray, first: FloatArray, seen: IntArray, pace: float) -> None:
    """Let a learned value move the bounds of its column: to itself until they have settled, then by the pace."""
    if math.isnan(x):
        return
    if seen[j] == 0:
        first[j] = low[j] = high[j] = x
        seen[j] = 1
        return
    step = pace * (high[j] - low[j]) if seen[j] > SETTLED else math.inf
    if x > high[j]:
        high[j] = min(x, high[j] + step)
    elif x < low[j]:
        low[j] = max(x, low[j] - step)
    if seen[j] <= SETTLED and x != first[j]:
        seen[j] += 1


@inline
def _follow(x: float, j: int, low: FloatArray, high: FloatArray, first: FloatArray, seen: IntArray) -> bool:
    """Judge whether a settled column has jumped, so that its bounds follow at once.

    `seen` counts values in a row that are far beyond the bounds; after `RUN` of them the bounds follow the next `RUN`
    values. A column that went beyond them step by step moves on, and does not jump: values a little beyond are counted
    as well, above 2 `RUN`, and as long as there are `RUN` more of these than values within, far ones are not. Nor is
    one that is as good as the far one before it, which `first` holds once the column has settled.
    """
    count = seen[j] - SETTLED - 1
    if RUN <= count < 2 * RUN:
        seen[j] += 1 if count < 2 * RUN - 1 else -count
        return True
    width = high[j] - low[j]
    beyond = max(low[j] - x, x - high[j])
    if beyond > JUMP * width:
        before, first[j] = first[j], x
        if abs(x - before) < APART * beyond:
            return False
        if count < RUN:
            count += 1
        elif count < 3 * RUN - 1:
            count = 1
    elif beyond > 0.0 and (count == 0 or count >= 2 * RUN):
        count = min(max(count + 1, 2 * RUN), 3 * RUN - 1)
    elif count >= 2 * RUN:
        count = count - 1 if count > 2 * RUN else 0
    else:
        count -= min(count, WITHIN)
    seen[j] = SETTLED + 1 + count
    return False


@jit
def clip_rows(
    X: FloatArray,
    Y: FloatArray,
    numeric: IntArray,
    low: FloatArray,
    high: FloatArray,
    first: FloatArray,
    seen: IntArray,
    n_series: int,
    out: FloatArray,
    near: FloatArray,
) -> None:
    """Hold the numbers of each row to the bounds of their columns, which a learned row then moves.

    Args:
        X: (n, F) raw fields.
        Y: (n, Q) targets, NaN in rows that are only predicted, which move nothing; (0, 1) if all are.
        numeric: (N, 2) field and column of each numeric field.
        low: (F,) smallest value of a column that counts, and `high` the largest; `first`: (F,) its first value.
        seen: (F,) 0 before the first value, then 1 + the number of values that differ from that, up to 1 + SETTLED,
            where the column has settled and is held; beyond that, see `_follow`.
        n_series: number of first fields that are earlier targets, whose bounds move by TARGET_PACE if a value is less
            than JUMP beyond.
        out: (n, F), a copy of X; written.
        near: likewise, where values that are LEAP widths beyond alone are held; may be `out` if there are none.
    """
    for i in range(X.shape[0]):
        learns = Y.shape[0] > 0 and not math.isnan(Y[i, 0])
        for r in range(numeric.shape[0]):
            j = numeric[r, 0]
            x = X[i, j]
            if seen[j] == SETTLED + 1 and low[j] <= x <= high[j]:  # as nearly all are
                continue
            if seen[j] > SETTLED and not math.isnan(x):
                out[i, j] = held(x, j, low, high)
                if abs(x - out[i, j]) > LEAP * (high[j] - low[j]):
                    near[i, j] = out[i, j]
            if learns:
                follows = seen[j] > SETTLED and not math.isnan(x) and _follow(x, j, low, high, first, seen)
                reach = JUMP * (high[j] - low[j])
                is_near = j < n_series and low[j] - reach <= x <= high[j] + reach
                own = TARGET_PACE if is_near else INPUT_PACE
                _widen(x, j, low, high, first, seen, math.inf if follows else own)


@jit
def widen_times(
    X: FloatArray,
    Y: FloatArray,
    timed: IntArray,
    low: FloatArray,
    high: FloatArray,
    first: FloatArray,
    seen: IntArray,
) -> None:
    """Let the times of learned rows move the bounds of their columns; arguments are as in `clip_rows`."""
    for i in range(Y.shape[0]):
        if not math.isnan(Y[i, 0]):
            for k in range(len(timed)):
                _widen(X[i, timed[k, 0]], timed[k, 0], low, high, first, seen, math.inf)


@part
def _doubts(y: float, q: int, low: FloatArray, high: FloatArray, seen: IntArray, doubts: FloatArray) -> bool:
    """Judge a target, which moves the doubts about its column; return whether it is taken for an error."""
    reach = FAR * (high[q] - low[q])
    if seen[q] <= FEW or low[q] - reach <= y <= high[q] + reach:
        doubts[q] = max(doubts[q] - RELIEF, 0.0)
        return False
    doubts[q] = min(doubts[q] + 1.0, PATIENCE + 1.0)
    is_error: bool = doubts[q] <= PATIENCE
    return is_error


@inline
def is_error(y: float, q: int, low: FloatArray, high: FloatArray, seen: IntArray, doubts: FloatArray) -> bool:
    """Whether `hold_predictions` will take a target for an error."""
    reach = FAR * (high[q] - low[q])
    is_far: bool = seen[q] > FEW and not low[q] - reach <= y <= high[q] + reach
    return is_far and min(doubts[q] + 1.0, PATIENCE + 1.0) <= PATIENCE


@jit
def hold_predictions(
    predictions: FloatArray,
    Y: FloatArray,
    low: FloatArray,
    high: FloatArray,
    first: FloatArray,
    seen: IntArray,
    doubts: FloatArray,
    errors: BoolArray,
) -> None:
    """Hold the predictions of each row, (n, Q), to the bounds of the targets, which the row's own then moves.

    Arguments are as in `clip_rows`; bounds hold from more than FEWEST targets on. Targets that are taken for errors
    move nothing.

    Args:
        doubts: (Q,) how many targets far out there were of late, each less by RELIEF for every other target since.
        errors: (n,) written where a target of the row is taken for an error; or (0,).
    """
    for i in range(predictions.shape[0]):
        for q in range(predictions.shape[1]):
            if seen[q] > FEWEST:
                predictions[i, q] = held(predictions[i, q], q, low, high)
            if Y.shape[0] == 0 or math.isnan(Y[i, q]):
                continue
            if _doubts(Y[i, q], q, low, high, seen, doubts):
                if errors.shape[0] > 0:
                    errors[i] = True
            else:
                _widen(Y[i, q], q, low, high, first, seen, TARGET_PACE)
