import math
import platform
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from streammoe.catalogue import LiveMetrics
from streammoe.daemon.metrics import CATALOGUE, CONDITIONS, OUTCOMES, Metrics
from streammoe.errors import REASONS
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.challenger import Challenger
from streammoe.pipeline.presence import ENOUGH, Presence
from streammoe.pipeline.scores import AVERAGES, ClassificationScores, PrequentialScores, Spread
from streammoe.ports import STALLS, SourceStatus, TopicPartition
from streammoe.scaleout.shard_metrics import CATALOGUE as OF_REDUCE
from streammoe.scaleout.shard_metrics import OF_FOLLOWERS, ReduceMetrics
from streammoe.serving.server import OF_SERVING

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def families(metrics):
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(metrics):
    """Return every sample's value by its name and the values of its labels, in the order of their names."""
    found = [sample for family in families(metrics).values() for sample in family.samples]
    return {(sample.name.removeprefix("streammoe_"), *sample.labels.values()): sample.value for sample in found}


def learned(kind="regressor", n=200, warmup=100):
    """Return a model of this kind, and the scores of the events that it has learned."""
    X = np.random.default_rng(0).normal(size=(n, 2))
    estimator, scores, targets = {
        "regressor": (MoERegressor, PrequentialScores(), X[:, :1]),
        "outputs": (MoEMultiTargetRegressor, PrequentialScores(2), X * [1.0, 5.0]),
        "classifier": (MoEClassifier, ClassificationScores(), np.array(["a", "b", "c"])[np.arange(n) % 3]),
    }[kind]
    model = estimator(2, warmup=warmup)
    if kind == "outputs":
        model.set_targets(["low", "high"])
    model.set_columns(["x0", "x1"])
    outcome = model.learn_rows(X, targets, traced=True)
    spread = None if kind == "classifier" else Spread(outcome.trace, model.noise)
    scores.update(outcome.losses, outcome.predictions, outcome.targets, spread)
    return model, scores


def state_of(model=None, scores=None, learned=0, malformed=0, presence=None, challenger=None):
    """The parts of a `RunState` that are shown."""
    return SimpleNamespace(
        model=model,
        outcomes=Counter(learned=learned),
        reasons=Counter(malformed=malformed),
        pending=0,
        jumps=None,
        pipeline=SimpleNamespace(scores=scores, presence=presence, challenger=challenger),
    )


def published(model, scores):
    """Return all metrics after a batch."""
    metrics = Metrics()
    metrics.count(state_of(model, scores, learned=150, malformed=3))
    metrics.histogram("streammoe_batch_seconds").observe(0.02)
    metrics.histogram("streammoe_checkpoint_seconds").observe(0.004)
    challenger = Challenger(SimpleNamespace(model=model, scores=scores), scores, missed=2)
    metrics.publish(state_of(model, scores, presence=followed(), challenger=challenger), (30, 120))
    metrics.health.source = lambda: status({0: 7}, {0: 3}, reconnected=1)._replace(
        held_back={TopicPartition("t", 0): 2}
    )
    return metrics


def followed():
    """Return what is known of a column that the last 150 of 300 events lack, and of one with an unknown level."""
    presence = Presence()
    X = np.ones((300, 2))
    X[150:, 0], X[:, 1] = np.nan, np.nan
    presence.update(["gone", "color"], X, {1: ["red"] * 299 + ["blue"]}, {"color": {"red"}}, lambda i: {"row": i})
    return presence


def status(positions, lags, **counters):
    """Return the status of a source that reads partitions of one topic."""
    return SourceStatus(
        positions={TopicPartition("t", partition): offset for partition, offset in positions.items()},
        lags={TopicPartition("t", partition): lag for partition, lag in lags.items()},
        stalled={TopicPartition("t", partition): "leader" for partition, lag in lags.items() if lag > 100},
        counters=counters,
    )


ERRORS = {"streammoe_prequential_rmse", "streammoe_baseline_rmse", "streammoe_challenger_rmse"}
ERRORS |= {"streammoe_interval_coverage", "streammoe_interval_width"}
HITS = {"streammoe_prequential_accuracy", "streammoe_baseline_accuracy", "streammoe_challenger_accuracy"}
WITHOUT = {
    "regressor": {*HITS, "streammoe_output_rmse"},
    "outputs": HITS,
    "classifier": {*ERRORS, "streammoe_output_rmse"},
}
"""What says nothing of a model of each kind, and has no sample."""
SET_ELSEWHERE = {
    "streammoe_mirror_failures_total",
    *("streammoe_guard_high_windows", "streammoe_guard_jumps_total"),
    *("streammoe_checkpoint_failures_total", "streammoe_unsaved_events", "streammoe_starts_total"),
}
"""What only a daemon with a guard and checkpoints sets."""


