"""Save a model to the arrays of a checkpoint, and restore it bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.drift import DriftDetector
from streammoe.engine.portfolio import PREFIX, Portfolio
from streammoe.engine.recent import RecentEvents
from streammoe.engine.reservoir import PREFIX as RESERVOIR
from streammoe.engine.reservoir import Reservoir
from streammoe.engine.state import MMState, restored_state
from streammoe.engine.warmup_buffer import WarmUpBuffer
from streammoe.errors import PoisonedModel
from streammoe.model import lags
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.model.context import Context
from streammoe.model.learner import Learner
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.provisional import ProvisionalMixture
from streammoe.model.phases.rescaling import Rescaling, scaler_of
from streammoe.model.phases.search import Search
from streammoe.model.phases.streaming import Streaming
from streammoe.model.phases.warmup import Empty, WarmUp
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

MEAN_WEIGHT = "weights.mean"
"""The array of the running mean of the weights of events."""
ASIDE = ("diagnostics.", RESERVOIR)
"""Prefixes of the arrays of a model that do not affect future learning."""
_MODEL_PREFIXES = (
    "encoder.",
    "weights.",
    "state.",
    "warmup.",
    "drift.",
    "recent.",
    RESERVOIR,
    PREFIX,
    lags.PREFIX,
)
"""Prefixes of the arrays that make up a model."""


def arrays_of(learner: Learner) -> dict[str, AnyArray]:
    """Return all arrays of a checkpoint: those that affect future learning, ``reservoir.*`` and ``diagnostics.*``.

    Raises:
        PoisonedModel: a number in them is not finite, so they must not be saved.
    """
    arrays = {
        **learning_arrays(learner),
        **_reservoir_arrays(learner.context),
        "diagnostics.residual": learner.phase.residual,
        "diagnostics.outliers": learner.context.outliers,
    }
    poisoned = [name for name, array in arrays.items() if not _may_be_saved(name, array)]
    if poisoned:
        message = (
            f"the model holds NaN or infinity ({', '.join(poisoned)}) and is not saved; this is a bug, please report "
            "it; resume from what was saved before"
        )
        raise PoisonedModel(message)
    return arrays


def learning_arrays(learner: Learner) -> dict[str, AnyArray]:
    """Return everything that affects future learning, as named arrays."""
    context = learner.context
    detector = {} if context.detector is None else context.detector.arrays()
    recent = {} if context.recent is None else context.recent.arrays()
    last = {} if context.lags is None else context.lags.arrays()
    return {
        **context.encoder.arrays(),
        **context.targets.arrays(),
        MEAN_WEIGHT: context.mean_weight,
        **learner.phase.arrays(),
        **detector,
        **recent,
        **last,
    }


def _reservoir_arrays(context: Context) -> dict[str, AnyArray]:
    return {} if context.reservoir is None else context.reservoir.arrays(len(context.encoder.fields))


def restore(learner: Learner, arrays: Mapping[str, AnyArray]) -> None:
    """Restore a new learner from the arrays that `arrays_of` returned.

    Raises:
        CheckpointError: an array is missing, unknown, of a shape that does not fit the model, or holds invalid values.
    """
    context = learner.context
    context.targets.restore(arrays)
    context.encoder = context.new_encoder()
    context.encoder.restore(arrays)
    if context.lags is not None:
        context.lags.restore(arrays, context.family.n_targets(context.targets.n_outputs))
    context.mean_weight = array_of(arrays, MEAN_WEIGHT, "float64", (1,), most=LARGEST_WEIGHT).copy()
    require(context.mean_weight[0] > 0.0, f"array {MEAN_WEIGHT} holds a weight that is not above 0")
    learner.phase = _phase(context, arrays)
    if context.detector is not None:
        context.detector = DriftDetector.from_arrays(arrays)
    if context.recent is not None:
        context.recent = _recent(context, arrays, learner.phase)
    if context.reservoir is not None:
        context.reservoir = _reservoir(context, arrays, context.reservoir)
    known = learning_arrays(learner).keys() | _reservoir_arrays(context).keys()
    unknown = sorted({name for name in arrays if name.startswith(_MODEL_PREFIXES)} - known)
    require(not unknown, f"there are arrays that such a model does not have: {shown(unknown)}")


def _recent(context: Context, arrays: Mapping[str, AnyArray], phase: Phase) -> RecentEvents:
    encoder, n_outputs = context.encoder, context.targets.n_outputs
    n_fields = len(encoder.fields)
    recent = RecentEvents.from_arrays(
        arrays,
        context.family,
        n=phase.n,
        n_fields=n_fields,
        most_experts=context.options.most_experts,
        n_outputs=n_outputs,
        p_w=encoder.gate_width,
        p_v=encoder.expert_width,
    )
    known_shape = phase.leader.state.experts.shape if isinstance(phase, Streaming) else None
    fits = all(theta.experts.shape == known_shape for _, theta in recent.earlier)
    require(fits, "arrays recent.earlier are of another number of experts than the model")
    _check_raw(context, *recent.rows(n_fields), "recent.Y")
    return recent


def _reservoir(context: Context, arrays: Mapping[str, AnyArray], blank: Reservoir) -> Reservoir:
    n_fields, n_outputs = len(context.encoder.fields), context.targets.n_outputs
    reservoir = Reservoir.from_arrays(
        arrays, context.family, size=blank.size, seed=blank.seed, n_fields=n_fields, n_outputs=n_outputs
    )
    X, Y, _ = reservoir.rows(n_fields)
    _check_raw(context, X, Y, f"{RESERVOIR}Y")
    return reservoir


def _check_raw(context: Context, X: FloatArray, Y: FloatArray, name: str) -> None:
    """Check that a model could have learned the raw rows of a checkpoint; `name` is that of the array of targets."""
    context.encoder.columns.check_rows(X)
    if not context.family.is_metric:
        n_outputs = context.targets.n_outputs
        known = (Y >= 0.0) & (n_outputs > Y) & (np.floor(Y) == Y)
        require(known.all(), f"array {name} holds what is no index of the {n_outputs} classes")


def _phase(context: Context, arrays: Mapping[str, AnyArray]) -> Phase:
    """Restore the phase that the arrays belong to."""
    n_outputs = context.targets.n_outputs
    has_state = "state.n" in arrays
    require(n_outputs or not (has_state or "warmup.X" in arrays), "there is a state, but the model has no outputs")
    context.outliers = array_of(arrays, "diagnostics.outliers", "int64", (1,), least=0.0, most=LARGEST_COUNT).copy()
    candidate = context.candidate(_state(context, arrays, "state")) if has_state else None
    size = 0 if candidate is None else len(candidate.residual)
    residual = array_of(arrays, "diagnostics.residual", "float64", (size,)).copy()
    if candidate is not None:
        return Streaming(candidate._replace(residual=residual), _portfolio(context, arrays, candidate.state))
    return _warm_up(context, arrays) if "warmup.X" in arrays else Empty()


def _warm_up(context: Context, arrays: Mapping[str, AnyArray]) -> WarmUp:
    encoder = context.encoder
    one = WarmUpBuffer.from_arrays(
        context.family,
        arrays,
        n_outputs=context.targets.n_outputs,
        n_fields=len(encoder.fields),
        p_v=encoder.expert_width,
        has_companions=context.options.has_portfolio,
    )
    encoder.columns.check_rows(one.X)
    if one.n_scaling:
        one.scaler = scaler_of(context, one.X[: one.n_scaling], one.Y[: one.n_scaling])
    search = Search.from_arrays(arrays, context, one)
    n_rejected = int(array_of(arrays, "warmup.rejected", "int64", (1,), least=0.0, most=one.count)[0])
    cost = 0.0 if search is None else float(array_of(arrays, "warmup.cost", "float64", (1,))[0])
    replay_began = 0
    if search is not None and "warmup.replay" in arrays:
        least, most = search.n, one.count
        replay_began = int(array_of(arrays, "warmup.replay", "int64", (1,), least=float(least), most=most)[0])
    provisional = None
    if "warmup.totals" in arrays:
        candidate = context.candidate(_state(context, arrays, "warmup.interim"))
        n = int(candidate.state.n[0])
        require(n == one.count, f"array warmup.interim.n counts {n} events, but the buffer holds {one.count}")
        provisional = ProvisionalMixture.from_arrays(arrays, candidate, encoder)
    rescaling = None
    if "warmup.rescaling" in arrays:
        n_scaling, began = array_of(arrays, "warmup.rescaling", "int64", (2,), least=1.0, most=one.count).tolist()
        require(n_scaling <= began, f"array warmup.rescaling holds {n_scaling} rows, but began with {began}")
        rescaling = Rescaling(n_scaling, began)
    return WarmUp(one, provisional, search, n_rejected, cost, replay_began, rescaling=rescaling)


def _portfolio(context: Context, arrays: Mapping[str, AnyArray], state: MMState) -> Portfolio | None:
    options = context.options
    if not options.has_portfolio:
        return None
    portfolio = Portfolio.from_arrays(
        context.family,
        options.bound,
        arrays,
        n=int(state.n[0]),
        n_outputs=context.targets.n_outputs,
        p_w=context.encoder.gate_width,
        p_v=context.encoder.expert_width,
        most_experts=options.most_experts,
        curved=options.curved if options.has_curved else "off",
        refits=options.has_refits,
    )
    if portfolio.growing is not None:
        encoder = context.encoder
        width = arrays[f"{PREFIX}growing.X"].shape[1]
        n_fields = len(encoder.fields)
        require(width <= n_fields, f"array {PREFIX}growing.X has {width} columns; the model has {n_fields} fields")
        encoder.columns.check_rows(portfolio.growing.inputs(n_fields))
    return portfolio


def _state(context: Context, arrays: Mapping[str, AnyArray], prefix: str) -> MMState:
    options, encoder = context.options, context.encoder
    K = options.most_experts
    if options.is_choosing:
        n_found = len(array_of(arrays, f"{prefix}.masses", "float64", (None,)))
        require(0 < n_found <= K, f"array {prefix}.masses is for {n_found} experts; 1 to {K} are possible")
        K = n_found
    return restored_state(
        arrays,
        prefix,
        context.family,
        n_experts=K,
        n_outputs=context.targets.n_outputs,
        p_w=encoder.gate_width,
        p_v=encoder.expert_width,
    )


def _may_be_saved(name: str, array: AnyArray) -> bool:
    """Return whether an array may be saved: it is finite, except for missing values in rows of events."""
    if array.dtype.kind != "f":
        return True
    may_be_missing = {"warmup.X", "recent.X", f"{RESERVOIR}X", f"{lags.PREFIX}past", f"{PREFIX}growing.X"}
    invalid = np.isinf(array) if name in may_be_missing else ~np.isfinite(array)
    return not invalid.any()
