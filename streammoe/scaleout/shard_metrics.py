"""Every metric of the process that reduces shards to a global model, and of daemons that follow it, in two tables.

docs/metrics.md is held to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from streammoe.catalogue import COMMON, LiveMetrics, Metric
from streammoe.scaleout.global_model import GlobalModel
from streammoe.scaleout.shard import PROBLEMS, FolderProblem

OUTCOMES = ("written", "unchanged", "waiting", "failed")
FOLLOWER_PROBLEMS = ("unreadable", "damaged", "went_back", "mismatch")
CATALOGUE: dict[str, Metric] = {
    "streammoe_reduce_rounds_total": Metric(Counter, "Rounds of reading all shards, by outcome", ("outcome",)),
    "streammoe_reduce_version": Metric(Gauge, "Version of the newest global model; 0 before the first"),
    "streammoe_reduce_checked_seconds": Metric(
        Gauge, "Seconds since the last round that did not fail, or since the start"
    ),
    "streammoe_shard_events": Metric(
        Gauge, "Events of a shard's own source that the newest global model contains", ("shard",)
    ),
    "streammoe_shard_divergence": Metric(
        Gauge, "Mean divergence of a shard's model from the newest global one, in nats per event", ("shard",)
    ),
    "streammoe_shard_problem": Metric(
        Gauge, "1 while a shard's newest checkpoint does not count for this reason, else 0", ("shard", "reason")
    ),
    **COMMON,
}

OF_FOLLOWERS: dict[str, Metric] = {
    "streammoe_global_version": Metric(Gauge, "Version of the global model in use; 0 before the first"),
    "streammoe_global_age_seconds": Metric(Gauge, "Seconds since that version was found; NaN before the first"),
    "streammoe_global_serving": Metric(Gauge, "1 while the global model makes the next prediction, else 0"),
    "streammoe_global_log_loss": Metric(
        Gauge,
        "Mean of -log s(y|x) over some 500 latest events that both have predicted: own or global",
        ("model",),
    ),
    "streammoe_global_problems_total": Metric(
        Counter, "Looks at the global model that failed, by reason, since this start", ("reason",)
    ),
}
"""What a daemon with ``global.path`` has besides its own."""


class ReduceMetrics:
    """The catalogue as live metrics.

    Args:
        names: of all shards.
        clock: seconds that only run on.
    """

    def __init__(self, names: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._live = LiveMetrics(CATALOGUE)
        self.registry = self._live.registry
        self._clock = clock
        self._checked = clock()
        self._live.gauge("streammoe_reduce_checked_seconds").set_function(lambda: clock() - self._checked)
        for outcome in OUTCOMES:
            self._live.counter("streammoe_reduce_rounds_total", outcome)
        for name in names:
            self.show_problem(name, None)

    def count_round(self, outcome: str) -> None:
        """Count a round; the outcome is one of `OUTCOMES`."""
        self._live.counter("streammoe_reduce_rounds_total", outcome).inc()
        if outcome != "failed":
            self._checked = self._clock()

    def show_problem(self, name: str, problem: FolderProblem | None) -> None:
        """Show a shard's problem, or that it has none."""
        for reason in PROBLEMS:
            has = problem is not None and problem.reason == reason
            self._live.gauge("streammoe_shard_problem", name, reason).set(has)

    def show(self, newest: GlobalModel) -> None:
        """Show the newest global model; shards that it does not contain have no values."""
        self._live.gauge("streammoe_reduce_version").set(newest.version)
        divergences = {(name,): each.divergence for name, each in newest.shards.items()}
        self._live.show("streammoe_shard_events", {(name,): each.n for name, each in newest.shards.items()})
        self._live.show("streammoe_shard_divergence", {k: each for k, each in divergences.items() if each is not None})
