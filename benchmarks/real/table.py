"""Comparison of results: ratios, ranks and means over streams, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.real.peers import BASELINES, LEARNERS, OURS
from benchmarks.report import table

STRONG = "lightgbm"
"""Learner whose beaten streams are counted."""


class Entry(NamedTuple):
    """Results of one stream."""

    classify: bool
    events: int
    digest: str
    learners: Mapping[str, Mapping[str, Any]]
    """Fields of `peers.Result` by learner."""

    @property
    def complete(self) -> list[str]:
        """Learners that saw the whole stream."""
        return [name for name, result in self.learners.items() if result["events"] == self.events]

    def error(self, name: str) -> float:
        """Return RMSE, or 1 − accuracy; infinite if the learner diverged."""
        score = self.learners[name]["score"]
        return math.inf if score is None else 1.0 - score if self.classify else score

    def log_loss(self, name: str) -> float:
        """Return the mean log-loss; infinite if it is not finite or not known."""
        loss = self.learners[name]["log_loss"]
        return math.inf if loss is None else loss

    def main(self, name: str) -> float:
        """Return the error by which learners are ranked: RMSE, or log-loss of classes."""
        return self.log_loss(name) if self.classify else self.error(name)

    def best(self, *, by_log_loss: bool) -> str | None:
        """Return the best of the baselines that ran; None without any."""
        ran = [name for name in BASELINES if name in self.complete]
        return min(ran, key=self.log_loss if by_log_loss else self.error, default=None)

    def rank(self) -> tuple[int, int]:
        """Return our rank among the learners that saw the whole stream, and their number."""
        ours = self.main(OURS)
        return 1 + sum(self.main(name) < ours for name in self.complete), len(self.complete)


def entries_of(results: Mapping[str, Any], names: Sequence[str]) -> dict[str, Entry]:
    """Return the named streams of a results file on which our learner ran."""
    streams = results["streams"]
    entries = {
        name: Entry(kept["kind"] == "classifier", kept["events"], kept["digest"], kept["learners"])
        for name, kept in streams.items()
        if name in names
    }
    return {name: entries[name] for name in names if name in entries and OURS in entries[name].complete}


class Comparison(NamedTuple):
    """Our results of another time."""

    title: str
    entries: Mapping[str, Entry]

    def error_ratio(self, name: str, entry: Entry) -> float:
        """Return our error over that of the other time; NaN if it cannot be compared."""
        other = self._other(name, entry)
        return math.nan if other is None else ratio(entry.error(OURS), other.error(OURS))

    def log_loss_ratio(self, name: str, entry: Entry) -> float:
        """Like `error_ratio`, for log-losses of classes."""
        other = self._other(name, entry)
        return math.nan if other is None else ratio(entry.log_loss(OURS), other.log_loss(OURS))

    def log_loss_change(self, name: str, entry: Entry) -> float:
        """Return our log-loss minus that of the other time, in nats; for densities, whose log-losses have no ratio."""
        other = self._other(name, entry)
        return math.nan if other is None else entry.log_loss(OURS) - other.log_loss(OURS)

    def notes(self, entries: Mapping[str, Entry]) -> list[str]:
        """Return a line for each stream whose data are not the same."""
        return [
            f"{name}: its data differ from those of {self.title}, so they are not compared"
            for name, entry in entries.items()
            if name in self.entries and self._other(name, entry) is None
        ]

    def _other(self, name: str, entry: Entry) -> Entry | None:
        other = self.entries.get(name)
        return other if other is not None and other.digest == entry.digest else None


def ratio(value: float, other: float) -> float:
    """Return a quotient, NaN where neither is known or the other is 0."""
    return math.nan if other == 0.0 or (math.isinf(value) and math.isinf(other)) else value / other


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of the ratios that are known; NaN without any.

    An error of 0 makes it 0, and one of infinity infinite.
    """
    known = [each for each in ratios if not math.isnan(each)]
    if not known:
        return math.nan
    return math.exp(sum(math.log(each) if each > 0.0 else -math.inf for each in known) / len(known))


def shown(entries: Mapping[str, Entry], comparisons: Sequence[Comparison]) -> str:
    """Format all tables of the streams on which our learner ran."""
    numbers = {name: entry for name, entry in entries.items() if not entry.classify}
    classes = {name: entry for name, entry in entries.items() if entry.classify}
    parts = []
    if numbers:
        parts += ["Regression: RMSE, and log-loss in nats", regression(numbers, comparisons)]
        parts += ["RMSE of all learners", everybody(numbers)]
    if classes:
        parts += [
            "Classes: accuracy (ratios are of errors), and log-loss in nats",
            classification(classes, comparisons),
        ]
        parts += ["Log-loss and accuracy of all learners", everybody(classes)]
    parts += ["Summary; ratios below 1 are better", summary(entries, comparisons)]
    notes = [note for comparison in comparisons for note in comparison.notes(entries)]
    notes += [
        f"{name}: {learner} rejected {result['rejected']:,} of {entry.events:,} events, which are not scored"
        for name, entry in entries.items()
        for learner, result in entry.learners.items()
        if result["rejected"]
    ]
    # Titles and tables alternate.
    pairs = [f"{title}\n\n{body}" for title, body in zip(parts[::2], parts[1::2], strict=True)]
    return "\n\n".join([*pairs, *(["\n".join(notes)] if notes else [])])


