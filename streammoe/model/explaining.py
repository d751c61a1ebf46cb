"""Predictions as sums: what each member, expert and input contributes.

An expert's prediction is a sum over its features, and each feature is one of an input, or a product of two. The
contribution of an input is its Shapley value: against a reference, where each column has its running mean, the product
z₁z₂ adds (z₁ − ρ₁)(z₂ + ρ₂)/2 to the input behind z₁, and likewise to that behind z₂.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.products import features_of
from streammoe.kernels.state import Trace
from streammoe.model.learner import Learner
from streammoe.model.members import Inputs, Member, inputs_of, members_of
from streammoe.types import FloatArray


@dataclass(frozen=True)
class ExpertPart:
    """What one expert says; mappings are by output, or by label."""

    expert: int
    share: float
    """The gate's share of the expert within its member."""
    prediction: Mapping[Any, float]
    """Its prediction, or probabilities."""
    baseline: Mapping[Any, float]
    """What it says of an event with the running mean of each input; of a classifier the log-odds against the first
    label."""
    contributions: Mapping[Any, Mapping[Any, float]]
    """By output, or by label but the first, and input: with the baseline they add up to the prediction, or log-odds."""


@dataclass(frozen=True)
class MemberPart:
    """What one member says: the mean of its experts by their shares."""

    member: str
    share: float
    """Its share in the whole prediction."""
    prediction: Mapping[Any, float]
    experts: tuple[ExpertPart, ...]


@dataclass(frozen=True)
class Explanation:
    """A prediction, and what it consists of; mappings are by output (``y`` if there is just one), or by label."""

    prediction: Any
    """What `predict_one`, or of a classifier `predict_proba_one`, returns: the mean of members by their shares, and
    `holding`."""
    members: tuple[MemberPart, ...]
    baseline: Mapping[Any, float]
    """Mean of the baselines of all experts by their shares; empty for a classifier."""
    contributions: Mapping[Any, Mapping[Any, float]]
    """Likewise of each input. With `baseline` and `holding` they add up to the prediction, given the gate."""
    holding: Mapping[Any, float]
    """By how much the prediction was moved to the range of targets seen before; empty for a classifier."""
    held: Mapping[Any, tuple[float, float]]
    """Inputs out of their range: their value, and that which it was moved to before experts saw it."""

    def to_json(self) -> str:
        """Return it as a JSON object; names that are no strings become strings."""
        return json.dumps(asdict(self))


def reference_of(members: Sequence[Member], member: Member, inputs: Inputs) -> FloatArray:
    """Return the features (p,), of which those of a member are products, of an event with the mean of each column.

    Means are over all events where a member has them, which also sees inputs as they are.
    """
    means = next((each for each in members if not each.predictor.is_held), members[0]).feature_means
    series = slice(1, 1 + len(inputs.at) - len(means))
    means = np.concatenate([means[:1], member.feature_means[series], means[1:]])
    first = {column: means[j] for j, (column, power) in enumerate(inputs.powers) if power == 1}
    found = np.zeros(len(inputs.at))
    found[: len(inputs.powers)] = [first[column] ** power if power else 1.0 for column, power in inputs.powers]
    return found


def said(learner: Learner, member: Member, X: FloatArray) -> tuple[Trace, FloatArray]:
    """Return what the experts of a member say of raw rows X (n, F), in model units, and of what features (n, p).

    Features are those of which its own are products; rows have their lags, and need not be in range.
    """
    context, encoder = learner.context, learner.encoder
    W, R, unheld = encoder.designs(*encoder.hold(encoder.bounded(X)))
    theta, terms = member.predictor.theta, member.predictor.terms
    base = member.predictor.base(R, unheld, context.last_targets(learner.n))
    seen = base if terms is None else features_of(base, terms)
    gate = seen if len(theta.experts) == 1 else W
    scores, _ = mixture.score(context.family, theta, gate, seen, n_outputs=learner.targets.n_outputs, traced=True)
    return scores.trace, base


