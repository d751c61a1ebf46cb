"""What there is to see of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from river import base

from streammoe.columns.kinds import ColumnKind
from streammoe.distributions import ExpertNoise
from streammoe.engine import mixture
from streammoe.engine.diagnostics import diagnose
from streammoe.engine.drift import Drift
from streammoe.model import plotting, predicting
from streammoe.model.coefficients import Coefficient, coefficients_of
from streammoe.model.explaining import Explanation, explain_one
from streammoe.model.learner import Learner
from streammoe.model.members import kept_rows, members_of
from streammoe.model.parameters import parameters_of
from streammoe.model.regions import Region, regions_of
from streammoe.model.streaming import Streaming
from streammoe.options import Options
from streammoe.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Inspected(base.Estimator):
    """The learner of an estimator, to be looked into."""

    options_type: ClassVar[type[Options]]
    options: Options
    learner: Learner

    @property
    def member_weights(self) -> dict[str, float]:
        """How much each member of the portfolio counts in the next prediction; empty where the average predicts alone.

        ``average``, ``fitted`` and ``latest`` are the mixture by the mean of its parameters, by those of its last fit
        and by its current ones; the others are single experts (docs/learning.md). The weights add up to 1.
        """
        phase = self.learner.phase
        portfolio = phase.portfolio if isinstance(phase, Streaming) else None
        return {} if portfolio is None else portfolio.named_weights

    @property
    def member_shares(self) -> dict[str, float]:
        """The share of each member that predicts in point predictions, or in probabilities of classes.

        They add up to 1. Shares in the density are `member_weights`.
        """
        return {member.name: member.share for member in members_of(self.learner)}

    def coefficients(self) -> list[Coefficient]:
        """Return the coefficients of all experts of all members, in the units of inputs and target.

        ``pandas.DataFrame(model.coefficients())`` is a table. What an expert predicts is the sum of its coefficients
        times their features, of inputs that are held to their range, and missing numbers filled in with their mean.
        """
        return coefficients_of(self.learner)

    def regions(self) -> list[Region]:
        """Return for each expert of the mixture, in words, where the gate prefers it; empty before any event.

        Of `average`, `fitted` and `latest` that mixture is meant which has the largest of `member_shares`.
        """
        return regions_of(self.learner)

    def plot(self) -> Figure:
        """Draw who predicts, the largest coefficients, and the lines of experts over the most important inputs.

        Of several outputs the first is drawn, and of labels the second, against the first.

        Raises:
            ConfigError: matplotlib, the extra ``plot``, is not installed, or nothing was learned.
        """
        return plotting.plot(self.learner)

    def explain_one(self, x: Mapping[Any, Any]) -> Explanation:
        """Explain what is predicted at `x`, by members, experts and inputs; nothing is learned.

        Raises:
            InvalidEvent: a value is invalid.
        """
        return explain_one(self.learner, x)

    @property
    def is_classifier(self) -> bool:
        """Whether targets are labels of classes."""
        return self.learner.targets.are_labels

    @property
    def n(self) -> int:
        """Number of events learned."""
        return self.learner.n

    @property
    def fields(self) -> list[Any]:
        """Names of the fields of events, in the order of raw rows; without categories and times, `feature_names`."""
        return list(self.learner.encoder.own_fields)

    def lags_of_next(self) -> dict[str, float | None]:
        """Return the lags that the next event sees, by the names of these features; None where one is missing.

        Where targets come late, add them to an event before it is predicted, and learn it with them: what an event
        holds comes before what the model remembers.
        """
        context = self.learner.context
        if context.lags is None:
            return {}
        values = context.lags.latest(context.targets.n_outputs).tolist()
        names = self.learner.encoder.lagged[: len(values)]
        return {name: None if value != value else value for name, value in zip(names, values, strict=True)}  # noqa: PLR0124

    @property
    def column_kinds(self) -> dict[Any, ColumnKind]:
        """What each field holds: a kind of `streammoe.columns.kinds`; truth values are numbers."""
        return dict(self.learner.encoder.columns.own_kinds)

    def columns(self) -> list[dict[str, Any]]:
        """Return what is known of each field of events.

        Returns:
            For each its ``name`` and ``kind``; ``range``, the least and largest value of the events that the model
            keeps, times as ISO 8601, or None; ``levels``, those of a category that have a feature, or None.
        """
        encoder, X = self.learner.encoder, kept_rows(self.learner)[0]
        found = []
        for name, kind in self.column_kinds.items():
            known = X[:, encoder.columns.index[name]]
            known = known[~np.isnan(known)]
            ends: list[Any] | None = None
            if kind != "category" and len(known):
                ends = [float(known.min()), float(known.max())]
                ends = [f"{np.datetime64(int(each), 's')}Z" for each in ends] if kind == "time" else ends
            levels = list(encoder.levels[name]) if kind == "category" else None
            found.append({"name": name, "kind": kind, "range": ends, "levels": levels})
        return found

    @property
    def awaited(self) -> list[Any]:
        """Names of columns that join `fields` with their first value."""
        return list(self.learner.encoder.columns.awaited)

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns, in the order of the parameters: ``temperature``, ``color=red``, ``t:day_sin``."""
        return list(self.learner.encoder.feature_names)

    @property
    def n_expert_features(self) -> int:
        """Number of expert features p_v, including intercept and powers."""
        return self.learner.encoder.n_expert_features

    @property
    def output_names(self) -> list[Any]:
        """Names of several outputs, or the labels encountered so far, in the order of the parameters."""
        return list(self.learner.targets.names)

    @property
    def noise(self) -> ExpertNoise:
        """Noise of an output at scale 1, given the expert; meaningless for a classifier."""
        return self.learner.context.family.noise

    @property
    def is_warming_up(self) -> bool:
        """Whether the mixture was not fitted yet."""
        return not self.learner.phase.is_fitted

    @property
    def may_fit(self) -> bool:
        """Whether a fit that takes long is in progress, or may follow."""
        return self.learner.phase.may_fit(self.learner.context)

    @property
    def chosen_n_experts(self) -> int | None:
        """Number of experts of the serving mixture; None before there is one."""
        state = self.learner.state
        return None if state is None else len(state.masses)

    @property
    def n_outliers(self) -> int:
        """Number of events that were beyond the tail of the Gaussian expert most responsible, and counted less."""
        return int(self.learner.context.outliers[0])

    @property
    def drifts(self) -> int:
        """Number of drifts detected so far; 0 without a detector."""
        detector = self.learner.context.detector
        return 0 if detector is None else detector.drifts

    @property
    def last_drift(self) -> Drift | None:
        """The latest drift, with losses in the target's own units; None if there was none."""
        detector = self.learner.context.detector
        if detector is None or (found := detector.last) is None:
            return None
        shift = self._log_scale()
        return found._replace(before=found.before + shift, after=found.after + shift)

    def _log_scale(self) -> float:
        """Return what a loss in the target's own units has more than in the model's."""
        return sum(map(math.log, self.learner.encoder.scaler.target_scale.tolist()))

    @property
    def step_size(self) -> float:
        """Step size γ of the next event."""
        return self.learner.step_size

    @property
    def masses(self) -> FloatArray:
        """Return each expert's share of events, (K,): m_k / Σ m; NaN during warm-up."""
        state = self.learner.state
        if state is None:
            return np.full(self.learner.n_experts, np.nan)
        shares: FloatArray = state.masses / state.masses.sum()
        return shares

    def gate_one(self, x: Mapping[Any, Any]) -> FloatArray:
        """Return the gate's probabilities g_k(x), (K,); NaN during warm-up."""
        learner = self.learner
        _, shares = predicting.score(learner, learner.context.with_last(learner.encoder.row(x)), None)
        return np.full(learner.n_experts, np.nan) if learner.state is None else shares[0]

    def experts(self) -> list[dict[str, Any]]:
        """Return diagnostics of each expert; empty during warm-up.

        Returns:
            For each expert ``share``, its share of events; ``loss``, the mean −log e_k(y|x) of those, in the target's
            own units; ``nearest``, the most similar expert, or None, and ``divergence`` from it in nats per event, or
            None; ``condition``: "alive", "starved" or "duplicate" (docs/experts.md).
        """
        phase, scale = self.learner.phase, self._log_scale()
        if phase.leader is None or not phase.is_fitted:
            return []
        found = diagnose(self.learner.context.family, phase.leader.state, phase.leader.options)
        alone = len(found.shares) == 1
        return [
            {
                "share": float(found.shares[k]),
                "loss": float(found.losses[k]) + scale,
                "nearest": None if alone else int(found.nearest[k]),
                "divergence": None if alone else float(found.divergences[k]),
                "condition": "starved" if found.starved[k] else "duplicate" if found.duplicate[k] else "alive",
            }
            for k in range(len(found.shares))
        ]

    @property
    def convergence_residual(self) -> float:
        """Return ‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point; NaN during warm-up."""
        leader = self.learner.phase.leader if self.learner.phase.is_fitted else None
        return math.nan if leader is None else mixture.convergence_residual(leader.residual)

    def parameters(self, *, averaged: bool = False) -> dict[str, Any]:
        """Return copies of the parameters and statistics, in the model's own (standardized) coordinates.

        Args:
            averaged: return the averaged parameters, the first member of a portfolio, instead of the raw iterate.

        Returns:
            ``gate`` (K−1, p_w); ``experts`` (K, Q, p_v), or (K, M−1, p_v) for a classifier, whose first class is the
            reference; ``variances`` (K, Q) or (K, Q, Q), not for a classifier; ``masses`` (K,); ``gate_gram``
            (p_w, p_w); ``expert_grams`` (K, p_v, p_v); ``n``, number of events; ``decay`` (Π(1−γ) since the last
            refresh), ``prior_weight`` and ``prior``, which the recursion needs too; ``scale`` where inputs are
            standardized; ``ranges`` where inputs and predictions are held to what was seen.
            Feature order: intercept, degree 1 in the order of `feature_names`, degree 2, …

        Raises:
            ConfigError: the warm-up is not over, so there is no mixture yet.
        """
        return parameters_of(self.learner, averaged=averaged)
