"""One kernel for one event and for many: everything that happens to an event.

``learn(sizes, rows, targets, weights, out) → FLAGS · done + flags`` goes through rows in order: lags and means of
levels, range, holding, features, step of the mixture, further members, combination, drift test, store of the latest
rows. A row whose target is NaN is only predicted. It returns at the first row that needs Python, and says why. One
event is a call with one row, so that it has the bits of the same event in an array.

What the kernel knows of a model is in `sizes`: numbers and flags, and addresses of arrays, under the names of `FIELDS`
(`streammoe.model.bound` fills them in). Passing arrays one by one would take longer than an event.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any

from streammoe.distributions.mixtures import LEVELS
from streammoe.kernels import calibration, drift, features, level_means, portfolio, quantiles, soundness
from streammoe.kernels.by_address import flags as no_flags_at
from streammoe.kernels.by_address import floats, numbers, whole_numbers
from streammoe.kernels.compile import atomic, inline, part
from streammoe.kernels.noise import Kernel, Noise, named, refresh_of, residual_of
from streammoe.kernels.shared import (
    REFRESH_BELOW,
    RESIDUAL_EVERY,
    average_weight,
    blend,
    finish_step,
    mix,
    record_variances,
    refresh_gate,
    route,
    step_gate,
    step_size,
    topped_up,
    variance_weight,
)
from streammoe.kernels.state import LearningOptions, MMState, SingleExpert
from streammoe.types import FloatArray


def _indexes(names: Sequence[str]) -> Any:
    """Return the place of each name as an attribute, which numba folds to a constant."""
    kind: Any = namedtuple("Indexes", names)  # type: ignore[misc]  # noqa: PYI024 - the names are data
    return kind(*range(len(names)))


UNUSUAL, UNSOUND, LOOK, DRIFT = 1, 2, 4, 8
"""Why it returns: the next row needs more than this, and has changed nothing; numbers are not finite any more, and the
state is to be thrown away; something is due after the last row; its block of losses shows a drift."""
FLAGS = 16
LARGEST_STEP = 1.0 - 1e-12
"""A step of 1 would forget everything before it, and the recursions divide by 1 − γ."""
AVERAGE, STAYS, LATEST, LEARNS = range(4)
"""Kinds of members: the mixture by its average, and as it was fitted; by its latest parameters, which its step moves;
and a single expert that learns."""

_SIZES = ("F", "T", "M", "Q", "K", "N", "p_w", "p_v", "m", "n_columns", "n_numeric", "n_coded", "n_places", "n_timed")
_MORE_SIZES = (
    "n_block",
    "n_residual",
    "n_recent",
    "n_losses",
    "n_counts",
    "n_lags",
    "n_sources",
    "n_experts",
    "at_series",
    "n_identifiers",
    "n_values",
    "at_means",
)
_SWITCHES = (
    "has_features",
    "screens",
    "learns",
    "weighs",
    "holds",
    "doubts",
    "is_metric",
    "has_own_gate",
    "has_near",
    "has_portfolio",
    "has_means",
    "has_past",
    "shows_series",
)
_NUMBERS = (
    "degree",
    "gate_degree",
    "n_series",
    "lag_size",
    "until",
    "look_at",
    "judge_every",
    "n_compared",
    "most_recent",
)
_ENCODER = (
    *("kinds", "scales", "blocks", "filled", "target_scales", "target_blocks", "target_filled"),
    *("numeric", "low", "high", "first", "seen", "target_low", "target_high", "target_first", "target_seen", "doubted"),
    *("coded", "places", "timed", "fill", "center", "scale", "target_center", "target_scale", "lowest", "highest"),
)
_MIXTURE = tuple(f"mixture_{name}" for name in MMState._fields)
_REST = (
    *(
        "shape",
        "rules",
        "schedule",
        "options",
        "flags",
        "member_options",
        "member_flags",
        "steps",
        "members",
        "residual",
    ),
    *(
        "weights",
        "surprise",
        "mean_weights",
        "mean_surprise",
        "mean_squares",
        "mean_count",
        "ranks",
        "belief",
        "stretch",
    ),
    *("beside_weights", "beside_surprise", "beside_mean_weights", "beside_mean_surprise", "beside_mean_squares"),
    *("beside_mean_count", "beside_ranks", "beside_belief", "beside_stretch", "mean_weight", "outliers", "cells"),
    *("losses_block", "loss_counts", "usual", "sums", "closed", "lag_past", "lag_fields", "noted", "noted_used"),
    *("level_fields", "level_codes", "level_values", "level_keys", "level_counts", "level_means", "level_overall"),
    *("recent_X", "recent_Y", "recent_weights", "recent_losses", "recent_used"),
)
_SCRATCH = (
    *(
        "raw",
        "held",
        "near",
        "R",
        "W",
        "near_R",
        "Z",
        "ranged",
        "verdict",
        "unknown",
        "weight",
        "losses",
        "said",
        "loss",
    ),
    *(
        "beside_loss",
        "beside_served",
        "rank",
        "served",
        "shares",
        "tau",
        "trusted",
        "means",
        "push",
        "noise",
        "gain",
        "gate_gain",
        "member_shares",
        "logs",
    ),
)
FIELDS = (*_SIZES, *_MORE_SIZES, *_SWITCHES, *_NUMBERS, *_ENCODER, *_MIXTURE, *_REST, *_SCRATCH)
"""Names of the entries of `sizes`."""
AT = {name: i for i, name in enumerate(FIELDS)}
A = _indexes(FIELDS)

RULES = (
    "range_factor",
    "limit",
    "disbelief",
    "least_variation",
    "calibration",
    "tolerance",
    "threshold",
    "unit",
    "stretch_step",
)
"""Names of the entries of the array `rules`."""
RULE = _indexes(RULES)
MEMBER_FIELDS = ("kind", "K", "p", "n_lags", "terms", "seen", "near", "gate", *SingleExpert._fields)
"""Names of the columns of the array `members`, which has a row for each."""
B = _indexes(MEMBER_FIELDS)
N_MEMBER = len(MEMBER_FIELDS)

_screen, _clip = inline(features.screen_rows.py_func), inline(features.clip_rows.py_func)  # type: ignore[attr-defined]
_expand, _hold = inline(features.expand_rows.py_func), inline(features.hold_predictions.py_func)  # type: ignore[attr-defined]
_widen_times = inline(features.widen_times.py_func)  # type: ignore[attr-defined]
_combine, _combine_means = part(portfolio.combine.py_func), part(portfolio.combine_means.py_func)  # type: ignore[attr-defined]
_hold_against_usual = part(drift.hold_against_usual.py_func)  # type: ignore[attr-defined]
_is_sound, _is_expert_sound = soundness.is_sound, soundness.is_expert_sound
_is_error, _are_small = features.is_error, soundness.are_small


@inline
def _options(x: FloatArray, flags: Any) -> LearningOptions:
    return LearningOptions(
        x[0],
        (x[1], x[2]),
        (x[3], x[4]),
        flags[0] != 0,
        flags[1],
        flags[2] != 0,
        x[5],
        flags[3] != 0,
        x[6],
        x[7],
        flags[4],
        flags[5],
        x[8],
        x[9],
    )


def options_as_numbers(given: LearningOptions) -> tuple[list[float], list[int]]:
    """Return the options of steps as the kernel reads them: those that are numbers, and flags and counts."""
    values = given._asdict()
    flags = ("adaptive", "averaging", "forgetting", "recent_variances", "origin", "top_k")
    counts = [int(values.pop(name)) for name in flags]
    found: list[float] = []
    for value in values.values():
        found += value if isinstance(value, tuple) else [value]
    return found, counts


@inline
def _step(schedule: FloatArray, n: int) -> float:
    """Return γ of the n-th event: the larger of two schedules, of which one has begun again."""
    first = min(schedule[0] * math.pow(n + schedule[1], -schedule[2]), LARGEST_STEP)
    again = min(schedule[3] * math.pow(n + schedule[6] + schedule[4], -schedule[5]), LARGEST_STEP)
    step: float = max(first, again)
    return step


@inline
def _vary(S: Any, T: int, n_recent: int, least: float) -> bool:
    """Whether each two of the latest targets show that the latest ones do not vary little."""
    used, n = whole_numbers(S[A.recent_used], (2,)), S[A.n_compared]
    if used[0] < n:
        return False
    Y, end = floats(S[A.recent_Y], (n_recent, T)), used[1]
    total = 0.0
    for i in range(end - n, end, 2):
        total += (Y[i, 0] - Y[i + 1, 0]) ** 2
    return bool(total > least)


@inline
def _test(S: Any, rules: FloatArray, loss: FloatArray) -> int:
    """Take a loss into its block, and test one that is full; return `DRIFT` or 0."""
    counts, sums = whole_numbers(S[A.loss_counts], (S[A.n_counts],)), floats(S[A.sums], (2,))
    closed = floats(S[A.closed], (1, 3))
    n_closed = _hold_against_usual(
        loss, floats(S[A.losses_block], (S[A.n_losses],)), counts, floats(S[A.usual], (4,)), closed
    )
    if n_closed == 0 or counts[1] <= rules[RULE.calibration]:
        return 0
    return DRIFT if drift.exceeds(sums, closed[0, 0], rules[RULE.tolerance], rules[RULE.threshold]) else 0


@inline
def _keep(S: Any, F: int, T: int, size: int, row: FloatArray, target: FloatArray, loss: float, weight: float) -> None:
    """Keep a row among the latest events, which move to the beginning where they have reached the end."""
    used = whole_numbers(S[A.recent_used], (2,))
    X, Y = floats(S[A.recent_X], (size, F)), floats(S[A.recent_Y], (size, T))
    weights, losses = floats(S[A.recent_weights], (size,)), floats(S[A.recent_losses], (size,))
    end = used[1]
    if end == size:
        end = used[0]
        for e in range(end):
            old = size - end + e
            weights[e], losses[e] = weights[old], losses[old]
            for j in range(F):
                X[e, j] = X[old, j]
            for q in range(T):
                Y[e, q] = Y[old, q]
    for j in range(F):
        X[end, j] = row[0, j]
    for q in range(T):
        Y[end, q] = target[0, q]
    weights[end], losses[end] = weight, loss
    used[0], used[1] = min(used[0] + 1, S[A.most_recent]), end + 1


@inline
def _note(S: Any, F: int, T: int, row: FloatArray, target: FloatArray, weight: float) -> None:
    """Note what was learned, so that it can be learned again; there is room for it."""
    used = whole_numbers(S[A.noted_used], (2,))
    noted = floats(S[A.noted], (used[1], F + T + 1))[used[0]]
    for j in range(F):
        noted[j] = row[0, j]
    for q in range(T):
        noted[F + q] = target[0, q]
    noted[F + T] = weight
    used[0] += 1


@inline
def _remember(S: Any, row: FloatArray, target: FloatArray) -> None:
    """Let an event be the last one in the memory of lags, whose fields are those of inputs, or −1 − q for target q."""
    size, n = S[A.lag_size], S[A.n_sources]
    past, fields = floats(S[A.lag_past], (size, n)), whole_numbers(S[A.lag_fields], (n,))
    for s in range(n):
        for e in range(size - 1):
            past[e, s] = past[e + 1, s]
        field = fields[s]
        if field >= row.shape[1]:
            past[size - 1, s] = math.nan
        elif field >= 0:
            past[size - 1, s] = row[0, field]
        else:
            past[size - 1, s] = target[0, -1 - field]


@inline
def _fill_lags(S: Any, row: FloatArray) -> None:
    """Fill in the lags of a row, unless it has some of its own; infinite ones are known to be missing."""
    n_lags, size = S[A.n_lags], S[A.lag_size]
    past = floats(S[A.lag_past], (size, S[A.n_sources]))
    has_own = False
    for j in range(n_lags):
        has_own = has_own or not math.isnan(row[0, j])
    for j in range(n_lags):
        if not has_own:
            row[0, j] = past[size - 1 - j % size, j // size]
        elif row[0, j] == math.inf:
            row[0, j] = math.nan


@inline
def _levels(S: Any) -> level_means.Levels:
    """Return the identifiers and what is known of their levels."""
    n, V, slots = S[A.n_identifiers], S[A.n_values], level_means.SLOTS
    return level_means.Levels(
        whole_numbers(S[A.level_fields], (n,)),
        floats(S[A.level_codes], (n, level_means.MOST_COLUMNS)),
        whole_numbers(S[A.level_values], (V,)),
        floats(S[A.level_keys], (n, slots)),
        floats(S[A.level_counts], (n, slots)),
        floats(S[A.level_means], (n, slots, V)),
        floats(S[A.level_overall], (1 + V,)),
    )


@inline
def _is_unusual(S: Any, rules: FloatArray, count: int, row: FloatArray, target: FloatArray) -> bool:
    """Whether Python has to see to a single event; if not, and it is to be learned, it has moved the ranges."""
    F, T, n_block = S[A.F], S[A.T], S[A.n_block]
    for j in range(F):
        if math.isinf(row[0, j]):
            return True
    if S[A.learns] == 0:
        return False
    used, ranged = whole_numbers(S[A.noted_used], (2,)), floats(S[A.ranged], (1, T))
    if count >= S[A.until] or used[0] == used[1]:
        return True
    for q in range(T):
        if not math.isfinite(target[0, q]):
            return True
        ranged[0, q] = target[0, q] if S[A.is_metric] != 0 else 0.0
    rejected: int = _screen(
        row,
        ranged,
        whole_numbers(S[A.kinds], (F,)),
        floats(S[A.scales], (F,)),
        floats(S[A.blocks], (F, n_block)),
        whole_numbers(S[A.filled], (F,)),
        floats(S[A.target_scales], (T,)),
        floats(S[A.target_blocks], (T, n_block)),
        whole_numbers(S[A.target_filled], (T,)),
        rules[RULE.range_factor],
        rules[RULE.limit],
        whole_numbers(S[A.verdict], (1,)),
    )
    return rejected != 0


@inline
def _hold_inputs(S: Any, row: FloatArray, target: FloatArray, held: FloatArray, learns: bool) -> None:
    """Write a row as it is held to what was seen; one that is only predicted is bounded, and moves nothing."""
    F = S[A.F]
    near, numeric = floats(S[A.near], (1, F)), whole_numbers(S[A.numeric], (S[A.n_numeric], 2))
    lowest, highest = floats(S[A.lowest], (F,)), floats(S[A.highest], (F,))
    for j in range(F):
        x = row[0, j]
        if not (learns or math.isnan(x)):
            row[0, j] = min(max(x, lowest[j]), highest[j])
        held[0, j] = near[0, j] = row[0, j]
    if S[A.holds] != 0:
        low, high, first = floats(S[A.low], (F,)), floats(S[A.high], (F,)), floats(S[A.first], (F,))
        seen = whole_numbers(S[A.seen], (F,))
        _clip(row, target, numeric, low, high, first, seen, S[A.n_series], held, near)


@inline
def _expand_row(S: Any, row: FloatArray, degree: int, out: FloatArray) -> None:
    """Write the features of a row."""
    C = S[A.n_columns]
    numeric, places = whole_numbers(S[A.numeric], (S[A.n_numeric], 2)), S[A.n_places]
    coded, timed = whole_numbers(S[A.coded], (S[A.n_coded],)), whole_numbers(S[A.timed], (S[A.n_timed], 2))
    fill, center, scale = floats(S[A.fill], (C,)), floats(S[A.center], (C,)), floats(S[A.scale], (C,))
    low, high, seen = floats(S[A.low], (S[A.F],)), floats(S[A.high], (S[A.F],)), whole_numbers(S[A.seen], (S[A.F],))
    out[:] = 0.0
    at = whole_numbers(S[A.places], (S[A.n_coded], places))
    _expand(row, numeric, coded, at, timed, fill, center, scale, low, high, seen, degree, out)


@inline
def _expand_all(S: Any, held: FloatArray) -> bool:
    """Write the features of a row; return whether members that see inputs as they are have others."""
    F, near = S[A.F], floats(S[A.near], (1, S[A.F]))
    _expand_row(S, held, S[A.degree], floats(S[A.R], (1, S[A.p_v])))
    if S[A.has_own_gate] != 0:
        _expand_row(S, held, S[A.gate_degree], floats(S[A.W], (1, S[A.p_w])))
    if S[A.has_near] == 0:
        return False
    is_beyond = False
    for j in range(F):
        is_beyond = is_beyond or (held[0, j] != near[0, j] and not math.isnan(near[0, j]))
    if is_beyond:
        _expand_row(S, near, S[A.degree], floats(S[A.near_R], (1, S[A.p_v])))
    return is_beyond


@inline
def _move_times(S: Any, row: FloatArray, target: FloatArray) -> None:
    """Let the times of a row that is learned move their bounds, after its features: it is predicted by those before."""
    F, timed = S[A.F], whole_numbers(S[A.timed], (S[A.n_timed], 2))
    low, high, first = floats(S[A.low], (F,)), floats(S[A.high], (F,)), floats(S[A.first], (F,))
    _widen_times(row, target, timed, low, high, first, whole_numbers(S[A.seen], (F,)))


@inline
def _weigh(S: Any, rules: FloatArray, count: int, weight: float, target: FloatArray) -> float:
    """Return how much an event counts: relative to those before, and hardly if its target is taken for an error."""
    T, mean = S[A.T], floats(S[A.mean_weight], (1,))
    if S[A.weighs] != 0:
        mean[0] = weight if count == 1 else mean[0] + (weight - mean[0]) / count
        weight /= mean[0]
    if S[A.doubts] == 0:
        return weight
    low, high, doubted = floats(S[A.target_low], (T,)), floats(S[A.target_high], (T,)), floats(S[A.doubted], (T,))
    is_doubtful = False
    for q in range(T):
        is_doubtful = is_doubtful or _is_error(
            target[0, q], q, low, high, whole_numbers(S[A.target_seen], (T,)), doubted
        )
    return rules[RULE.disbelief] * weight if is_doubtful else weight


@inline
def _mix(S: Any, first: int, counts: FloatArray, Y: FloatArray, loss: FloatArray, served: FloatArray) -> float:
    """Write what all predict together by a trust, the first of whose arrays this is; it moves if the row counts.

    Returns what calibration takes off the loss.
    """
    m, M, T = S[A.m], S[A.M], S[A.T]
    losses, said = floats(S[A.losses], (m, 1)), floats(S[A.said], (m, 1, M))
    weights, surprise = floats(S[first], (m,)), floats(S[first + 1], (1,))
    shares, logs = floats(S[A.member_shares], (1, m)), floats(S[A.logs], (2, m))
    _combine(weights, surprise, counts, losses, said, loss, served, shares, logs)
    if S[A.has_means] != 0:
        weights, surprise = floats(S[first + 2], (1 + m,)), floats(S[first + 3], (1,))
        squares, number = floats(S[first + 4], (T,)), whole_numbers(S[first + 5], (1,))
        logs = floats(S[A.logs], (2, 1 + m))
        _combine_means(weights, surprise, squares, number, counts, said, Y, served, logs)
        if counts.shape[0] > 0:
            at = 1 if first == A.beside_weights else 0
            rank, ranks = floats(S[A.rank], (2, T))[at], floats(S[first + 6], (T, calibration.PARTS))
            belief, stretch = floats(S[first + 7], (T,)), floats(S[first + 8], (T, 2, len(LEVELS)))
            step = floats(S[A.rules], (len(RULES),))[RULE.stretch_step]
            gain = 0.0
            for q in range(T):
                calibration.count_misses(ranks[q], belief[q], stretch[q], rank[q], step, counts[0])
                height = calibration.height_of(ranks[q], rank[q])
                gain += calibration.gain_of(height, belief[q])
                calibration.count_rank(ranks[q], belief, q, rank[q], height, counts[0])
            # What is said of several targets together stays as it is.
            return gain if T == 1 else 0.0
    return 0.0


@inline
def _serve(S: Any, is_next: bool, counts: FloatArray, Y: FloatArray, loss: FloatArray, served: FloatArray) -> float:
    """Write what all members predict together, in the targets' own units; weights move if the row counts.

    Returns what calibration takes off the loss.
    """
    gain = 0.0
    m, M, T, s = S[A.m], S[A.M], S[A.T], S[A.at_series]
    losses, said = floats(S[A.losses], (m, 1)), floats(S[A.said], (m, 1, M))
    if S[A.has_portfolio] == 0:
        loss[0] = losses[0, 0]
        for q in range(M):
            served[0, q] = said[0, 0, q]
    elif is_next:
        gain = _mix(S, A.weights, counts, Y, loss, served)
    if s > 0 and (counts.shape[0] > 0 or not is_next):
        # As it would be without the member that sees the last targets, of which the first one takes the part.
        losses[s, 0] = losses[0, 0]
        for q in range(M):
            said[s, 0, q] = said[0, 0, q]
        if is_next:
            _mix(S, A.beside_weights, counts, Y, floats(S[A.beside_loss], (1,)), floats(S[A.beside_served], (1, M)))
        else:
            _mix(S, A.beside_weights, counts, Y, loss, served)
    center, scale = floats(S[A.target_center], (T,)), floats(S[A.target_scale], (T,))
    for q in range(M):
        e = q if S[A.is_metric] != 0 else 0
        served[0, q] = served[0, q] * scale[e] + center[e]
    return gain


@inline
def _hold_served(S: Any, served: FloatArray, target: FloatArray) -> None:
    """Hold a prediction to the targets seen; a target moves their bounds."""
    T = S[A.T]
    low, high, first = floats(S[A.target_low], (T,)), floats(S[A.target_high], (T,)), floats(S[A.target_first], (T,))
    seen, doubted = whole_numbers(S[A.target_seen], (T,)), floats(S[A.doubted], (T,))
    _hold(served, target, low, high, first, seen, doubted, no_flags_at(S[A.unknown], (0,)))


@inline
def _diagonal(K: int, Q: int) -> tuple[int, ...]:
    return (K, Q)


@inline
def _full(K: int, Q: int) -> tuple[int, ...]:
    return (K, Q, Q)


@inline
def _trace(
    out: FloatArray, at: int, k0: int, n: int, weight: float, shares: FloatArray, means: FloatArray, variances: Any
) -> None:
    """Write what each expert of a member says, the k0-th and those after it of all n."""
    M, Q = means.shape[1], variances.shape[1]
    for k in range(shares.shape[0]):
        out[at + k0 + k] = weight * shares[k]
        for j in range(M):
            out[at + n + (k0 + k) * M + j] = means[k, j]
        first = at + n * (1 + M) + (k0 + k) * Q
        record_variances(variances, k, out[first : first + Q])


@inline
def _rank(
    S: Any,
    rules: FloatArray,
    weight: float,
    weight_beside: float,
    shares: FloatArray,
    means: FloatArray,
    variances: Any,
    z: FloatArray,
) -> None:
    """Add what a member says to the probabilities below the targets, by the weights of both trusts."""
    ranks, cells = floats(S[A.rank], (2, z.shape[0])), floats(S[A.cells], (quantiles.N_CELLS, quantiles.TERMS))
    calibration.add_ranks(weight, weight_beside, shares, means, variances, z, rules[RULE.unit], cells, ranks)


@inline
def _write_ranks(S: Any, is_next: bool, out: FloatArray, at: int) -> None:
    """Write what calibrates the distribution that is served, and its intervals, if targets are counted."""
    if S[A.has_means] == 0:
        return
    T, parts = S[A.T], calibration.PARTS
    ranks = floats(S[A.ranks] if is_next else S[A.beside_ranks], (T, parts))
    belief = floats(S[A.belief] if is_next else S[A.beside_belief], (T,))
    for q in range(T):
        first = at + q * parts
        calibration.write_shares(ranks[q], belief[q], out[first : first + parts])
    stretch = floats(S[A.stretch] if is_next else S[A.beside_stretch], (T * 2 * len(LEVELS),))
    for j in range(stretch.shape[0]):
        out[at + T * parts + j] = stretch[j]


@cache
def _views(n_dim: int) -> tuple[Kernel, Kernel, Kernel]:
    """Make what finds the mixture, and the experts of a member, and whether all are sound; `n_dim` as in `event`."""
    variances_shape = _full if n_dim == 3 else _diagonal

    @inline
    def state_of(S: Any) -> MMState:
        """Return the mixture."""
        Q, K, N, p_w, p_v = S[A.Q], S[A.K], S[A.N], S[A.p_w], S[A.p_v]
        return MMState(
            n=whole_numbers(S[A.mixture_n], (1,)),
            n_average=whole_numbers(S[A.mixture_n_average], (1,)),
            decay=floats(S[A.mixture_decay], (1,)),
            prior_weight=floats(S[A.mixture_prior_weight], (1,)),
            gate=floats(S[A.mixture_gate], (K - 1, p_w)),
            gate_gram=floats(S[A.mixture_gate_gram], (p_w, p_w)),
            gate_inverse=floats(S[A.mixture_gate_inverse], (p_w, p_w)),
            experts=floats(S[A.mixture_experts], (K, N, p_v)),
            variances=floats(S[A.mixture_variances], variances_shape(K, Q)),
            masses=floats(S[A.mixture_masses], (K,)),
            expert_grams=floats(S[A.mixture_expert_grams], (K, p_v, p_v)),
            expert_inverses=floats(S[A.mixture_expert_inverses], (K, p_v, p_v)),
            average_gate=floats(S[A.mixture_average_gate], (K - 1, p_w)),
            average_experts=floats(S[A.mixture_average_experts], (K, N, p_v)),
            average_variances=floats(S[A.mixture_average_variances], variances_shape(K, Q)),
            prior_gate_gram=floats(S[A.mixture_prior_gate_gram], (p_w,)),
            prior_expert_gram=floats(S[A.mixture_prior_expert_gram], (p_v,)),
            prior_experts=floats(S[A.mixture_prior_experts], (N, p_v)),
            prior_variances=floats(S[A.mixture_prior_variances], (Q,)),
        )

    @inline
    def expert_of(S: Any, j: int) -> SingleExpert:
        """Return the experts of a member; of one that does not learn, most of it is of no use."""
        members, N, Q = whole_numbers(S[A.members], (S[A.m], N_MEMBER)), S[A.N], S[A.Q]
        K, p = members[j, B.K], members[j, B.p]
        return SingleExpert(
            n=whole_numbers(members[j, B.n], (1,)),
            decay=floats(members[j, B.decay], (1,)),
            prior_weight=floats(members[j, B.prior_weight], (1,)),
            experts=floats(members[j, B.experts], (K, N, p)),
            variances=floats(members[j, B.variances], variances_shape(K, Q)),
            masses=floats(members[j, B.masses], (K,)),
            expert_grams=floats(members[j, B.expert_grams], (K, p, p)),
            expert_inverses=floats(members[j, B.expert_inverses], (K, p, p)),
            prior_expert_gram=floats(members[j, B.prior_expert_gram], (p,)),
            prior_experts=floats(members[j, B.prior_experts], (N, p)),
            prior_variances=floats(members[j, B.prior_variances], (Q,)),
        )

    @inline
    def are_sound(S: Any, state: MMState) -> bool:
        """Whether all that has learned is finite."""
        if not _is_sound(state):
            return False
        for j in range(LATEST + 1, S[A.m]):  # noqa: SIM110 - numba has no all()
            if not _is_expert_sound(expert_of(S, j)):
                return False
        return True

    return state_of, expert_of, are_sound


@inline
def _write_series(S: Any, n_lags: int, n: int, x: FloatArray) -> None:
    """Write the features of a row, and behind the first one the last targets, scaled, or 1 for the class of each."""
    p_v, T, size = S[A.p_v], S[A.T], S[A.lag_size]
    r, past = floats(S[A.R], (p_v,)), floats(S[A.lag_past], (size, T))
    width = x.shape[0] - p_v
    x[0] = r[0]
    for i in range(1, x.shape[0]):
        x[i] = 0.0 if i <= width else r[i - width]
    if n <= features.CENTERED_AT:
        return
    farthest = features.FARTHEST if n <= features.SCALED else math.inf
    if S[A.is_metric] != 0:
        center, scale = floats(S[A.target_center], (T,)), floats(S[A.target_scale], (T,))
        low, high, seen = floats(S[A.target_low], (T,)), floats(S[A.target_high], (T,)), S[A.target_seen]
        for q in range(width // n_lags):
            for e in range(n_lags):
                y = past[size - 1 - e, q]
                if math.isnan(y):
                    continue
                if S[A.holds] != 0 and whole_numbers(seen, (T,))[q] > features.FEWEST:
                    y = features.held(y, q, low, high)
                x[1 + q * n_lags + e] = min(max((y - center[q]) / scale[q], -farthest), farthest)
    else:
        for e in range(n_lags):
            y = past[size - 1 - e, 0]
            # Compared as floats: NaN has no integer.
            if 0.0 <= y < width // n_lags:
                x[1 + int(y) * n_lags + e] = 1.0


def _evaluation(noise: Noise) -> Kernel:
    """Make what evaluates a row by a member."""
    evaluate, scratch_rows = noise.evaluate, noise.scratch_rows

    @inline
    def evaluate_member(
        S: Any,
        count: int,
        j: int,
        shape: Any,
        constant: float,
        expert: SingleExpert,
        x: FloatArray,
        z: FloatArray,
    ) -> None:
        """Write what a member says of a row, and its loss."""
        members, M = whole_numbers(S[A.members], (S[A.m], N_MEMBER)), S[A.M]
        K, p_w, E = members[j, B.K], S[A.p_w], S[A.n_experts]
        r, w = floats(S[A.R], (S[A.p_v],)), floats(S[A.W], (p_w,))
        if members[j, B.terms] != 0:
            terms = whole_numbers(members[j, B.terms], (x.shape[0], 2))
            for e in range(x.shape[0]):
                x[e] = r[terms[e, 0]] * r[terms[e, 1]]
        if members[j, B.n_lags] != 0:
            _write_series(S, members[j, B.n_lags], count - 1, x)
        shares, tau, means = floats(S[A.shares], (K,)), floats(S[A.tau], (K,)), floats(S[A.means], (K, M))
        room, gate = floats(S[A.noise], (scratch_rows(M), max(E, M))), floats(members[j, B.gate], (K - 1, p_w))
        loss: float = evaluate(
            shape, constant, room, gate, expert.experts, expert.variances, w, x, z, shares, means, tau
        )
        mix(shares, means, floats(S[A.said], (S[A.m], M))[j])
        floats(S[A.losses], (S[A.m],))[j] = loss

    return evaluate_member


def _learning(noise: Noise, single: Noise) -> Kernel:
    """Make what lets a member learn a row."""
    trust, scratch_rows = noise.trust, noise.scratch_rows
    step_experts, step_single = noise.step_experts, single.step_experts
    differs = step_single is not step_experts
    """Where it is False, numba leaves the branch out."""
    refresh, track_residual = refresh_of(noise.top_up), residual_of(noise.residual_of_expert)

    @inline
    def learn_member(
        S: Any,
        j: int,
        shape: Any,
        state: MMState,
        expert: SingleExpert,
        options: LearningOptions,
        count: int,
        weight: float,
        x: FloatArray,
        z: FloatArray,
    ) -> None:
        """Let a member learn the row that it has evaluated; the mixture learns as its latest parameters do."""
        members, M, E = whole_numbers(S[A.members], (S[A.m], N_MEMBER)), S[A.M], S[A.n_experts]
        kind, K = members[j, B.kind], members[j, B.K]
        shares, tau = floats(S[A.shares], (K,)), floats(S[A.tau], (K,))
        trusted, means = floats(S[A.trusted], (K,)), floats(S[A.means], (K, M))
        room, push = floats(S[A.noise], (scratch_rows(M), max(E, M))), floats(S[A.push], (max(E, M),))
        gain, w = floats(S[A.gain], (x.shape[0],)), floats(S[A.W], (S[A.p_w],))
        if kind == LATEST:
            gamma, chosen = step_size(state, options, _step(floats(S[A.schedule], (7,)), count)), options
            route(tau, options.top_k)
        else:
            least, alpha = floats(S[A.steps], (S[A.m], 2))[j]
            first = math.pow(expert.n[0] + 1.0, -alpha) if alpha < 1.0 else 1.0 / (expert.n[0] + 1.0)
            gamma = max(min(first, LARGEST_STEP), least)
            chosen = _options(floats(S[A.member_options] + 80 * j, (10,)), whole_numbers(S[A.member_flags], (6,)))
        is_outlier = trust(shape, tau, room, trusted, M)
        keep = 1.0 - gamma
        decay = expert.decay[0] * keep
        fresh = gamma * weight
        amount = fresh / decay
        if kind == LATEST:
            whole_numbers(S[A.outliers], (1,))[0] += is_outlier
            if count % RESIDUAL_EVERY == 1:
                residual = floats(S[A.residual], (S[A.n_residual],))
                track_residual(state, residual, options, weight, shares, tau, trusted, means, w, x, z)
            step_gate(state, options, amount, shares, tau, push, w, floats(S[A.gate_gain], (S[A.p_w],)))
        if differs and kind == LEARNS:
            step_single(expert, chosen, keep, fresh, amount, tau, trusted, means, x, z, gain, push)
        else:
            step_experts(expert, chosen, keep, fresh, amount, tau, trusted, means, x, z, gain, push)
        finish_step(expert, gamma, decay)
        if decay < REFRESH_BELOW:
            prior_weight = topped_up(expert, chosen, gamma)
            if kind == LATEST:
                refresh_gate(state, prior_weight - state.prior_weight[0])
            refresh(expert, prior_weight)
        if kind != LATEST:
            return
        share = average_weight(state, options, gamma)
        blend(state.average_gate, state.gate, share)
        blend(state.average_experts, state.experts, share)
        blend(state.average_variances, state.variances, variance_weight(options, share, gamma))

    return learn_member


def _passage(noise: Noise, single: Noise, expert_of: Kernel) -> Kernel:
    """Make what takes a row through all members."""
    evaluate_member, learn_member = _evaluation(noise), _learning(noise, single)

    @inline
    def go_through_members(
        S: Any,
        rules: FloatArray,
        shape: Any,
        constant: float,
        state: MMState,
        options: LearningOptions,
        count: int,
        weight: float,
        target: FloatArray,
        is_beyond: bool,
        learns: bool,
        is_next: bool,
        out: FloatArray,
    ) -> bool:
        """Let each member predict a row and, if it is to be learned, learn it; return whether all numbers are small.

        Of a row that is not the next event the last targets are not known, so the first member takes the part of that
        which sees them.
        """
        m, M, T, K, E = S[A.m], S[A.M], S[A.T], S[A.K], S[A.n_experts]
        members, z = whole_numbers(S[A.members], (m, N_MEMBER)), floats(S[A.Z], (T,))
        center, scale = floats(S[A.target_center], (T,)), floats(S[A.target_scale], (T,))
        losses, said, weights = floats(S[A.losses], (m, 1)), floats(S[A.said], (m, M)), floats(S[A.weights], (m,))
        width, has_portfolio, at, trace_at = out.shape[0], S[A.has_portfolio] != 0, 0, 2 + M + S[A.F]
        s, beside, ranks = S[A.at_series], floats(S[A.beside_weights], (m,)), floats(S[A.rank], (2, T))
        counts_ranks = learns and S[A.has_means] != 0
        for q in range(T):
            z[q] = (target[0, q] - center[q]) / scale[q]
            if counts_ranks:
                ranks[0, q] = ranks[1, q] = 0.0
        for j in range(m if has_portfolio or learns else 1):
            sees_near = is_beyond and members[j, B.near] != 0
            x = floats(S[A.near_R] if sees_near else members[j, B.seen], (members[j, B.p],))
            expert = expert_of(S, j)
            evaluate_member(S, count, j, shape, constant, expert, x, z)
            if S[A.learns] != 0 and not _are_small(z, losses[j], said[j]):
                return False
            shares, means = floats(S[A.shares], (members[j, B.K],)), floats(S[A.means], (members[j, B.K], M))
            weight_of, weight_beside = 1.0, 0.0
            if has_portfolio:
                if s > 0 and j != s:
                    weight_beside = beside[j] + (beside[s] if j == 0 else 0.0)
                weight_of = weights[j] if is_next else weight_beside
            if counts_ranks:
                _rank(S, rules, weight_of, weight_beside, shares, means, expert.variances, z)
            if width > trace_at and (has_portfolio or j == 0):
                _trace(out, trace_at, at, E, weight_of, shares, means, expert.variances)
                if j == 0:
                    for k in range(K):
                        out[width - K + k] = shares[k]
                    _write_ranks(S, is_next, out, trace_at + E * (1 + M + S[A.Q]))
            at += members[j, B.K]
            if learns and members[j, B.kind] >= LATEST:
                learn_member(S, j, shape, state, expert, options, count, weight, x, z)
        return True

    return go_through_members


def event(noise: Noise, single: Noise, module: str, n_numbers: int, *, n_dim: int = 2) -> Any:
    """Make `learn` of a family, to be kept under this name in `module`.

    Args:
        noise: of the mixture's experts.
        single: of single experts; their steps may differ.
        module: of the family.
        n_numbers: how many numbers the noise has.
        n_dim: how many dimensions the variances of a mixture have.
    """
    state_of, expert_of, are_sound = _views(n_dim)
    go_through_members = _passage(noise, single, expert_of)
    log_constant, shape_at = noise.log_constant, numbers(n_numbers)

    @inline
    def run(S: Any, X0: int, Y0: int, w0: int, out0: int, n: int, width: int) -> int:
        F, T, M = S[A.F], S[A.T], S[A.M]
        state = state_of(S)
        rules, row, held = floats(S[A.rules], (len(RULES),)), floats(S[A.raw], (1, F)), floats(S[A.held], (1, F))
        Z, unknown, loss = floats(S[A.Z], (1, T)), floats(S[A.unknown], (1, T)), floats(S[A.loss], (1,))
        counts, none, served = floats(S[A.weight], (1,)), floats(S[A.weight], (0,)), floats(S[A.served], (1, M))
        every, n_recent, learning = S[A.judge_every], S[A.n_recent], S[A.learns] != 0
        shape = shape_at(S[A.shape])
        constant = log_constant(shape, M)
        options = _options(floats(S[A.options], (10,)), whole_numbers(S[A.flags], (6,)))
        for i in range(n):
            given, target = floats(X0 + 8 * i * F, (1, F)), floats(Y0 + 8 * i * T, (1, T))
            out, weight = floats(out0 + 8 * i * width, (width,)), floats(w0 + 8 * i, (1,))[0]
            learns, count = learning and not math.isnan(target[0, 0]), state.n[0] + 1
            moving = target if learns else unknown
            for j in range(F):
                row[0, j] = given[0, j]
            if S[A.n_lags] > 0:
                _fill_lags(S, row)
            if S[A.n_identifiers] > 0:
                level_means.write_means(row[0], S[A.at_means], rules[RULE.limit], _levels(S))
            if S[A.screens] != 0 and _is_unusual(S, rules, count, row, target):
                return FLAGS * i + UNUSUAL
            varies = True
            if learns and every > 0 and count % every == 0:
                varies = _vary(S, T, n_recent, rules[RULE.least_variation])
            is_beyond = False
            if S[A.has_features] == 0:
                _hold_inputs(S, row, moving, held, learns)
                is_beyond = _expand_all(S, held)
                if S[A.holds] != 0 and S[A.n_timed] > 0:
                    _move_times(S, row, moving)
            if learns:
                counts[0] = _weigh(S, rules, count, weight, target)
            is_next = learns or S[A.shows_series] != 0 or S[A.at_series] == 0
            if not go_through_members(
                S, rules, shape, constant, state, options, count, counts[0], target, is_beyond, learns, is_next, out
            ):
                return FLAGS * i + UNSOUND
            # Before the event is noted, which will be learned again if another one has to be undone.
            if learning and i == n - 1 and not are_sound(S, state):
                return FLAGS * i + UNSOUND
            gain = _serve(S, is_next, counts if learns else none, Z if learns else unknown, loss, served)
            flags = 0
            if learns:
                if S[A.n_losses] > 0:
                    flags = _test(S, rules, loss)
                if n_recent > 0:
                    _keep(S, F, T, n_recent, row, target, loss[0], counts[0])
                if S[A.noted_used] != 0:
                    _note(S, F, T, row, target, weight)
                if S[A.n_lags] > 0 or S[A.has_past] != 0:
                    _remember(S, row, target)
                if S[A.n_identifiers] > 0:
                    level_means.take_target(row[0], target[0], S[A.is_metric] != 0, _levels(S))
                if not varies or state.n[0] == S[A.look_at]:
                    flags |= LOOK
            if S[A.is_metric] != 0 and S[A.holds] != 0:
                _hold_served(S, served, moving)
            out[0] = loss[0] - gain
            for q in range(M):
                out[1 + q] = served[0, q]
            if width > 1 + M:
                out[1 + M] = counts[0]
                for j in range(F):
                    out[2 + M + j] = held[0, j]
            if flags != 0:
                if i < n - 1 and not are_sound(S, state):
                    return FLAGS * i + UNSOUND
                return FLAGS * (i + 1) + flags
        return FLAGS * n

    def learn(sizes: Any, rows: FloatArray, targets: FloatArray, weights: FloatArray, out: FloatArray) -> int:
        """Learn rows in order, up to the first that needs more than this; those without target are only predicted.

        Args:
            sizes: the model, see `FIELDS`.
            rows: (n, F) raw fields, NaN where missing; or features, where it `has_features`.
            targets: (n, T) targets or class indexes, NaN where there is none.
            weights: (n,) how much each row counts, above 0.
            out: (n, 1 + M), written: the loss and the prediction, before the row is learned; with more columns, the
                weight with which it counted and the F fields as they were held; with even more, what each expert said.

        Returns:
            `FLAGS` times the number of rows done, plus why it ends.
        """
        return run(
            sizes,
            rows.ctypes.data,
            targets.ctypes.data,
            weights.ctypes.data,
            out.ctypes.data,
            rows.shape[0],
            out.shape[1],
        )

    return atomic(named(learn, module))
