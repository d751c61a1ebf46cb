"""Regions of experts in words: short rules that say where the gate prefers each expert.

A rule is found on events that the model keeps: one condition after the other is added that separates best those events
at which the expert has the largest share from all others (Youden, Cancer 3, 1950: the part of the former that it keeps,
less that of the latter).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from streammoe.kernels.features import DAY, MONDAY, WEEK
from streammoe.model.explaining import said
from streammoe.model.learner import Learner
from streammoe.model.members import kept_rows, main_mixture, members_of
from streammoe.types import BoolArray, FloatArray

MOST_CONDITIONS = 3
LEAST_GAIN = 0.05
"""A condition that separates less is left out."""
LATEST = 512
"""Number of events that show which experts the gate prefers of late."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Region(NamedTuple):
    """Where the gate prefers an expert of the mixture, by the events that the model keeps."""

    member: str
    """The member with these parameters of the mixture: the one whose share in what is predicted is the largest."""
    expert: int
    share: float
    """The part of these events at which its share is the largest; NaN if no events are kept."""
    gate_share: float
    """Its mean share at the `LATEST` latest of the events."""
    rule: str
    """Conditions, such as ``hour of t ≤ 6.5 and temperature > 20``; ``everywhere`` or ``nowhere`` if there are none."""
    precision: float
    """Of the events for which the rule holds, the part at which its share is the largest."""
    coverage: float
    """Of those at which its share is the largest, the part for which the rule holds."""

    @property
    def text(self) -> str:
        """The rule and how well it holds."""
        if math.isnan(self.share):
            return "unknown, since no events are kept (option reservoir)"
        if self.rule in ("everywhere", "nowhere"):
            return self.rule
        return f"{self.rule} ({self.precision:.0%} of these rows, {self.coverage:.0%} of its own)"


class Condition(NamedTuple):
    """A condition on one input, or on a part of it."""

    subject: str
    relation: Literal["≤", ">", "=", "≠"]
    value: str
    holds: BoolArray
    """(m,) at which events."""

    def __str__(self) -> str:
        return f"{self.subject} {self.relation} {self.value}"


def regions_of(learner: Learner) -> list[Region]:
    """Return the region of each expert of the mixture, by the parameters that count most; none before any event.

    Events are those of `kept_rows`.
    """
    member = main_mixture(members_of(learner))
    if member is None:
        return []
    X, encoder = kept_rows(learner)[0], learner.encoder
    latest = learner.context.recent.rows(len(encoder.fields), LATEST)[0]
    K = len(member.predictor.theta.experts)
    if not len(X):
        return [Region(member.name, k, math.nan, math.nan, "", math.nan, math.nan) for k in range(K)]
    prefers = said(learner, member, X)[0].shares.argmax(axis=1)[:, None] == np.arange(K)
    now = said(learner, member, latest if len(latest) else X)[0].shares.mean(axis=0).tolist()
    shares = prefers.mean(axis=0).tolist()
    return [Region(member.name, k, shares[k], now[k], *_rule(prefers[:, k], learner, X)) for k in range(K)]


def _rule(prefers: BoolArray, learner: Learner, X: FloatArray) -> tuple[str, float, float]:
    """Return the rule, precision and coverage of a `Region`."""
    if prefers.all() or not prefers.any():
        return ("everywhere", 1.0, 1.0) if prefers.all() else ("nowhere", 0.0, 0.0)
    inside, gain = np.ones(len(X), dtype=np.bool_), 0.0
    rule: list[Condition] = []
    while len(rule) < MOST_CONDITIONS:
        best, found = None, gain + LEAST_GAIN
        for condition in _conditions(learner, X, inside, prefers):
            if (own := _separation(inside & condition.holds, prefers)) > found:
                best, found = condition, own
        if best is None:
            break
        rule.append(best)
        inside, gain = inside & best.holds, found
        for condition in rule[:-1]:  # one before may have become superfluous, such as one that is less tight
            others = [each for each in rule if each is not condition]
            without = np.logical_and.reduce([each.holds for each in others])
            if (own := _separation(without, prefers)) >= gain:
                rule, inside, gain = others, without, own
    words = " and ".join(map(str, rule)) or "everywhere"
    return words, float(prefers[inside].mean()), float(inside[prefers].mean())


def _separation(inside: BoolArray, prefers: BoolArray) -> float:
    return float(inside[prefers].mean() - inside[~prefers].mean())


def _conditions(learner: Learner, X: FloatArray, inside: BoolArray, prefers: BoolArray) -> Iterator[Condition]:
    """Yield the best condition of each kind on each input, among the rows inside of those so far."""
    columns = learner.encoder.columns
    for name, values in zip(columns.fields, X.T, strict=True):
        kind = columns.kinds[name]
        if kind == "category":
            for text, code in columns.levels[name].items():
                yield Condition(str(name), "=", text, values == code)
                yield Condition(str(name), "≠", text, values != code)
        elif kind == "time":
            yield from _cuts(f"hour of {name!s}", values % DAY / 3600.0, inside, prefers)
            days = (values + MONDAY) % WEEK // DAY
            for day, text in enumerate(DAYS):
                yield Condition(f"day of {name!s}", "=", text, days == day)
        else:
            yield from _cuts(str(name), values, inside, prefers)


def _cuts(subject: str, values: FloatArray, inside: BoolArray, prefers: BoolArray) -> Iterator[Condition]:
    """Yield the best conditions that a number is small, and that it is large; one that is missing is neither."""
    known = np.flatnonzero(inside & ~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    ordered = values[order]
    last = np.flatnonzero(ordered[1:] > ordered[:-1])  # the last of equal values
    if not len(last):
        return
    gains = np.cumsum(np.where(prefers[order], 1.0 / prefers.sum(), -1.0 / (~prefers).sum()))
    low, high = int(last[gains[last].argmax()]), int(last[(gains[-1] - gains[last]).argmax()])
    below, above = (_between(*ordered[at : at + 2].tolist()) for at in (low, high))
    yield Condition(subject, "≤", _short(below), values <= below)
    yield Condition(subject, ">", _short(above), values > above)


def _short(number: float) -> str:
    return repr(number).removesuffix(".0")


def _between(low: float, high: float) -> float:
    """Return the shortest number from one up to another, which is left out.

    >>> _between(0.4999, 0.7), _between(-1234.5, -1233.9), _between(3.0, 4.0)
    (0.6, -1234.0, 3.5)
    """
    middle = low + 0.5 * (high - low)
    tries = (float(f"{middle:.{digits}g}") for digits in range(1, 18))
    return next((each for each in tries if low <= each < high), low)
