"""One event at a time: all kernels that predict or learn an event, called by one.

It is the work of `streammoe.model.phases.streaming` and `streammoe.engine.portfolio` for a single row, where nothing
unusual happens: the same kernels with the same arguments in the same order, so that every number has the same bits.
What is unusual, such as a value out of range, is found before anything has changed, and left to them.

All that does not change from event to event is in records, made once by `streammoe.model.one_event`: sizes, flags, and
addresses of arrays and kernels (`streammoe.kernels.by_address`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from streammoe.kernels import drift, features, portfolio
from streammoe.kernels.by_address import (
    OBJECTS,
    Callee,
    flags,
    floats,
    integers,
    numbers,
    read_floats,
    record,
    records,
    types,
    whole_numbers,
)
from streammoe.kernels.compile import atomic, inline
from streammoe.kernels.loop import UNSOUND, named
from streammoe.kernels.state import LearningOptions, MMState, SingleExpert, Trace
from streammoe.types import FloatArray

UNUSUAL = -2
"""What `learn_event` returns where nothing was changed, since the event needs more than this."""
CLOSED, GROWS = 1, 2
"""Flags that it returns where something is left to do: the drift detector has a block to judge, and the event is one of
those to which the mixture will be fitted again."""
AVERAGE, LATEST, LEARNS, STAYS = range(4)
"""Kinds of members: two that the mixture's step scores, a single expert that learns, and a mixture that stays."""

_INT = types.int64
_FLOAT = types.float64
_F1, _F2, _F3 = (types.Array(types.float64, n, "C") for n in (1, 2, 3))
_I1, _I2 = (types.Array(types.int64, n, "C") for n in (1, 2))
_B1 = types.Array(types.boolean, 1, "C")

_OPTIONS = {
    "prior_strength": "f8",
    "curvature_a": "f8",
    "curvature_b": "f8",
    "expert_curvature_a": "f8",
    "expert_curvature_b": "f8",
    "adaptive": "i8",
    "averaging": "i8",
    "forgetting": "i8",
    "least_weight": "f8",
    "recent_variances": "i8",
    "bound_share": "f8",
    "span": "f8",
    "origin": "i8",
    "top_k": "i8",
    "variance_floor": "f8",
    "residual_weight": "f8",
}
"""Fields of `LearningOptions` as numbers."""

EVENT = record(
    **integers(
        "F", "T", "M", "p_w", "p_v", "n_columns", "n_numeric", "n_coded", "n_places", "n_timed", "m", "Q", "n_block"
    ),
    **integers("holds", "doubts", "is_metric", "has_own_gate", "has_portfolio", "has_means", "degree", "gate_degree"),
    **integers("n_series", "shape", "mixture", "members", *OBJECTS),
    # What changes now and then: the event counts at which something else has to be done, and step sizes until then.
    **integers("next_count", "until_count", "steps", "grows", "look_every", "looked_at", "n_compared"),
    least_variation="f8",
    range_factor="f8",
    limit="f8",
    margin="f8",
    input_pace="f8",
    target_pace="f8",
    far="f8",
    most_gained="f8",
    # Kernels.
    **integers("screen_rows", "clip_rows", "expand_rows", "hold_predictions", "combine", "combine_means"),
    **integers("hold_against_usual", "learn_rows", "learn_single", "score_rows"),
    # The encoder.
    **integers("kinds", "scales", "blocks", "filled", "target_scales", "target_blocks", "target_filled"),
    **integers("numeric", "low", "high", "first", "seen", "target_low", "target_high", "target_first", "target_seen"),
    **integers("target_doubts", "coded", "places", "timed", "fill", "center", "scale", "target_center", "target_scale"),
    **integers("lowest", "highest"),
    # Room for one row.
    **integers(
        "verdict",
        "row",
        "target",
        "held",
        "W",
        "R",
        "Z",
        "unknown",
        "ranged",
        "bounded",
        "shown",
        "shown_loss",
        "losses",
        "predictions",
        "gamma",
    ),
    **integers("weight", "responsibilities", "said_losses", "said", "served_loss", "served", "shares"),
    # The portfolio, the drift detector, and what is counted.
    **integers(
        "weights", "surprise", "mean_weights", "mean_surprise", "mean_squares", "mean_count", "outliers", "mean_weight"
    ),
    **integers("losses_block", "block_size", "n_counts", "loss_counts", "usual", "closed"),
    # What has been learned since there was a copy of the model; and the latest events, if it may be fitted to them.
    **integers("noted_rows", "noted_used"),
    **integers("recent_size", "recent_X", "recent_Y", "recent_weights", "recent_losses", "recent_used", "recent_most"),
)
"""What `predict_event` and `learn_event` know of a model."""

