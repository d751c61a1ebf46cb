"""Save a model to the arrays of a checkpoint, and restore it bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.drift import DriftDetector
from streammoe.engine.portfolio import PREFIX, Portfolio
from streammoe.engine.recent import RecentEvents, restored_parameters
from streammoe.engine.reservoir import PREFIX as RESERVOIR
from streammoe.engine.reservoir import Reservoir
from streammoe.engine.state import restored_state
from streammoe.errors import PoisonedModel
from streammoe.kernels.state import MMState
from streammoe.model import lags, level_means
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.model.context import Context
from streammoe.model.fits import NAME as FIT
from streammoe.model.fits import Fit
from streammoe.model.learner import Learner
from streammoe.model.phase import Phase
from streammoe.model.streaming import FITTED, PROGRESS, Empty, Streaming
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
    FIT,
    FITTED,
    "progress.",
    "drift.",
    "recent.",
    RESERVOIR,
    PREFIX,
    lags.PREFIX,
    level_means.PREFIX,
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
    last = {} if context.lags is None else context.lags.arrays()
    last |= {} if context.past is None else context.past.arrays()
    last |= {} if context.level_means is None else context.level_means.arrays()
    return {
        **context.encoder.arrays(),
        **context.targets.arrays(),
        MEAN_WEIGHT: context.mean_weight,
        **learner.phase.arrays(),
        **detector,
        **context.recent.arrays(),
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
    outputs, is_metric = context.targets.lagged_names, context.family.is_metric
    n_lags = 0 if context.lags is None else len(context.lags.names(outputs))
    context.level_means = level_means.LevelMeans.restored(arrays, outputs, n_lags, is_metric=is_metric)
    context.encoder = context.new_encoder()
    context.encoder.restore(arrays)
    if context.lags is not None:
        context.lags.restore(arrays, context.family.n_targets(context.targets.n_outputs))
    context.mean_weight = array_of(arrays, MEAN_WEIGHT, "float64", (1,), most=LARGEST_WEIGHT).copy()
    require(context.mean_weight[0] > 0.0, f"array {MEAN_WEIGHT} holds a weight that is not above 0")
    if context.detector is not None:
        context.detector = DriftDetector.from_arrays(arrays)
    learner.phase = _phase(context, arrays)
    if context.reservoir is not None:
        context.reservoir = _reservoir(context, arrays, context.reservoir)
    known = learning_arrays(learner).keys() | _reservoir_arrays(context).keys()
    unknown = sorted({name for name in arrays if name.startswith(_MODEL_PREFIXES)} - known)
    require(not unknown, f"there are arrays that such a model does not have: {shown(unknown)}")


def _recent(context: Context, arrays: Mapping[str, AnyArray], n: int, known_shape: tuple[int, ...]) -> RecentEvents:
    n_fields = len(context.encoder.fields)
    recent = RecentEvents.from_arrays(arrays, context.family, context.padded_shape, n=n, n_fields=n_fields)
    fits = all(theta.experts.shape == known_shape for _, theta in recent.earlier)
    require(fits, "arrays recent.earlier are of another number of experts than the model")
    _check_raw(context, *recent.rows(n_fields)[:2], "recent.Y")
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
    """Restore the phase that the arrays belong to, and the rows kept."""
    n_outputs, encoder, options = context.targets.n_outputs, context.encoder, context.options
    has_state = "state.n" in arrays
    require(n_outputs or not has_state, "there is a state, but the model has no outputs")
    context.outliers = array_of(arrays, "diagnostics.outliers", "int64", (1,), least=0.0, most=LARGEST_COUNT).copy()
    if not has_state:
        array_of(arrays, "diagnostics.residual", "float64", (0,))
        context.recent = _recent(context, arrays, 0, ())
        return Empty()
    context.begin_series()
    if context.past is not None:
        context.past.restore(arrays, 0 if context.family.is_metric else n_outputs)
    candidate = context.candidate(_state(context, arrays))
    residual = array_of(arrays, "diagnostics.residual", "float64", (len(candidate.residual),)).copy()
    state = candidate.state
    n = int(state.n[0])
    context.recent = _recent(context, arrays, n, state.experts.shape)
    portfolio = None
    if options.has_portfolio:
        sizes = {"n_outputs": n_outputs, "p_v": encoder.expert_width, "n_lags": context.n_series_lags}
        portfolio = Portfolio.from_arrays(context.family, options.bound, arrays, n=n, **sizes)
    fitted_at, is_settled = array_of(arrays, PROGRESS, "int64", (2,), least=-1, most=n).tolist()
    require(is_settled in {0, 1}, f"array {PROGRESS} holds {[fitted_at, is_settled]}; the latter is 0 or 1")
    fit = Fit.from_arrays(arrays, context, n)
    K, shape = len(state.experts), context.padded_shape
    fitted = restored_parameters(arrays, FITTED.removesuffix("."), context.family, shape._replace(n_experts=K))
    require(len(fitted.experts) == K, f"array {FITTED}experts is not for {K} experts, as the mixture is")
    return Streaming(
        candidate._replace(residual=residual), portfolio, fitted_at, is_settled=bool(is_settled), fit=fit, fitted=fitted
    )


def _state(context: Context, arrays: Mapping[str, AnyArray]) -> MMState:
    options = context.options
    most, K = options.most_experts, len(array_of(arrays, "state.masses", "float64", (None,)))
    possible = {1, most} if not options.is_choosing else range(1, most + 1)
    require(K in possible, f"array state.masses is for {K} experts; 1 to {most} are possible")
    return restored_state(arrays, "state", context.family, context.padded_shape._replace(n_experts=K))


def _may_be_saved(name: str, array: AnyArray) -> bool:
    """Return whether an array may be saved: it is finite, except for missing values in rows of events."""
    if array.dtype.kind != "f":
        return True
    may_be_missing = {"recent.X", f"{RESERVOIR}X", f"{lags.PREFIX}past"}
    invalid = np.isinf(array) if name in may_be_missing else ~np.isfinite(array)
    return not invalid.any()
