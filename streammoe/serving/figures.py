"""Figures of a model and its stream: those of now, and how they went over an hour and a day."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from streammoe.ports import DeadLetter
from streammoe.text import cut, printable, time_of_day

if TYPE_CHECKING:  # health checks import this module, and would wait for all that learns
    from streammoe.estimators import Coefficient, MixtureOfExperts
    from streammoe.pipeline.scores import Scores

MOST_REJECTED = 20
"""Rejected records that are shown, the latest ones."""
MOST_TERMS = 5
"""Coefficients of an expert that are shown."""
UNUSED_BELOW = 0.01
"""Mean gate share of the kept events below which a starved expert is unused."""
LONGEST_DETAIL = 500
"""Characters of what is shown of one."""


def figures_of(
    model: MixtureOfExperts, scores: Scores | None, events: Mapping[str, int], reasons: Mapping[str, int]
) -> dict[str, Any]:
    """Return what is known of a model, its scores, its events by outcome, and rejected records by reason."""
    weights, drift = model.member_weights, model.last_drift
    return {
        "events": dict(events),
        "rejected": dict(reasons),
        "model_events": model.n,
        "scores": {} if scores is None else scores.summary(),
        "recent": _recent(scores),
        "predicts": max(weights, key=lambda name: weights[name], default="warm-up"),
        "member_weights": weights,
        "drifts": model.drifts,
        "last_drift": drift and drift._asdict(),
    }


def _recent(scores: Scores | None) -> dict[str, float]:
    """Return scores of the latest events, and how many of the targets were in 90 % intervals, of all outputs."""
    if scores is None:
        return {}
    recent = {name: means["window"] for name, means in scores.means().items()}
    averages = scores.intervals.items()
    covered = [each.means()["window"] for (score, _, level), each in averages if (score, level) == ("coverage", 0.9)]
    return {**recent, "coverage": sum(covered) / len(covered)} if covered else recent


def experts_of(model: MixtureOfExperts, coefficients: Sequence[Coefficient]) -> list[dict[str, Any]]:
    """Return diagnostics of the experts of the mixture, their regions in words, and the largest of its coefficients.

    One that is starved is `unused` if the gate hardly prefers it anywhere, which harms nothing. It takes a while for a
    wide model; during warm-up there are none.
    """
    found = []
    for expert, region in zip(model.experts(), model.regions(), strict=False):
        is_unused = expert["condition"] == "starved" and region.gate_share < UNUSED_BELOW
        condition = "unused" if is_unused else expert["condition"]
        own = [each for each in coefficients if each[:2] == region[:2] and each.feature != "intercept"]
        own.sort(key=lambda each: -abs(each.effect))
        terms = [{"feature": each.feature, "value": each.value} for each in own[:MOST_TERMS]]
        found.append(
            {**expert, "condition": condition, "member": region.member, "region": region.text, "coefficients": terms}
        )
    return found


def rejection(letter: DeadLetter) -> dict[str, Any]:
    """Return what is shown of a rejected record: not the record itself, which may hold secrets."""
    return {
        "time": time_of_day(),
        "place": {printable(name): cut(printable(str(value))) for name, value in letter.location.items()},
        "stage": letter.stage,
        "reason": letter.reason,
        "detail": cut(printable(letter.detail), LONGEST_DETAIL),
    }


def to_json(status: Mapping[str, Any], indent: int | None = None) -> str:
    """Format a status as JSON; what is not finite is null."""
    plain = json.loads(json.dumps(status, default=str), parse_constant=lambda _: None)
    return json.dumps(plain, indent=indent)


class History:
    """How a status went since the start: closely over the last hour, and coarsely over the last day."""

    spans: ClassVar = {"hour": (5.0, 3_600.0), "day": (120.0, 86_400.0)}
    """Least seconds between two points, and seconds after which one is dropped."""

    def __init__(self) -> None:
        self.points: dict[str, tuple[dict[str, Any], ...]] = dict.fromkeys(self.spans, ())
        """Other threads may read them, so each series is replaced as a whole."""

    @property
    def events_per_second(self) -> float | None:
        """The latest rate; None before the second point."""
        return self.points["hour"][-1]["events_per_second"] if self.points["hour"] else None

    def add(self, status: Mapping[str, Any]) -> None:
        """Take a status as it is at its ``uptime_seconds``; nothing where no events are known yet."""
        if "events" not in status:
            return
        at, events = status["uptime_seconds"], sum(status["events"].values())
        point = {"at": at, "events": events, "behind_seconds": status.get("behind_seconds"), "recent": status["recent"]}
        for name, (every, span) in self.spans.items():
            points, rate = self.points[name], None
            if points and (seconds := at - points[-1]["at"]) < every:
                continue
            if points:
                rate = max(events - points[-1]["events"], 0) / seconds
            kept = (each for each in points if each["at"] > at - span)
            self.points[name] = (*kept, {**point, "events_per_second": rate})
