"""A picture of what a model has learned: who predicts, by which coefficients, and the lines of experts over inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streammoe.engine.portfolio import OF_MIXTURE
from streammoe.errors import ConfigError, not_installed
from streammoe.kernels.features import DAY
from streammoe.model.coefficients import INTERCEPT, Coefficient, coefficients_of
from streammoe.model.explaining import said
from streammoe.model.learner import Learner
from streammoe.model.members import Member, kept_rows, main_mixture, members_of
from streammoe.text import cut
from streammoe.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_LINE, LEAST_BAR = 0.01, 0.001
"""Share in what is predicted from which on an expert is drawn, and a member."""
MOST_FEATURES, MOST_INPUTS, MOST_POINTS = 8, 3, 500
GRID, AVERAGED = 41, 40
"""Points of a line, and number of kept rows over which each is a mean."""
LONGEST = 24
"""Characters of a name."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Of the largest experts, as many as are drawn; they differ for color-blind eyes too (Okabe and Ito, and a grey)."""


class Drawn(NamedTuple):
    """An expert that is drawn."""

    member: Member
    k: int
    share: float
    """Its share in what is predicted at the kept rows."""
    color: str = ""

    @property
    def label(self) -> str:
        """Its name and share."""
        which = f" {self.k}" if len(self.member.predictor.theta.experts) > 1 else ""
        return f"{self.member.name}{which} ({self.share:.0%})"