# --- the catalogue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WITHOUT)
def test_every_metric_of_the_catalogue_is_exposed_as_it_says_and_no_other(kind):
    exposed = families(published(*learned(kind)))
    # A counter's family leaves out the suffix that its name and its samples have.
    ours = {name for name in exposed if not name.startswith("process_")}
    assert ours == {name.removesuffix("_total") for name in CATALOGUE}
    for name, metric in CATALOGUE.items():
        family = exposed[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.__name__.lower(), metric.help)
        names = {sample.name for sample in family.samples}
        assert bool(names & {name, f"{name}_bucket"}) == (name not in WITHOUT[kind]), name
        assert all(sample.labels.keys() - {"le"} == set(metric.labels) for sample in family.samples), name


def test_every_metric_is_set(monkeypatch):
    """One without labels that nobody sets would show 0 for ever."""
    asked, series = set(), LiveMetrics._series
    monkeypatch.setattr(
        LiveMetrics, "_series", lambda self, kind, name, *labels: asked.add(name) or series(self, kind, name, *labels)
    )
    for kind in WITHOUT:
        samples(published(*learned(kind)))
    assert CATALOGUE.keys() - asked == SET_ELSEWHERE, "Metrics.publish sets all others"


def test_the_document_names_only_metrics_that_there_are():
    known = {**CATALOGUE, **OF_SERVING, **OF_FOLLOWERS, **OF_REDUCE}
    assert set(re.findall(r"streammoe_[a-z_]*[a-z]", DOCUMENT.read_text())) <= set(known)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the client reads those of the process from /proc")
@pytest.mark.parametrize("made", [Metrics, lambda: ReduceMetrics(["north"])], ids=["daemon", "reduction"])
def test_next_to_ours_there_are_those_of_the_process_and_the_versions_and_none_of_when_a_series_was_made(made):
    metrics = made()
    documented = set(re.findall(r"`(process_\w+)`", DOCUMENT.read_text()))
    for latest in (generate_latest, openmetrics.generate_latest):
        lines = latest(metrics.registry).decode().splitlines()
        names = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
        assert {name for name in names if name.startswith("process_")} == documented
        assert not [name for name in names if name.endswith("_created")]
    assert samples(metrics)["process_resident_memory_bytes",] > 1e7
    [info] = families(metrics)["streammoe_build_info"].samples
    assert info.value == 1
    assert info.labels == {
        "version": version("streammoe"),
        "revision": "",
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
        "kafka_python": version("kafka-python"),
        "confluent_kafka": version("confluent-kafka"),
    }


# --- values ---------------------------------------------------------------------------------------------------------


def test_before_anything_happens_counts_are_zero_and_values_not_a_number():
    metrics = Metrics()
    metrics.count(state_of(learned=7, malformed=2))  # of earlier runs
    value = samples(metrics)
    assert {outcome: value["events_total", outcome] for outcome in OUTCOMES} == dict.fromkeys(OUTCOMES, 0)
    assert {reason: value["rejected_total", reason] for reason in REASONS} == dict.fromkeys(REASONS, 0)
    assert (value["ready",], value["source_connected",]) == (0, 0)
    metrics.health.ready = True
    assert samples(metrics)["ready",] == 1
    metrics.health.unsaved = "the disk is full"
    assert samples(metrics)["ready",] == 0
    for progress in ((0, 0), None):  # of a source without an end 0 would set off an alert for one that is stuck
        metrics.publish(state_of(MoERegressor(2), PrequentialScores()), progress)
        value = samples(metrics)
        assert (value["warming_up",], value["model_events",]) == (1, 0)
        unknown = (("prequential_rmse", "running"), ("expert_mass", "0"), ("convergence_residual",))
        assert all(math.isnan(value[key]) for key in (*unknown, ("source_progress_ratio",)))


def test_counters_count_what_comes_after_the_start_and_columns_what_is_missing_or_unknown():
    metrics = published(*learned())
    metrics.count(state_of(learned=157, malformed=4))
    value = samples(metrics)
    assert (value["events_total", "learned"], value["rejected_total", "malformed"]) == (7, 1)
    assert value["columns_vanished",] == 1
    assert value["column_values_total", "gone", "missing"] == 150
    assert value["column_values_total", "color", "unknown"] == 1


