"""Every metric of the process that reduces shards to a global model, and of daemons that follow it, in two tables.

docs/metrics.md is held to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Gauge, Histogram

from streammoe.catalogue import COMMON, LiveMetrics, Metric
from streammoe.pipeline.contest import Contest
from streammoe.scaleout.global_model import GlobalModel
from streammoe.scaleout.shard import PROBLEMS, Problem

OUTCOMES = ("written", "unchanged", "waiting", "failed")
FOLLOWER_PROBLEMS = ("unreadable", "damaged", "went_back", "mismatch", "absent", "too_far_back", "rejected")
REDUCE_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CATALOGUE: dict[str, Metric] = {
    "streammoe_reduce_rounds_total": Metric(Counter, "Rounds of reading all shards, by outcome", ("outcome",)),
    "streammoe_reduce_seconds": Metric(Histogram, "Time that a round takes", (), REDUCE_SECONDS),
    "streammoe_reduce_version": Metric(Gauge, "Version of the newest global model; 0 before the first"),
    "streammoe_reduce_age_seconds": Metric(
        Gauge, "Seconds since this process wrote or first read the newest global model, or since the start"
    ),
    "streammoe_reduce_checked_seconds": Metric(
        Gauge, "Seconds since the last round that did not fail, or since the start"
    ),
    "streammoe_reduce_events": Metric(Gauge, "Events of all shards that the newest global model contains"),
    "streammoe_shard_events": Metric(
        Gauge, "Events of a shard's own source that the newest global model contains", ("shard",)
    ),
    "streammoe_shard_share": Metric(Gauge, "Weight of a shard in the newest global model", ("shard",)),
    "streammoe_shard_divergence": Metric(
        Gauge, "Mean divergence of a shard's model from the newest global one, in nats per event", ("shard",)
    ),
    "streammoe_shard_experts": Metric(Gauge, "Experts of a shard's model in the newest global one", ("shard",)),
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
    "streammoe_global_adoptions_total": Metric(Counter, "Versions of the global model adopted, since this start"),
    "streammoe_global_problems_total": Metric(
        Counter, "Looks at the global model and adoptions that failed, by reason, since this start", ("reason",)
    ),
    "streammoe_global_held_bytes": Metric(Gauge, "Bytes of records held in case that a global model is adopted"),
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
        self._since = self._checked = clock()
        self._shown: dict[str, set[str]] = {}
        """The shards that each metric shows."""
        self._live.gauge("streammoe_reduce_age_seconds").set_function(lambda: clock() - self._since)
        self._live.gauge("streammoe_reduce_checked_seconds").set_function(lambda: clock() - self._checked)
        for outcome in OUTCOMES:
            self._live.counter("streammoe_reduce_rounds_total", outcome)
        for name in names:
            self.show_problem(name, None)

    def count_round(self, outcome: str, seconds: float) -> None:
        """Count a round; the outcome is one of `OUTCOMES`."""
        self._live.counter("streammoe_reduce_rounds_total", outcome).inc()
        self._live.histogram("streammoe_reduce_seconds").observe(seconds)
        if outcome != "failed":
            self._checked = self._clock()

    def show_problem(self, name: str, problem: Problem | None) -> None:
        """Show a shard's problem, or that it has none."""
        for reason in PROBLEMS:
            has = problem is not None and problem.reason == reason
            self._live.gauge("streammoe_shard_problem", name, reason).set(has)

    def show(self, newest: GlobalModel, n_experts: Mapping[str, int]) -> None:
        """Show the newest global model, which has just been written or found.

        Args:
            newest: the model.
            n_experts: number of experts of the shards' models, by their names, as far as it is known.
        """
        self._since = self._clock()
        self._live.gauge("streammoe_reduce_version").set(newest.version)
        self._live.gauge("streammoe_reduce_events").set(newest.n)
        shards = newest.shards.items()
        self._show("events", {name: contained.n for name, contained in shards})
        self._show("share", {name: contained.share for name, contained in shards})
        self._show("experts", n_experts)
        known = {name: contained.divergence for name, contained in shards}
        self._show("divergence", {name: value for name, value in known.items() if value is not None})

    def _show(self, what: str, values: Mapping[str, float]) -> None:
        """Show values of shards; those that are no longer contained have none."""
        metric = f"streammoe_shard_{what}"
        for name, value in values.items():
            self._live.gauge(metric, name).set(value)
        for name in self._shown.get(what, set()) - values.keys():
            self._live.remove(metric, name)
        self._shown[what] = set(values)


class FollowerMetrics:
    """The metrics of a daemon that follows a global model.

    Args:
        live: the daemon's metrics, to which these are added.
    """

    def __init__(self, live: LiveMetrics) -> None:
        live.add(OF_FOLLOWERS)
        self._live = live
        for reason in FOLLOWER_PROBLEMS:
            live.counter("streammoe_global_problems_total", reason)
        for model in ("own", "global"):
            live.gauge("streammoe_global_log_loss", model).set(math.nan)
        self._found_at = math.nan
        live.gauge("streammoe_global_age_seconds").set_function(lambda: time.monotonic() - self._found_at)

    def show_version(self, version: int) -> None:
        """Show the version of the global model that is in use from now on."""
        self._live.gauge("streammoe_global_version").set(version)
        self._found_at = time.monotonic()

    def show_contest(self, contest: Contest | None, *, has_rival: bool) -> None:
        """Show who predicts the next event, if the global model may, and the recent losses of both."""
        serving = contest is not None and has_rival and contest.favours_rival
        self._live.gauge("streammoe_global_serving").set(serving)
        if contest is not None:
            self._live.gauge("streammoe_global_log_loss", "own").set(contest.own_loss)
            self._live.gauge("streammoe_global_log_loss", "global").set(contest.rival_loss)

    def count_adoption(self) -> None:
        """Count a version of the global model that was adopted."""
        self._live.counter("streammoe_global_adoptions_total").inc()

    def count_problem(self, reason: str) -> None:
        """Count a look or an adoption that failed; the reason is one of `FOLLOWER_PROBLEMS`."""
        self._live.counter("streammoe_global_problems_total", reason).inc()

    def set_held_bytes(self, n: int) -> None:
        """Show how much is held for adoptions."""
        self._live.gauge("streammoe_global_held_bytes").set(n)