def plot(learner: Learner) -> Figure:
    """Draw shares of members, the largest coefficients with error bars, and experts over the most important inputs.

    Of several outputs the first is drawn, and of labels the second, whose log-odds against the first are linear.

    Raises:
        ConfigError: matplotlib is not installed, or nothing was learned.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise not_installed("plot", "matplotlib", "plot") from None
    members, (X, Y), names = members_of(learner), kept_rows(learner, MOST_POINTS), learner.targets.lagged_names
    q = int(learner.targets.are_labels)
    if not members or len(names) <= q:
        raise ConfigError("plot: there is nothing to draw yet; learn some events first")
    experts = _experts(learner, members, X)
    drawn = {(each.member.name, each.k): each.share for each in experts}
    effects: dict[str, float] = {}
    coefficients = {each[:2] + each[3:4]: each for each in coefficients_of(learner) if each.output == names[q]}
    for (member, k, feature), each in coefficients.items():
        if feature != INTERCEPT:
            effects[feature] = max(effects.get(feature, 0.0), drawn.get((member, k), 0.0) * abs(each.effect))
    features = sorted(effects, key=lambda name: -effects[name])
    columns = learner.encoder.columns
    behind = dict(zip(map(str, columns.feature_names), columns.inputs, strict=True))
    known = {name for name in columns.own_kinds if not np.isnan(X[:, columns.index[name]]).all()}
    inputs = [*dict.fromkeys(behind[name] for name in features if behind.get(name) in known)][:MOST_INPUTS]
    figure: Figure = Figure(figsize=(13.0, 8.0 if inputs else 4.5), layout="constrained")
    parts = figure.subfigures(2 if inputs else 1, 1, squeeze=False)[:, 0]
    left, right = parts[0].subplots(1, 2, width_ratios=(1, 2))
    _draw_shares(left, members)
    _draw_coefficients(right, experts, coefficients, features[:MOST_FEATURES])
    of = ("log-odds", "probability") if q else ("change",) * 2
    right.set_xlabel(f"{of[0]} of {names[q]!s} with one deviation of the feature, ± 2 standard errors")
    for place, name in enumerate(inputs):
        axes = parts[1].add_subplot(1, len(inputs), 1 + place)
        _draw_lines(axes, learner, experts, name, X, Y)
        axes.set_ylabel(f"{of[1]} of {names[q]!s}" if q else str(names[q]))
    return figure


def _experts(learner: Learner, members: Sequence[Member], X: FloatArray) -> list[Drawn]:
    """Return the experts that are drawn, the largest shares first; of the mixture only by its main parameters."""
    main, found = main_mixture(members), []
    for member in members:
        K = len(member.predictor.theta.experts)
        if member is main or member.name not in OF_MIXTURE:
            shares = said(learner, member, X)[0].shares.mean(axis=0) if len(X) else np.full(K, 1.0 / K)
            found += [Drawn(member, k, member.share * float(shares[k])) for k in range(K)]
    found = sorted((each for each in found if each.share >= LEAST_LINE), key=lambda each: -each.share)
    return [each._replace(color=color) for each, color in zip(found, COLORS, strict=False)]


def _draw_shares(axes: Any, members: Sequence[Member]) -> None:
    drawn = sorted((each for each in members if each.share >= LEAST_BAR), key=lambda each: each.share)
    bars = axes.barh([each.name for each in drawn], [each.share for each in drawn], color=COLORS[5], height=0.6)
    axes.bar_label(bars, fmt="{:.1%}", padding=3, fontsize=8)
    limits = {"xlim": (0.0, 1.2), "ylim": (-0.6, max(len(drawn), 4) - 0.4)}
    axes.set(title="Who predicts", xlabel="share in what is predicted", **limits)


def _draw_coefficients(
    axes: Any, experts: Sequence[Drawn], coefficients: dict[Any, Coefficient], features: Sequence[str]
) -> None:
    """Draw coefficients times the standard deviation of their feature, with two standard errors either way."""
    for j, each in enumerate(experts):
        own = [coefficients.get((each.member.name, each.k, feature)) for feature in features]
        known = [(at, one) for at, one in enumerate(own) if one is not None]
        places = [at + 0.7 * ((j + 0.5) / len(experts) - 0.5) for at, _ in known]
        errors = [abs(2.0 * one.standard_error * one.effect / one.value) if one.value else 0.0 for _, one in known]
        style = {"fmt": "o", "ms": 4, "lw": 1.2, "color": each.color, "label": each.label}
        axes.errorbar([one.effect for _, one in known], places, xerr=np.nan_to_num(errors), **style)
    axes.axvline(0.0, color=COLORS[-1], lw=0.8)
    axes.set_yticks(range(len(features)), [cut(name, LONGEST) for name in features])
    axes.invert_yaxis()
    axes.set_title("Largest coefficients")
    axes.legend(fontsize=8)


def _draw_lines(axes: Any, learner: Learner, experts: Sequence[Drawn], name: Any, X: FloatArray, Y: FloatArray) -> None:
    """Draw what experts predict over one input, on average over the kept rows at which the gate prefers each.

    The kept rows have the color of the expert that it prefers.
    """
    columns, scaler, q = learner.encoder.columns, learner.encoder.scaler, int(learner.targets.are_labels)
    j, kind = columns.index[name], columns.kinds[name]
    days = X[:, j] // DAY * DAY if kind == "time" else np.zeros(len(X))
    values, unit = X[:, j] - days, 3600.0 if kind == "time" else 1.0
    grid = np.linspace(np.nanmin(values), np.nanmax(values), GRID)
    if kind == "category":
        grid = np.arange(len(columns.levels[name]), dtype=np.float64)
        axes.set_xticks(grid, [cut(text, LONGEST) for text in columns.levels[name]], rotation=30)
    some = np.linspace(0, len(X) - 1, min(len(X), AVERAGED)).astype(np.int64)
    rows = np.repeat(X[some], len(grid), axis=0)
    rows[:, j] = np.tile(grid, len(some)) + np.repeat(days[some], len(grid))
    targets = (Y[:, 0] == 1.0).astype(np.float64) if q else Y[:, 0]
    points = np.full(len(X), "#bbbbbb", dtype=object)
    for each in experts:
        shares = said(learner, each.member, X)[0].shares
        means = said(learner, each.member, rows)[0].means[:, each.k, q].reshape(len(some), len(grid))
        line = shares[some, each.k] @ means / max(float(shares[some, each.k].sum()), 1e-300)
        line = line if q else scaler.target_center[0] + scaler.target_scale[0] * line
        style = "o" if kind == "category" else "-"
        axes.plot(grid / unit, line, style, color=each.color, lw=1.0 + 2.0 * each.share, mec="white")
        if shares.shape[1] > 1:
            points[shares.argmax(axis=1) == each.k] = each.color
    axes.scatter(values / unit, targets, s=5, c=points.tolist(), alpha=0.35, lw=0, zorder=0)
    low, high = (0.0, 1.0) if q else np.quantile(targets, [0.005, 0.995])
    axes.set_ylim(low - 0.3 * (high - low) - 1e-9, high + 0.3 * (high - low) + 1e-9)
    axes.set_xlabel(f"{'hour of ' if kind == 'time' else ''}{cut(str(name), LONGEST)}")
