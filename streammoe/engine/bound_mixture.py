"""How a mixture, or one expert, is bound to the kernel that learns events (`streammoe.kernels.event`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.mixture import NO_TRACE, Candidate, Scores
from streammoe.engine.state import UnsoundError, unsound_parts
from streammoe.experts import Family
from streammoe.kernels.by_address import address_of
from streammoe.kernels.calibration import PARTS
from streammoe.kernels.event import (
    AT,
    AVERAGE,
    FIELDS,
    LATEST,
    LEARNS,
    MEMBER_FIELDS,
    UNSOUND,
    options_as_numbers,
)
from streammoe.kernels.state import LearningOptions, SingleExpert, Trace
from streammoe.schedules import Constant, Restarted, Steps
from streammoe.types import AnyArray, FloatArray

CALIBRATED = PARTS + 2 * len(LEVELS)
"""Numbers by which the distribution of an output is calibrated, in a trace."""
ROWS_AT_ONCE, WORK_AT_ONCE = 2048, 1e7
"""Most rows, and most multiply-adds in Gram matrices, of a call: others wait for its end, some milliseconds."""


def learn_features(
    family: Family,
    candidate: Candidate,
    steps: Steps,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    weights: FloatArray,
    *,
    n_outputs: int,
    single: tuple[float, float] | None = None,
) -> Scores:
    """Predict, score and learn rows in order by a mixture, changing its state and residual in place.

    Args:
        family: family of the experts.
        candidate: the mixture, with everything that its steps need.
        steps: their sizes.
        W: (n, p_w) gate features.
        R: (n, p_v) expert features.
        Y: (n, Q) targets, NaN where a row is only to be predicted.
        weights: (n,) above 0.
        n_outputs: Q, or the number of classes.
        single: for one expert without a gate, whose steps are n^−alpha, but never less than the first of these two
            numbers: serve the latest parameters, and leave out average and residual. By default the average serves.

    Raises:
        UnsoundError: a number is NaN or infinite, or a prediction is all but infinite; discard the candidate.
    """
    state, residual, options = candidate
    (K, N, p_v), p_w = state.experts.shape, state.gate.shape[1]
    T, Q = family.n_targets(n_outputs), state.variances.shape[1]
    module, shape = family.compiled(state.experts)
    kinds = (AVERAGE, LATEST) if single is None else (LEARNS,)
    numbers = {
        "F": p_v + p_w,
        "T": T,
        "M": n_outputs,
        "Q": Q,
        "K": K,
        "N": N,
        "p_w": p_w,
        "p_v": p_v,
        "m": len(kinds),
    }
    scratch = scratch_of(numbers, n_experts=K, widest=p_v)
    row = np.empty(numbers["F"])
    scratch |= {"raw": row, "held": row, "R": row[:p_v], "W": row[p_v:]}
    average = {"gate": state.average_gate, "experts": state.average_experts, "variances": state.average_variances}
    latest = {name: getattr(state, name) for name in SingleExpert._fields}
    members = np.zeros((len(kinds), len(MEMBER_FIELDS)), dtype=np.int64)
    for at, kind in enumerate(kinds):
        of_kind = average if kind == AVERAGE else {"gate": state.gate, **latest}
        write_member(members[at], {"kind": kind, "K": K, "p": p_v}, {**of_kind, "seen": row[:p_v]})
    if steps.origin:
        options = options._replace(origin=steps.origin)
    own = options_arrays(options)
    arrays = {
        **scratch,
        **{f"mixture_{name}": array for name, array in state._asdict().items()},
        **own,
        "member_options": np.tile(own["options"], (len(kinds), 1)),
        "member_flags": own["flags"],
        "shape": np.array(shape, dtype=np.float64),
        "schedule": np.array(schedule_numbers(steps)),
        "steps": np.tile((0.0, 1.0) if single is None else single, (len(kinds), 1)),
        "members": members,
        "residual": residual,
        "outliers": np.zeros(1, dtype=np.int64),
        "target_center": np.zeros(T),
        "target_scale": np.ones(T),
    }
    numbers |= {"n_residual": len(residual), "n_experts": K, "has_features": 1, "learns": 1}
    sizes = table_of(numbers | {"is_metric": family.is_metric}, arrays)
    rows = np.concatenate([R, W], axis=1) if W.shape[1] else R
    rows, Y, weights = (np.require(array, np.float64, ["C", "W"]) for array in (rows, Y, weights))
    out, at_once = np.empty((len(R), 1 + n_outputs)), rows_at_once(K * p_v**2 + p_w**2)
    for start in range(0, len(R), at_once):
        piece = slice(start, start + at_once)
        if module.learn(sizes, rows[piece], Y[piece], weights[piece], out[piece]) & UNSOUND:
            raise UnsoundError(unsound_parts(state) or ["prediction"])
    return Scores(out[:, 0], out[:, 1:], NO_TRACE)


def rows_at_once(work: float) -> int:
    """Return how many rows one call learns, given the multiply-adds of one in Gram matrices."""
    return max(1, min(ROWS_AT_ONCE, int(WORK_AT_ONCE / work)))


def trace_of(written: FloatArray, n_experts: int, M: int, Q: int, n_ranked: int = 0) -> Trace:
    """Return what each expert said of rows, and how `n_ranked` outputs are calibrated, as the kernel has written it."""
    n, E, L = len(written), n_experts, len(LEVELS) if n_ranked else 0
    ends = np.cumsum([E, E * M, E * Q, n_ranked * PARTS, n_ranked * 2 * L])
    shares, means, variances, ranks, stretch, _ = np.split(written, ends, axis=1)
    ranks = ranks.reshape(n, n_ranked, PARTS if n_ranked else 0)
    return Trace(shares, means.reshape(n, E, M), variances.reshape(n, E, Q), ranks, stretch.reshape(n, n_ranked, 2, L))


def table_of(numbers: Mapping[str, int], arrays: Mapping[str, AnyArray]) -> AnyArray:
    """Return the table of sizes that the kernel reads, see `kernels.event.FIELDS`; the caller keeps arrays alive."""
    found = np.zeros(len(FIELDS), dtype=np.int64)
    for name, value in numbers.items():
        found[AT[name]] = int(value)
    for name in AT.keys() & arrays.keys():
        found[AT[name]] = address_of(arrays[name])
    return found


def write_member(row: AnyArray, numbers: Mapping[str, int], arrays: Mapping[str, AnyArray]) -> None:
    """Write the row of a member, see `kernels.event.MEMBER_FIELDS`; the caller keeps arrays alive."""
    for name, value in {**numbers, **{name: address_of(array) for name, array in arrays.items()}}.items():
        row[MEMBER_FIELDS.index(name)] = int(value)


def scratch_of(numbers: Mapping[str, int], *, n_experts: int, widest: int) -> dict[str, AnyArray]:
    """Return room for one row of members with so many experts, of at most so many features."""
    T, M, m, p_w = numbers["T"], numbers["M"], numbers["m"], numbers["p_w"]
    return {
        "Z": np.empty((1, T)),
        "unknown": np.full((1, T), np.nan),
        "weight": np.ones(1),
        "losses": np.empty((m, 1)),
        "said": np.empty((m, 1, M)),
        "loss": np.empty(1),
        "served": np.empty((1, M)),
        "shares": np.empty(n_experts),
        "tau": np.empty(n_experts),
        "trusted": np.empty(n_experts),
        "means": np.empty((n_experts, M)),
        "push": np.empty(max(n_experts, M)),
        "noise": np.empty((M + 2, max(n_experts, M))),  # more than any noise asks for
        "gain": np.empty(widest),
        "gate_gain": np.empty(p_w),
    }


def options_arrays(given: LearningOptions) -> dict[str, AnyArray]:
    """Return the options of steps as the kernel reads them."""
    numbers, flags = options_as_numbers(given)
    return {"options": np.array(numbers), "flags": np.array(flags, dtype=np.int64)}


def schedule_numbers(steps: Steps) -> list[float]:
    """Return the numbers of step sizes as the kernel takes them."""
    if isinstance(steps, Restarted):
        first, again, shift = steps.base, steps.again, steps.seen - steps.at
        return [*_numbers(first), *_numbers(again), float(shift)]
    return [*_numbers(steps), 0.0, 0.0, 0.0, 0.0]


def _numbers(schedule: Any) -> tuple[float, float, float]:
    if isinstance(schedule, Constant):
        return schedule.gamma, 0.0, 0.0
    return schedule.gamma0, schedule.offset, schedule.alpha