MIXTURE = record(**integers("K", "N", "residual", "residual_size", *MMState._fields), **_OPTIONS)
"""The mixture that learns: sizes, addresses of the arrays of its state, and its options."""

MEMBER = record(
    **integers("kind", "K", "N", "p", "gate", "average_experts", "average_variances", "terms", "seen", "gain"),
    **integers(*SingleExpert._fields),
    step="f8",
    **_OPTIONS,
)
"""A member of the portfolio: what it predicts by, and for one that learns its state and options."""


_events, _mixtures, _members = records(EVENT), records(MIXTURE), records(MEMBER)


class Kernels(NamedTuple):
    """The kernels for experts of one kind."""

    predict_event: Any
    learn_event: Any
    callees: dict[str, Callee]
    """All that they call, by the names that `EVENT` has for their addresses."""


_SCREEN = Callee(features.screen_rows, [_F2, _F2, _I1, _F1, _F2, _I1, _F1, _F2, _I1, _FLOAT, _FLOAT, _I1], _INT)
_CLIP = Callee(
    features.clip_rows, [_F2, _F2, _I2, _F1, _F1, _F1, _I1, _FLOAT, _FLOAT, _INT, _FLOAT, _F2, _F2], types.none
)
_EXPAND = Callee(features.expand_rows, [_F2, _I2, _I1, _I2, _I2, _F1, _F1, _F1, _INT, _F2], types.none)
_HOLD = Callee(features.hold_predictions, [_F2, _F2, _F1, _F1, _F1, _I1, _F1, _FLOAT, _FLOAT, _B1], types.none)
_COMBINE = Callee(portfolio.combine, [_F1, _F1, _F1, _F2, _F3, _F1, _F2, _F2], types.none)
_COMBINE_MEANS = Callee(portfolio.combine_means, [_F1, _F1, _F1, _I1, _F1, _F3, _F2, _F2], types.none)
_USUAL = Callee(drift.hold_against_usual, [_F1, _F1, _I1, _F1, _F2], _INT)
_CALLEES = {
    "screen_rows": _SCREEN,
    "clip_rows": _CLIP,
    "expand_rows": _EXPAND,
    "hold_predictions": _HOLD,
    "combine": _COMBINE,
    "combine_means": _COMBINE_MEANS,
    "hold_against_usual": _USUAL,
}
# numba wants to know what a global name is.
_screen_rows, _clip_rows, _expand_rows = _SCREEN.call, _CLIP.call, _EXPAND.call
_hold, _combine, _combine_means = _HOLD.call, _COMBINE.call, _COMBINE_MEANS.call
_hold_against_usual = _USUAL.call

_TRACE = types.NamedTuple([_F2, _F3, _F3], Trace)
_LEARNING_OPTIONS = types.NamedTuple(
    [
        _FLOAT,
        types.UniTuple(_FLOAT, 2),
        types.UniTuple(_FLOAT, 2),
        types.boolean,
        _INT,
        types.boolean,
        _FLOAT,
        types.boolean,
        _FLOAT,
        _FLOAT,
        _INT,
        _INT,
        _FLOAT,
        _FLOAT,
    ],
    LearningOptions,
)


@inline
def _options(of: Any) -> LearningOptions:
    return LearningOptions(
        of.prior_strength,
        (of.curvature_a, of.curvature_b),
        (of.expert_curvature_a, of.expert_curvature_b),
        of.adaptive != 0,
        of.averaging,
        of.forgetting != 0,
        of.least_weight,
        of.recent_variances != 0,
        of.bound_share,
        of.span,
        of.origin,
        of.top_k,
        of.variance_floor,
        of.residual_weight,
    )