def regression(entries: Mapping[str, Entry], comparisons: Sequence[Comparison]) -> str:
    """Format our RMSE and log-loss of each stream."""
    rows = []
    for name, entry in entries.items():
        best = entry.best(by_log_loss=False)
        rows.append(
            [
                name,
                f"{entry.events:,}",
                number(entry.error(OURS)),
                *(quotient(each.error_ratio(name, entry)) for each in comparisons),
                *_next_to(entry.error, best),
                number(entry.log_loss(OURS)),
                *(change(each.log_loss_change(name, entry)) for each in comparisons),
                "{} of {}".format(*entry.rank()),
            ]
        )
    ratios = [f"/ {each.title}" for each in comparisons]
    changes = [f"− {each.title}" for each in comparisons]
    return table(["stream", "events", "RMSE", *ratios, "/ best", "best", "log-loss", *changes, "rank"], rows)


def classification(entries: Mapping[str, Entry], comparisons: Sequence[Comparison]) -> str:
    """Format our accuracy and log-loss of each stream."""
    rows = []
    for name, entry in entries.items():
        rows.append(
            [
                name,
                f"{entry.events:,}",
                f"{1.0 - entry.error(OURS):.4f}",
                *(quotient(each.error_ratio(name, entry)) for each in comparisons),
                *_next_to(entry.error, entry.best(by_log_loss=False)),
                number(entry.log_loss(OURS)),
                *(quotient(each.log_loss_ratio(name, entry)) for each in comparisons),
                *_next_to(entry.log_loss, entry.best(by_log_loss=True)),
                "{} of {}".format(*entry.rank()),
            ]
        )
    ratios = [f"/ {each.title}" for each in comparisons]
    columns = ["accuracy", *ratios, "/ best", "best", "log-loss", *ratios, "/ best", "best"]
    return table(["stream", "events", *columns, "rank"], rows)


def everybody(entries: Mapping[str, Entry]) -> str:
    """Format the results of all learners; in parentheses where a learner saw only a part of the stream."""
    learners = [name for name in LEARNERS if any(name in entry.learners for entry in entries.values())]
    return table(
        ["stream", *learners],
        [[name, *(_cell(entry, learner) for learner in learners)] for name, entry in entries.items()],
    )


def summary(entries: Mapping[str, Entry], comparisons: Sequence[Comparison]) -> str:
    """Format means over streams."""
    numbers = {name: entry for name, entry in entries.items() if not entry.classify}
    classes = {name: entry for name, entry in entries.items() if entry.classify}
    rows: list[list[object]] = []
    for each in comparisons:
        rows += [
            _mean_row(f"RMSE / {each.title}", [each.error_ratio(*item) for item in numbers.items()]),
            _mean_row(f"log-loss of classes / {each.title}", [each.log_loss_ratio(*item) for item in classes.items()]),
        ]
    to_best = {name: best_ratio(entry) for name, entry in entries.items()}
    rows += [
        _mean_row("RMSE / best baseline", [to_best[name] for name in numbers]),
        _mean_row("log-loss of classes / best baseline", [to_best[name] for name in classes]),
    ]
    ranks = [entry.rank() for entry in entries.values()]
    if ranks:
        among = sorted({count for _, count in ranks})
        whom = f"{among[0]}" if len(among) == 1 else f"{among[0]} to {among[-1]}"
        mean_rank = sum(rank for rank, _ in ranks) / len(ranks)
        rows.append([f"mean rank among {whom} learners, by RMSE or log-loss", f"{mean_rank:.2f}", len(ranks)])
    met = [entry for entry in entries.values() if STRONG in entry.complete]
    if met:
        beaten = sum(entry.main(OURS) < entry.main(STRONG) for entry in met)
        rows.append([f"streams with less RMSE or log-loss than {STRONG}", f"{beaten}", len(met)])
    comparable = {name: each for name, each in to_best.items() if not math.isnan(each)}
    if comparable:
        worst = max(comparable, key=lambda name: comparable[name])
        rows.append([f"worst stream: {worst}, / best baseline", quotient(comparable[worst]), 1])
    return table(["over streams", "figure", "streams"], rows)


def best_ratio(entry: Entry) -> float:
    """Return our RMSE or log-loss over that of the best baseline; NaN without any."""
    best = entry.best(by_log_loss=entry.classify)
    return math.nan if best is None else ratio(entry.main(OURS), entry.main(best))


def number(value: float) -> str:
    """Format an error with four significant digits."""
    return "diverged" if math.isinf(value) else f"{value:,.0f}" if 1e4 <= value < 1e9 else f"{value:.4g}"


def quotient(value: float) -> str:
    """Format a ratio."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def change(value: float) -> str:
    """Format a difference."""
    return "–" if math.isnan(value) else f"{value:+.3f}"


def _next_to(measure: Any, best: str | None) -> list[str]:
    if best is None:
        return ["–", ""]
    return [quotient(ratio(measure(OURS), measure(best))), best]


def _mean_row(what: str, ratios: Sequence[float]) -> list[object]:
    known = sum(not math.isnan(each) for each in ratios)
    return [f"geometric mean of {what}", quotient(geometric_mean(ratios)), known]


def _cell(entry: Entry, learner: str) -> str:
    if learner not in entry.learners:
        return ""
    text = number(entry.main(learner))
    if entry.classify:
        text += f" {1.0 - entry.error(learner):.3f}"
    return text if learner in entry.complete else f"({text})"