def test_gauges_show_the_model_its_experts_and_its_scores():
    model, scores = learned()
    metrics = published(model, scores)
    value = samples(metrics)
    assert value["model_events",] == model.n == 200
    assert (value["warming_up",], value["source_progress_ratio",]) == (0, 0.25)
    assert value["step_size",] == pytest.approx(model.step_size)
    assert value["convergence_residual",] == pytest.approx(model.convergence_residual, nan_ok=True)
    assert {name: value["member_weight", name] for name in model.member_weights} == model.member_weights
    assert sum(model.member_weights.values()) == pytest.approx(1.0)
    assert value["expert_mass", "0"] + value["expert_mass", "1"] == pytest.approx(1.0)
    for average in AVERAGES:
        assert value["prequential_rmse", average] == pytest.approx(scores.means()["rmse"][average])
        assert value["baseline_rmse", average] == pytest.approx(scores.means()["baseline_rmse"][average])
        assert value["prequential_log_loss", average] == pytest.approx(scores.log_loss.means()[average])
    assert value["interval_coverage", "window", "0.9", "y"] == scores.intervals["coverage", 0, 0.9].means()["window"]
    for k, expert in enumerate(model.experts()):
        assert value["expert_loss", str(k)] == pytest.approx(expert["loss"])
        assert value["expert_divergence", str(k)] == pytest.approx(expert["divergence"])
    conditions = [expert["condition"] for expert in model.experts()]
    assert {name: value["experts", name] for name in CONDITIONS} == {
        name: conditions.count(name) for name in CONDITIONS
    }
    before = model.n_outliers
    model.learn_rows(np.zeros((2, 2)), np.array([[1e5], [-1e5]]))
    for _ in range(2):  # which counts once
        metrics.publish(state_of(model, scores), None)
    assert model.n_outliers == before + 2
    assert (value["outliers_total",], samples(metrics)["outliers_total",]) == (0, 2), "what comes after the start"


def test_outputs_and_classes_have_scores_of_their_own():
    model, scores = learned("outputs")
    value = samples(published(model, scores))
    for average in AVERAGES:
        found = [value["output_rmse", average, name] for name in ("low", "high")]
        assert found == pytest.approx([scores.rmse(0)[average], scores.rmse(1)[average]])
        width = scores.intervals["width", 1, 0.5].means()[average]
        assert value["interval_width", average, "0.5", "high"] == pytest.approx(width)
        assert value["prequential_rmse", average] == pytest.approx(scores.means()["rmse"][average])
    model, scores = learned("classifier")
    value = samples(published(model, scores))
    assert value["model_classes",] == value["model_features",] == model.n_expert_features == 3
    for average in AVERAGES:
        assert value["prequential_accuracy", average] == scores.means()["accuracy"][average]
        assert value["baseline_accuracy", average] == scores.means()["baseline_accuracy"][average]
        assert value["prequential_log_loss", average] == scores.log_loss.means()[average]


def test_the_source_has_a_lag_and_a_position_of_each_partition_and_counts_what_happens_once():
    metrics = Metrics()
    metrics.health.source = lambda: status({0: 7, 1: 9}, {0: 3, 1: 0}, reconnected=1, gap=0)
    samples(metrics)
    metrics.health.source = lambda: status({1: 10}, {1: 4}, reconnected=1, gap=2)
    value = samples(metrics)
    assert {key: value[key] for key in value if key[0].startswith("consumer_")} == {
        ("consumer_lag", "1", "t"): 4,
        ("consumer_position", "1", "t"): 10,
    }, "the other one is no longer read"
    found = status({0: 1, 1: 1}, {0: 101, 1: 102}, reconnected=3, gap=2)._replace(connected=False)
    metrics.health.source = lambda: found
    value = samples(metrics)
    assert [value["source_incidents_total", event] for event in ("reconnected", "gap")] == [3, 2]
    assert value["source_connected",] == 0
    assert {reason: value["source_stalled", reason] for reason in STALLS} == dict.fromkeys(STALLS, 0) | {"leader": 2}


def test_a_column_that_vanishes_while_it_runs_is_shown_until_it_comes_again():
    metrics, presence = Metrics(), Presence()
    metrics.presence = presence
    shown = []
    for value in (1.0, math.nan, 1.0):
        presence.update(["a"], np.full((ENOUGH, 1), value), {}, {}, lambda i: {"offset": i})
        shown.append(samples(metrics)["columns_vanished",])
    assert shown == [0, 1, 0]