@inline
def _clip(event: Any, X: FloatArray, Y: FloatArray, held: FloatArray) -> None:
    """Write a raw row as it is held to what was seen; a target moves the bounds."""
    F = event.F
    _clip_rows(
        event.clip_rows,
        (
            X,
            Y,
            whole_numbers(event.numeric, (event.n_numeric, 2)),
            floats(event.low, (F,)),
            floats(event.high, (F,)),
            floats(event.first, (F,)),
            whole_numbers(event.seen, (F,)),
            event.margin,
            event.input_pace,
            event.n_series,
            event.target_pace,
            held,
            held,
        ),
    )


@inline
def _expand(event: Any, X: FloatArray, degree: int, out: FloatArray) -> None:
    """Write the features of a raw row."""
    out[:] = 0.0
    C = event.n_columns
    _expand_rows(
        event.expand_rows,
        (
            X,
            whole_numbers(event.numeric, (event.n_numeric, 2)),
            whole_numbers(event.coded, (event.n_coded,)),
            whole_numbers(event.places, (event.n_coded, event.n_places)),
            whole_numbers(event.timed, (event.n_timed, 2)),
            floats(event.fill, (C,)),
            floats(event.center, (C,)),
            floats(event.scale, (C,)),
            degree,
            out,
        ),
    )


@inline
def _hold_predictions(event: Any, predictions: FloatArray, Y: FloatArray) -> None:
    """Hold predictions to the targets seen; a target moves the bounds."""
    T = event.T
    _hold(
        event.hold_predictions,
        (
            predictions,
            Y,
            floats(event.target_low, (T,)),
            floats(event.target_high, (T,)),
            floats(event.target_first, (T,)),
            whole_numbers(event.target_seen, (T,)),
            floats(event.target_doubts, (T,)),
            event.margin,
            event.target_pace,
            flags(event.unknown, (0,)),
        ),
    )


@inline
def _diagonal(K: int, Q: int) -> tuple[int, ...]:
    return (K, Q)


@inline
def _full(K: int, Q: int) -> tuple[int, ...]:
    return (K, Q, Q)


