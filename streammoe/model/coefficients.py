"""Coefficients of all experts, named and in the units of inputs and targets, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streammoe.model.learner import Learner
from streammoe.model.members import Inputs, Member, inputs_of, kept_rows, members_of
from streammoe.types import FloatArray

INTERCEPT = "intercept"
"""The name of the feature that is 1."""
Monomial: TypeAlias = tuple[tuple[int, int], ...]
"""(column, power) of each factor, in the order of columns; the intercept has none."""
Polynomial: TypeAlias = dict[Monomial, float]


class Coefficient(NamedTuple):
    """A coefficient of an expert, in the units of the inputs and of the target."""

    member: str
    """The member of the portfolio; `average` where that predicts alone."""
    expert: int
    """The expert, 0 of a single one."""
    output: Any
    """The output, ``y`` if there is just one; of a classifier the label whose log-odds against the first label it
    changes."""
    feature: str
    """``intercept``, a name of `feature_names`, a power such as ``x^2``, or a product such as ``x * z``."""
    value: float
    standard_error: float
    """NaN where statistics tell none, see docs/explaining.md."""
    effect: float
    """By how much the output changes with a standard deviation of the feature over the events that the model keeps; if
    there are none, with the scale by which the model divides it."""


def coefficients_of(learner: Learner) -> list[Coefficient]:
    """Return the coefficients of each expert of all members that predict, in the order of members and features."""
    found: list[Coefficient] = []
    X, encoder = kept_rows(learner)[0], learner.encoder
    scaled = encoder.design(encoder.hold(encoder.bounded(X))[0])[1][:, 1 : 1 + len(encoder.feature_names)]
    columns = encoder.scaler.center + encoder.scaler.scale * scaled
    for member in members_of(learner):
        inputs = inputs_of(learner, member.predictor.n_lags)
        found += _of_member(learner, member, inputs, columns)
    return found


def _of_member(learner: Learner, member: Member, inputs: Inputs, columns: FloatArray) -> list[Coefficient]:
    scaler, family, targets = learner.encoder.scaler, learner.context.family, learner.targets
    features = [_power(inputs, column, power) for column, power in inputs.powers]
    used = [at for at, term in enumerate(member.terms) if max(term) < len(features)]  # others are padding
    expanded = [_product(features[i], features[j], inputs.flags) for i, j in member.terms[used].tolist()]
    monomials = {monomial: at for at, monomial in enumerate(dict.fromkeys(each for one in expanded for each in one))}
    T = np.zeros((len(used), len(monomials)))
    for at, polynomial in enumerate(expanded):
        for monomial, value in polynomial.items():
            T[at, monomials[monomial]] = value
    factors = ([f"{inputs.columns[c]!s}{f'^{n}' if n > 1 else ''}" for c, n in monomial] for monomial in monomials)
    names = [" * ".join(each) or INTERCEPT for each in factors]
    outputs, units, origins = targets.names[1:], np.ones(len(targets.names)), np.zeros(len(targets.names))
    if family.is_metric:
        outputs, units, origins = targets.lagged_names, scaler.target_scale, scaler.target_center
    errors = _standard_errors(learner, member, T, used)
    spreads = np.array([_spread(monomial, inputs, columns) for monomial in monomials])
    found = []
    for k, expert in enumerate(member.predictor.theta.experts):
        values = expert[:, used] @ T
        for q, output in enumerate(outputs):
            own = values[q] * units[q]
            own[monomials[()]] += origins[q]
            effects = (own * spreads + 0.0).tolist()  # no −0
            pairs = zip(names, own.tolist(), (errors[k, q] * units[q]).tolist(), effects, strict=True)
            found += [Coefficient(member.name, k, output, *each) for each in pairs]
    return found


def _standard_errors(learner: Learner, member: Member, T: FloatArray, used: list[int]) -> FloatArray:
    """Return standard errors (K, N, monomials) of coefficients, in units of scaled targets; NaN where there are none.

    The covariance of an expert's coefficients is scale² R⁻¹/n, with its Gram matrix R and the effective number n of
    events, times what its noise leaves of an estimate (`ExpertNoise.location_variance`).
    """
    family, state, variances = learner.context.family, member.state, member.predictor.theta.variances
    K, N, _ = member.predictor.theta.experts.shape
    if not family.is_metric or len(state.expert_inverses) != K:
        return np.full((K, N, T.shape[1]), math.nan)
    squares = variances if variances.ndim == 2 else np.diagonal(variances, axis1=1, axis2=2)
    factor = family.noise.location_variance(N) / (float(state.decay[0]) * member.n_events)
    inverses = state.expert_inverses[:, used][:, :, used]
    own = factor * np.sum(T * (inverses @ T), axis=1)
    spread: FloatArray = np.sqrt(np.where(own >= 0.0, own, math.nan))[:, None] * np.sqrt(squares)[:, :, None]
    return spread


def _spread(monomial: Monomial, inputs: Inputs, columns: FloatArray) -> float:
    """Return the standard deviation of a product of powers of columns (m, C).

    Without rows, and of the last targets, which rows do not hold, it is made of the scales of columns.
    """
    if not len(columns) or any(column >= columns.shape[1] for column, _ in monomial):
        return float(np.prod([inputs.scale[column] ** power for column, power in monomial])) if monomial else 0.0
    return float(np.std(np.prod([columns[:, column] ** power for column, power in monomial], axis=0)))


def _power(inputs: Inputs, column: int, power: int) -> Polynomial:
    """Return ((value − center)/scale)^power as a polynomial in the value."""
    found: Polynomial = {(): 1.0}
    if power:
        scale = float(inputs.scale[column])
        line = {((column, 1),): 1.0 / scale, (): -float(inputs.center[column]) / scale}
        for _ in range(power):
            found = _product(found, line, inputs.flags)
    return found


def _product(first: Polynomial, second: Polynomial, flags: Collection[int]) -> Polynomial:
    """Return the product, highest powers first; a term of 0 stays out, but for the intercept.

    Powers of columns that are `flags`, 0 or 1, are the column itself.
    """
    found: Polynomial = {}
    for one, a in first.items():
        for other, b in second.items():
            powers: dict[int, int] = dict(one)
            for column, power in other:
                powers[column] = 1 if column in flags else powers.get(column, 0) + power
            key = tuple(sorted(powers.items()))
            found[key] = found.get(key, 0.0) + a * b
    return {key: value for key, value in found.items() if value or not key}