def parts_of(
    learner: Learner, member: Member, inputs: Inputs, reference: FloatArray, X: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what the experts of a member say of a raw row X (1, F), see `said`, in units or as log-odds.

    These are their shares (K,), predictions (K, Q) or probabilities (K, M), baselines (K, N), and contributions
    (K, N, inputs).
    """
    ((gate,), (predictions,), *_), (base,) = said(learner, member, X)
    theta, scaler = member.predictor.theta, learner.encoder.scaler
    first, second = member.terms.T
    one, other, rho, sigma = base[first], base[second], reference[first], reference[second]
    pulls = np.zeros((len(first), len(inputs.names) + 1))  # what is of no input is last
    at = np.arange(len(first))
    pulls[at, inputs.at[first]] += 0.5 * (one - rho) * (other + sigma)
    pulls[at, inputs.at[second]] += 0.5 * (other - sigma) * (one + rho)
    contributions = theta.experts @ pulls[:, :-1]
    baselines = theta.experts @ (rho * sigma)
    if learner.context.family.is_metric:
        center, scale = scaler.target_center, scaler.target_scale
        baselines, predictions = center + baselines * scale, center + predictions * scale
        contributions = contributions * scale[:, None]
    return gate, predictions, baselines, contributions


def explain_one(learner: Learner, x: Mapping[Any, Any]) -> Explanation:
    """Explain what is predicted of one event; nothing is learned, nor is it noted as predicted.

    Raises:
        InvalidEvent: as of a prediction.
    """
    context, targets, is_metric = learner.context, learner.targets, learner.context.family.is_metric
    X = context.with_last(learner.encoder.row(x))
    outputs = list(targets.lagged_names)
    rows = outputs if is_metric else outputs[1:]  # of coefficients
    members = members_of(learner, is_next=context.past is not None and context.past.is_timely)
    total = np.zeros((1, len(outputs))) if members else targets.blank(1)
    baseline, pulls = (np.zeros(len(rows)) if members else total[0]), dict[Any, FloatArray]()
    found = []
    for member in members:
        if not member.share:
            continue
        inputs = inputs_of(learner, member.predictor.n_lags)
        reference = reference_of(members, member, inputs)
        gate, predictions, baselines, contributions = parts_of(learner, member, inputs, reference, X)
        experts = [
            ExpertPart(
                k,
                float(gate[k]),
                _by(outputs, predictions[k]),
                _by(rows, baselines[k]),
                {name: _by(inputs.names, contributions[k, q]) for q, name in enumerate(rows)},
            )
            for k in range(len(gate))
        ]
        found.append(MemberPart(member.name, member.share, _by(outputs, gate @ predictions), tuple(experts)))
        total += member.share * (gate @ predictions)
        baseline += member.share * (gate @ baselines)
        for name, pull in zip(inputs.names, np.einsum("k,kqi->iq", gate, contributions), strict=True):
            pulls[name] = pulls.get(name, 0.0) + member.share * pull
    held, encoder = total.copy(), learner.encoder
    if is_metric and members:
        encoder.hold_predictions(held)
    used = encoder.hold(encoder.bounded(X))[0]
    moved = np.flatnonzero((used != X)[0] & ~np.isnan(X[0])).tolist()
    sums = [*enumerate(rows)] if is_metric else []  # log-odds of several experts do not add up
    return Explanation(
        targets.one(held),
        tuple(found),
        {name: float(baseline[q]) for q, name in sums},
        {name: {key: float(pull[q]) for key, pull in pulls.items()} for q, name in sums},
        {name: float(held[0, q] - total[0, q]) for q, name in sums},
        {encoder.fields[j]: (float(X[0, j]), float(used[0, j])) for j in moved},
    )


def _by(names: Sequence[Any], values: FloatArray) -> dict[Any, float]:
    return dict(zip(names, values.tolist(), strict=True))