@cache
def kernels_for(module: Any, n_numbers: int, n_dim: int) -> Kernels:
    """Make the kernels that predict and learn one event, and those they call.

    Args:
        module: the kernels of the family: its `score_rows`, `learn_rows` and `learn_single`.
        n_numbers: how many numbers its noise has.
        n_dim: how many dimensions the variances of a mixture have.
    """
    shape_type = types.UniTuple(_FLOAT, n_numbers) if n_numbers else types.Tuple(())
    spread = types.Array(types.float64, n_dim, "C")
    state_type = types.NamedTuple(
        [_I1, _I1, _F1, _F1, _F2, _F2, _F2, _F3, spread, _F1, _F3, _F3, _F2, _F3, spread, _F1, _F1, _F2, _F1],
        MMState,
    )
    single_type = types.NamedTuple([_I1, _F1, _F1, _F3, spread, _F1, _F3, _F3, _F1, _F2, _F1], SingleExpert)
    score_rows = Callee(
        module.score_rows, [shape_type, _F2, _F3, spread, _F2, _F2, _F2, _F1, _F2, _F2, _TRACE], types.none
    )
    learn_rows = Callee(
        module.learn_rows,
        [shape_type, state_type, _F1, _LEARNING_OPTIONS, _F1, _F1, _F2, _F2, _F2, _F1, _F2, _TRACE],
        _INT,
    )
    learn_single = Callee(
        module.learn_single,
        [shape_type, single_type, _LEARNING_OPTIONS, _FLOAT, _F1, _F2, _F2, _F1, _F2, _F3],
        _INT,
    )
    score, learn_mixture, learn_expert = score_rows.call, learn_rows.call, learn_single.call
    variances_shape = _full if n_dim == 3 else _diagonal
    shape_at = numbers(n_numbers)

    @inline
    def write_terms(member: Any, R: FloatArray) -> None:
        """Write the features of a member, if they are products of two of the mixture's experts'."""
        if member.terms != 0:
            p = member.p
            terms, seen = whole_numbers(member.terms, (p, 2)), floats(member.seen, (1, p))
            for j in range(p):
                seen[0, j] = R[0, terms[j, 0]] * R[0, terms[j, 1]]

    @inline
    def score_member(
        shape: Any, event: Any, member: Any, W: FloatArray, Y: FloatArray, loss: FloatArray, said: FloatArray
    ) -> None:
        """Write what a member says of a row, and its loss."""
        K, N = member.K, member.N
        R = floats(member.seen, (1, member.p))
        # One expert has no gate.
        gate = R if K == 1 else W
        score(
            event.score_rows,
            (
                shape,
                floats(member.gate, (K - 1, gate.shape[1])),
                floats(member.average_experts, (K, N, member.p)),
                floats(member.average_variances, variances_shape(K, event.Q)),
                gate,
                R,
                Y,
                loss,
                said,
                floats(event.responsibilities, (1, K)),
                Trace(
                    floats(event.unknown, (0, 0)), floats(event.unknown, (0, 0, 0)), floats(event.unknown, (0, 0, 0))
                ),
            ),
        )

    @inline
    def combine_members(event: Any, counts: FloatArray, Y: FloatArray, loss: FloatArray, served: FloatArray) -> None:
        """Write the served loss and prediction of a row from what the members said; weights move if it counts."""
        m, M = event.m, event.M
        losses, said = floats(event.said_losses, (m, 1)), floats(event.said, (m, 1, M))
        weights, shares = floats(event.weights, (m,)), floats(event.shares, (1, m))
        surprise = floats(event.surprise, (1,))
        _combine(event.combine, (weights, surprise, counts, losses, said, loss, served, shares))
        if event.has_means != 0:
            _combine_means(
                event.combine_means,
                (
                    floats(event.mean_weights, (1 + m,)),
                    floats(event.mean_surprise, (1,)),
                    floats(event.mean_squares, (event.T,)),
                    whole_numbers(event.mean_count, (1,)),
                    counts,
                    said,
                    Y,
                    served,
                ),
            )

    @inline
    def in_units(event: Any, served: FloatArray) -> None:
        """Convert a prediction to the targets' own units."""
        center, scale = floats(event.target_center, (event.T,)), floats(event.target_scale, (event.T,))
        for q in range(event.M):
            at = q if event.is_metric != 0 else 0
            served[0, q] = served[0, q] * scale[at] + center[at]

    def predict_event(events: int, given: int, wanted: int) -> float:
        """Predict a raw row; nothing that learning uses is changed.

        Args:
            events: address of an `EVENT`.
            given: address of a tuple of F numbers.
            wanted: where to write the prediction, (M,); 0 if there is one number only.

        Returns:
            The first number of the prediction; NaN if the row is not one of floats without infinities, or is held.
        """
        event = _events(events, (1,))[0]
        shape = shape_at(event.shape)
        F, m, M, T = event.F, event.m, event.M, event.T
        lowest, highest = floats(event.lowest, (F,)), floats(event.highest, (F,))
        bounded, held = floats(event.bounded, (1, F)), floats(event.shown, (1, F))
        if not read_floats(given, event, held):
            return math.nan
        for j in range(F):
            x = held[0, j]
            if math.isinf(x):
                return math.nan
            bounded[0, j] = x if math.isnan(x) else min(max(x, lowest[j]), highest[j])
            held[0, j] = bounded[0, j]
        if event.holds != 0:
            _clip(event, bounded, floats(event.unknown, (0, 1)), held)
            for j in range(F):
                if held[0, j] != bounded[0, j] and not math.isnan(bounded[0, j]):
                    return math.nan
        R = floats(event.R, (1, event.p_v))
        _expand(event, held, event.degree, R)
        W = floats(event.W, (1, event.p_w))
        if event.has_own_gate != 0:
            _expand(event, held, event.gate_degree, W)
        unknown, loss = floats(event.unknown, (1, T)), floats(event.shown_loss, (1,))
        losses, said = floats(event.said_losses, (m, 1)), floats(event.said, (m, 1, M))
        served = floats(event.served if wanted == 0 else wanted, (1, M))
        for i in range(m):
            member = _members(event.members, (m,))[i]
            write_terms(member, R)
            score_member(shape, event, member, W, unknown, losses[i], said[i])
        if m == 1:
            for q in range(M):
                served[0, q] = said[0, 0, q]
        else:
            combine_members(event, floats(event.unknown, (0,)), unknown, loss, served)
        in_units(event, served)
        if event.is_metric != 0 and event.holds != 0:
            _hold_predictions(event, served, floats(event.unknown, (0, 1)))
        first: float = served[0, 0]
        return first

    @inline
    def is_unusual(event: Any, row: FloatArray, target: FloatArray) -> bool:
        """Whether a row is infinite, out of range, held or far out; if it is in range, it has moved the ranges."""
        F, T = event.F, event.T
        for j in range(F):
            if math.isinf(row[0, j]):
                return True
        for q in range(T):
            if not math.isfinite(target[0, q]):
                return True
        if event.doubts != 0 and event.holds != 0:
            low, high = floats(event.target_low, (T,)), floats(event.target_high, (T,))
            for q in range(T):
                reach = event.far * (high[q] - low[q])
                if low[q] - reach > target[0, q] or high[q] + reach < target[0, q]:
                    return True
        if event.holds != 0:
            numeric = whole_numbers(event.numeric, (event.n_numeric, 2))
            least, most, seen = floats(event.low, (F,)), floats(event.high, (F,)), whole_numbers(event.seen, (F,))
            for r in range(event.n_numeric):
                j = numeric[r, 0]
                if features.is_beyond(row[0, j], j, least, most, seen, event.margin):
                    return True
        ranged = floats(event.ranged, (1, T))
        for q in range(T):
            ranged[0, q] = target[0, q] if event.is_metric != 0 else 0.0 * target[0, q]
        rejected = _screen_rows(
            event.screen_rows,
            (
                row,
                ranged,
                whole_numbers(event.kinds, (F,)),
                floats(event.scales, (F,)),
                floats(event.blocks, (F, event.n_block)),
                whole_numbers(event.filled, (F,)),
                floats(event.target_scales, (T,)),
                floats(event.target_blocks, (T, event.n_block)),
                whole_numbers(event.target_filled, (T,)),
                event.range_factor,
                event.limit,
                whole_numbers(event.verdict, (1,)),
            ),
        )
        found: bool = rejected != 0
        return found

    @inline
    def learn_member(shape: Any, event: Any, member: Any, Z: FloatArray, loss: FloatArray, said: FloatArray) -> int:
        N, p, Q = member.N, member.p, event.Q
        expert = SingleExpert(
            whole_numbers(member.n, (1,)),
            floats(member.decay, (1,)),
            floats(member.prior_weight, (1,)),
            floats(member.experts, (1, N, p)),
            floats(member.variances, variances_shape(1, Q)),
            floats(member.masses, (1,)),
            floats(member.expert_grams, (1, p, p)),
            floats(member.expert_inverses, (1, p, p)),
            floats(member.prior_expert_gram, (p,)),
            floats(member.prior_experts, (N, p)),
            floats(member.prior_variances, (Q,)),
        )
        R, none = floats(member.seen, (1, p)), floats(event.unknown, (0, 1, Q))
        weight = floats(event.weight, (1,))
        found: int = learn_expert(
            event.learn_single, (shape, expert, _options(member), member.step, weight, R, Z, loss, said, none)
        )
        return found

    @inline
    def learn_portfolio(shape: Any, event: Any, W: FloatArray, R: FloatArray, Z: FloatArray) -> int:
        """Let the members other than the mixture score or learn a row, and combine what all have said."""
        m, M = event.m, event.M
        losses, said = floats(event.said_losses, (m, 1)), floats(event.said, (m, 1, M))
        own, predictions = floats(event.losses, (2,)), floats(event.predictions, (2, M))
        weight = floats(event.weight, (1,))
        for i in range(m):
            member = _members(event.members, (m,))[i]
            if member.kind <= LATEST:
                losses[i, 0] = own[member.kind]
                for q in range(M):
                    said[i, 0, q] = predictions[member.kind, q]
            elif member.kind == LEARNS:
                write_terms(member, R)
                if learn_member(shape, event, member, Z, losses[i], said[i]) == UNSOUND:
                    return UNSOUND
            else:
                score_member(shape, event, member, W, Z, losses[i], said[i])
                if not math.isfinite(losses[i, 0]):
                    return UNSOUND
                for q in range(M):
                    if not math.isfinite(said[i, 0, q]):
                        return UNSOUND
                gained = weight[0] * (own[0] - losses[i, 0])
                if gained < -event.most_gained:
                    gained = -event.most_gained
                elif gained > event.most_gained:
                    gained = event.most_gained
                floats(member.gain, (1,))[0] += gained
        served = floats(event.served, (1, M))
        combine_members(event, weight, Z, floats(event.served_loss, (1,)), served)
        return 0

    @inline
    def read_target(event: Any, given: int, target: FloatArray) -> bool:
        """Copy a float, or a tuple of floats where there are several outputs; return False if it is something else."""
        if event.T > 1:
            return read_floats(given, event, target)
        if whole_numbers(given + event.type_at, (1,))[0] != event.float_type:
            return False
        target[0, 0] = floats(given + event.value_at, (1,))[0]
        return True

    @inline
    def varies(event: Any) -> bool:
        """Whether each two of the latest targets show that the latest ones do not vary little."""
        size, n = event.recent_size, event.n_compared
        if size == 0:
            return False
        used = whole_numbers(event.recent_used, (2,))
        if used[0] < n:
            return False
        Y, end = floats(event.recent_Y, (size, event.T)), used[1]
        total = 0.0
        for i in range(end - n, end, 2):
            total += (Y[i, 0] - Y[i + 1, 0]) ** 2
        found: bool = total > event.least_variation
        return found

    @inline
    def keep(event: Any, held: FloatArray, target: FloatArray, loss: float, weight: float) -> None:
        """Keep a row among the latest events, as `RecentEvents.add` does; there is room for it."""
        size, F, T = event.recent_size, event.F, event.T
        used = whole_numbers(event.recent_used, (2,))
        end = used[1]
        X, Y = floats(event.recent_X, (size, F)), floats(event.recent_Y, (size, T))
        for j in range(F):
            X[end, j] = held[0, j]
        for q in range(T):
            Y[end, q] = target[0, q]
        floats(event.recent_weights, (size,))[end] = weight
        floats(event.recent_losses, (size,))[end] = loss
        used[0], used[1] = min(used[0] + 1, event.recent_most), end + 1

    @inline
    def note(event: Any, row: FloatArray, target: FloatArray, weight: float) -> None:
        """Note what was learned, so that it can be learned again; there is room for it."""
        F, T = event.F, event.T
        used = whole_numbers(event.noted_used, (2,))
        noted = floats(event.noted_rows, (used[1], F + T + 1))[used[0]]
        for j in range(F):
            noted[j] = row[0, j]
        for q in range(T):
            noted[F + q] = target[0, q]
        noted[F + T] = weight
        used[0] += 1

    def learn_event(events: int, given: int, target_given: int, weight: float) -> int:
        """Predict, score and learn a raw row.

        Args:
            events: address of an `EVENT`.
            given: address of a tuple of F numbers.
            target_given: address of a number, or of a tuple of T > 1 numbers; of the index of a class.
            weight: how much the event counts, above 0.

        Returns:
            0, or flags of what is left to do; `UNUSUAL` if nothing was changed, since the event needs more than this;
            or `UNSOUND` if numbers are not finite any more, and the state is to be thrown away.
        """
        event = _events(events, (1,))[0]
        mixture, shape = _mixtures(event.mixture, (1,))[0], shape_at(event.shape)
        count = whole_numbers(mixture.n, (1,))[0] + 1
        if count < event.next_count or count >= event.until_count:
            return UNUSUAL
        if event.recent_size != 0 and whole_numbers(event.recent_used, (2,))[1] == event.recent_size:
            return UNUSUAL
        if event.look_every != 0 and count % event.look_every == 0 and count != event.looked_at and not varies(event):
            return UNUSUAL
        noted = whole_numbers(event.noted_used, (2,))
        if noted[0] == noted[1]:
            return UNUSUAL
        row, target = floats(event.row, (1, event.F)), floats(event.target, (1, event.T))
        if not read_floats(given, event, row) or not read_target(event, target_given, target):
            return UNUSUAL
        if is_unusual(event, row, target):
            return UNUSUAL
        F, M, T, p_w, p_v, Q = event.F, event.M, event.T, event.p_w, event.p_v, event.Q
        held = floats(event.held, (1, F))
        for j in range(F):
            held[0, j] = row[0, j]
        if event.holds != 0:
            _clip(event, row, target, held)
        R = floats(event.R, (1, p_v))
        _expand(event, held, event.degree, R)
        W = floats(event.W, (1, p_w))
        if event.has_own_gate != 0:
            _expand(event, held, event.gate_degree, W)
        Z = floats(event.Z, (1, T))
        center, scale = floats(event.target_center, (T,)), floats(event.target_scale, (T,))
        for q in range(T):
            Z[0, q] = (target[0, q] - center[q]) / scale[q]
        gammas, weights = floats(event.gamma, (1,)), floats(event.weight, (1,))
        gammas[0] = floats(event.steps, (event.until_count - event.next_count,))[count - event.next_count]
        mean_weight = floats(event.mean_weight, (1,))
        mean_weight[0] = weight if count == 1 else mean_weight[0] + (weight - mean_weight[0]) / count
        weights[0] = weight / mean_weight[0]
        K, N = mixture.K, mixture.N
        n_said = 2 if event.has_portfolio != 0 else 1
        outliers = learn_mixture(
            event.learn_rows,
            (
                shape,
                MMState(
                    whole_numbers(mixture.n, (1,)),
                    whole_numbers(mixture.n_average, (1,)),
                    floats(mixture.decay, (1,)),
                    floats(mixture.prior_weight, (1,)),
                    floats(mixture.gate, (K - 1, p_w)),
                    floats(mixture.gate_gram, (p_w, p_w)),
                    floats(mixture.gate_inverse, (p_w, p_w)),
                    floats(mixture.experts, (K, N, p_v)),
                    floats(mixture.variances, variances_shape(K, Q)),
                    floats(mixture.masses, (K,)),
                    floats(mixture.expert_grams, (K, p_v, p_v)),
                    floats(mixture.expert_inverses, (K, p_v, p_v)),
                    floats(mixture.average_gate, (K - 1, p_w)),
                    floats(mixture.average_experts, (K, N, p_v)),
                    floats(mixture.average_variances, variances_shape(K, Q)),
                    floats(mixture.prior_gate_gram, (p_w,)),
                    floats(mixture.prior_expert_gram, (p_v,)),
                    floats(mixture.prior_experts, (N, p_v)),
                    floats(mixture.prior_variances, (Q,)),
                ),
                floats(mixture.residual, (mixture.residual_size,)),
                _options(mixture),
                gammas,
                weights,
                W,
                R,
                Z,
                floats(event.losses, (n_said,)),
                floats(event.predictions, (n_said, M)),
                Trace(
                    floats(event.unknown, (0, 0)), floats(event.unknown, (0, 0, 0)), floats(event.unknown, (0, 0, 0))
                ),
            ),
        )
        if outliers == UNSOUND:
            return UNSOUND
        served, loss = floats(event.served, (1, M)), floats(event.served_loss, (1,))
        if event.has_portfolio != 0:
            if learn_portfolio(shape, event, W, R, Z) == UNSOUND:
                return UNSOUND
        else:
            loss[0] = floats(event.losses, (1,))[0]
            for q in range(M):
                served[0, q] = floats(event.predictions, (1, M))[0, q]
        left: int = event.grows
        if event.losses_block != 0:
            n_closed = _hold_against_usual(
                event.hold_against_usual,
                (
                    loss,
                    floats(event.losses_block, (event.block_size,)),
                    whole_numbers(event.loss_counts, (event.n_counts,)),
                    floats(event.usual, (4,)),
                    floats(event.closed, (1, 3)),
                ),
            )
            if n_closed > 0:
                left += CLOSED
        if event.recent_size != 0:
            keep(event, held, target, loss[0], weights[0])
        note(event, row, target, weight)
        whole_numbers(event.outliers, (1,))[0] += outliers
        in_units(event, served)
        if event.is_metric != 0 and event.holds != 0:
            _hold_predictions(event, served, target)
        return left

    return Kernels(
        atomic(named(predict_event, module.__name__)),
        atomic(named(learn_event, module.__name__)),
        {**_CALLEES, "score_rows": score_rows, "learn_rows": learn_rows, "learn_single": learn_single},
    )
