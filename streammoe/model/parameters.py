"""Export the parameters and statistics of a model, and continue from given ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.columns.fitting import ranges_of, set_ranges
from streammoe.columns.scaling import Scaler
from streammoe.engine.state import state_at
from streammoe.errors import ConfigError
from streammoe.model.checks import is_whole, names_in
from streammoe.model.learner import Learner
from streammoe.text import shown
from streammoe.types import FloatArray


def parameters_of(learner: Learner, *, averaged: bool) -> dict[str, Any]:
    """Return copies of the parameters and statistics, as `MixtureOfExperts.parameters` describes them.

    Raises:
        ConfigError: the warm-up is not over, so there is no mixture yet.
    """
    state, encoder = learner.state, learner.encoder
    if state is None:
        msg = f"parameters: the warm-up is not over ({learner.n} events so far); learn more events first"
        raise ConfigError(msg)
    decay = float(state.decay[0])
    p_w, p_v = encoder.n_gate_features, encoder.n_expert_features
    found: dict[str, Any] = {
        "gate": (state.average_gate if averaged else state.gate)[:, :p_w].copy(),
        "experts": (state.average_experts if averaged else state.experts)[:, :, :p_v].copy(),
        "masses": state.masses.copy(),
        "gate_gram": decay * state.gate_gram[:p_w, :p_w],
        "expert_grams": decay * state.expert_grams[:, :p_v, :p_v],
        "n": int(state.n[0]),
        "decay": decay,
        "prior_weight": float(state.prior_weight[0]),
        "prior": {
            "gate_gram": state.prior_gate_gram[:p_w].copy(),
            "expert_gram": state.prior_expert_gram[:p_v].copy(),
            "experts": state.prior_experts[:, :p_v].copy(),
        },
    }
    if learner.context.family.n_variances(learner.targets.n_outputs):
        found["variances"] = (state.average_variances if averaged else state.variances).copy()
        found["prior"]["variances"] = state.prior_variances.copy()
    if learner.context.options.standardize:
        found["scale"] = {name: array.copy() for name, array in encoder.scaler._asdict().items()}
    if encoder.holds:
        found["ranges"] = ranges_of(encoder)
    return found


def continue_from(learner: Learner, parameters: Mapping[str, Any], feature_names: Sequence[Any]) -> None:
    """Continue from these statistics; the outputs must be fixed already.

    Raises:
        ConfigError: an entry is missing or has a shape that does not fit the others.
    """
    options, encoder, family = learner.context.options, learner.encoder, learner.context.family
    Q = learner.targets.n_outputs
    encoder.use(encoder.columns.named(names_in(feature_names, "feature_names")))
    K = len(experts_in(parameters)) if options.is_choosing else options.most_experts
    N, p_w, p_v = family.n_rows(Q), encoder.n_gate_features, encoder.n_expert_features
    wide_w, wide_v = encoder.gate_width, encoder.expert_width
    variances = family.variances_of(np.ones(family.n_variances(Q)), K)
    # Each entry has the first shape; the state needs it padded with zeros to the second.
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "gate": ((K - 1, p_w), (K - 1, wide_w)),
        "experts": ((K, N, p_v), (K, N, wide_v)),
        "variances": (variances.shape, variances.shape),
        "masses": ((K,), (K,)),
        "gate_gram": ((p_w, p_w), (wide_w, wide_w)),
        "expert_grams": ((K, p_v, p_v), (K, wide_v, wide_v)),
    }
    if not variances.size:
        parameters = {**parameters, "variances": variances}
    arrays = {name: _shaped(parameters, name, *shape) for name, shape in shapes.items()}
    diagonal = arrays["variances"] if variances.ndim == 2 else np.einsum("kqq->kq", arrays["variances"])
    if not (diagonal > 0.0).all() or not (arrays["masses"] > 0.0).all():
        raise ConfigError("parameters: 'variances' and 'masses' must be above 0")
    if not is_whole(parameters.get("n"), 0):
        raise ConfigError(f"parameters: 'n' is {shown(parameters.get('n'))}; it must be a whole number ≥ 0")
    n = int(parameters["n"])
    prior = family.unit_prior(options.prior_strength, wide_w, wide_v, Q)
    if "prior" in parameters:
        given = {"variances": prior.variances, **parameters["prior"]}
        own = {"gate_gram": (p_w,), "expert_gram": (p_v,), "experts": (N, p_v), "variances": prior.variances.shape}
        entries: Any = {each: _shaped(given, each, own[each], getattr(prior, each).shape) for each in own}
        prior = prior._replace(**entries)
    if "scale" in parameters:
        encoder.scaler = Scaler(**{k: np.array(v, dtype=np.float64) for k, v in parameters["scale"].items()})
    if "ranges" in parameters:
        set_ranges(encoder, parameters["ranges"])
    state = state_at(
        **arrays,
        prior=prior,
        n=n,
        prior_weight=float(parameters.get("prior_weight", prior.strength / max(prior.strength + n, 1.0))),
        decay=float(parameters.get("decay", 1.0)),
    )
    learner.start(state)


def experts_in(parameters: object) -> FloatArray:
    """Return the coefficients of the experts, (K, N, p_v), whose shape determines the size of the model.

    Raises:
        ConfigError: they are missing or malformed.
    """
    if not isinstance(parameters, Mapping):
        msg = f"parameters: got {shown(parameters)}; it must be a mapping such as the method `parameters` returns"
        raise ConfigError(msg)
    if "experts" not in parameters:
        raise ConfigError("parameters: 'experts' is missing; it must have the shape (experts, outputs, features)")
    experts = _numbers(parameters["experts"], "experts")
    if experts.ndim != 3:
        msg = f"parameters: 'experts' has shape {experts.shape}; it must be (experts, outputs, features)"
        raise ConfigError(msg)
    return experts


def _numbers(values: Any, name: str) -> FloatArray:
    try:
        return np.array(values, dtype=np.float64, order="C")  # np.array would keep the order of Fortran
    except (TypeError, ValueError, OverflowError):
        msg = f"parameters: {name!r} is {shown(values)}; it must be an array of numbers"
        raise ConfigError(msg) from None


def _shaped(values: Mapping[str, Any], name: str, shape: tuple[int, ...], padded: tuple[int, ...]) -> FloatArray:
    """Validate the shape of an entry, and pad it with zeros."""
    if name not in values:
        msg = f"parameters: {name!r} is missing; it must have shape {shape}"
        raise ConfigError(msg)
    array = _numbers(values[name], name)
    if array.shape != shape:
        msg = f"parameters: {name!r} has shape {array.shape}; with these feature names it must have {shape}"
        raise ConfigError(msg)
    if not np.isfinite(array).all():
        msg = f"parameters: {name!r} holds NaN or infinity; every entry must be finite"
        raise ConfigError(msg)
    return np.pad(array, [(0, wide - size) for size, wide in zip(shape, padded, strict=True)])
