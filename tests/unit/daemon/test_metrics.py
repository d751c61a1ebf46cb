import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streammoe.daemon.metrics import CATALOGUE, CONDITIONS, OUTCOMES, RESEED_OUTCOMES, Metrics
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.scores import AVERAGES, ClassificationScores, PrequentialScores
from streammoe.ports import Partition, SourceStatus

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def families(metrics):
    text = generate_latest(metrics.registry).decode()
    # The client may add when a series was created, as series of their own.
    return {
        family.name: family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")
    }


def samples(metrics):
    """Every sample's value by its name and the values of its labels, in the order of their names."""
    found = [sample for family in families(metrics).values() for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def learned(kind="regressor", n=200, warmup=100):
    """A model of each kind, and the scores of the events that it has learned."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    classes = np.arange(n) % 3
    arguments = {"warmup": warmup, "warmup_restarts": 1}
    model, scores, targets = {
        "regressor": (MoERegressor(2, **arguments), PrequentialScores(), X[:, :1]),
        "outputs": (MoEMultiTargetRegressor(2, **arguments), PrequentialScores(2), X * [1.0, 5.0]),
        "classifier": (MoEClassifier(2, **arguments), ClassificationScores(), np.array(["a", "b", "c"])[classes]),
    }[kind]
    if kind == "outputs":
        model.set_targets(["low", "high"])
    model.set_columns(["x0", "x1"])
    outcome = model.learn_rows(X, targets)
    scores.update(outcome.losses, outcome.predictions, outcome.targets)
    return model, scores


def published(kind):
    """All metrics after a batch."""
    metrics = Metrics()
    metrics.count("learned", 150)
    metrics.count_rejected("malformed", 3)
    metrics.batch(0.02)
    metrics.checkpoint(time.monotonic(), 0.004)
    metrics.checkpoint_pause(0.002)
    metrics.publish(*learned(kind), (30, 120))
    metrics.source(status({0: 7}, {0: 3}, reconnected=1))
    return metrics


def status(positions, lags, **counters):
    """A source that reads partitions of one topic."""
    return SourceStatus(
        positions={Partition("t", partition): offset for partition, offset in positions.items()},
        lags={Partition("t", partition): lag for partition, lag in lags.items()},
        stalled=[Partition("t", partition) for partition, lag in lags.items() if lag > 100],
        counters=counters,
    )


KINDS = ("regressor", "outputs", "classifier")
ERRORS = {"streammoe_prequential_rmse", "streammoe_baseline_rmse"}
HITS = {"streammoe_prequential_accuracy", "streammoe_baseline_accuracy"}
WITHOUT = {
    "regressor": {*HITS, "streammoe_output_rmse"},
    "outputs": HITS,
    "classifier": {*ERRORS, "streammoe_output_rmse"},
}
"""What says nothing of a model of each kind, and has no sample."""


@pytest.fixture
def metrics():
    return published("regressor")


# --- the catalogue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_metric_of_the_catalogue_is_exposed_and_no_other(kind):
    metrics = published(kind)
    # A counter's family leaves out the suffix that its name and its samples have.
    assert families(metrics).keys() == {name.removesuffix("_total") for name in CATALOGUE}
    for name, metric in CATALOGUE.items():
        family = families(metrics)[name.removesuffix("_total")]
        assert family.type == metric.kind.__name__.lower()
        assert family.documentation == metric.help
        names = {sample.name for sample in family.samples}
        assert bool(names & {name, f"{name}_bucket"}) == (name not in WITHOUT[kind]), name


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_the_catalogue(kind):
    metrics = published(kind)
    for name, metric in CATALOGUE.items():
        for sample in families(metrics)[name.removesuffix("_total")].samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels), sample


@pytest.mark.parametrize("name", CATALOGUE)
def test_names_follow_the_conventions_of_prometheus(name):
    metric = CATALOGUE[name]
    assert re.fullmatch(r"streammoe(_[a-z]+)+", name)
    assert name.endswith("_total") == (metric.kind.__name__ == "Counter")
    assert not re.search(r"_(ms|milliseconds|percent|count|sum|bucket)$", name)
    assert metric.help


def test_times_are_in_seconds_and_so_are_their_buckets():
    for name, metric in CATALOGUE.items():
        assert bool(metric.buckets) == (metric.kind.__name__ == "Histogram")
        if metric.buckets:
            assert name.endswith("_seconds")
            assert list(metric.buckets) == sorted(set(metric.buckets))
            assert 0.0005 <= metric.buckets[0] <= 0.01
            assert 1.0 <= metric.buckets[-1] <= 60.0


def test_a_batch_of_20_milliseconds_lands_between_10_and_25(metrics):
    value = samples(metrics)
    assert value["streammoe_batch_seconds_bucket", "0.01"] == 0
    assert value["streammoe_batch_seconds_bucket", "0.025"] == 1
    assert value["streammoe_batch_seconds_sum",] == pytest.approx(0.02)
    assert value["streammoe_checkpoint_seconds_bucket", "0.0025"] == 0
    assert value["streammoe_checkpoint_seconds_bucket", "0.005"] == 1


def test_the_document_names_every_metric_and_no_other():
    named = set(re.findall(r"streammoe_[a-z_]*[a-z]", DOCUMENT.read_text()))
    # A histogram's series and the package of connectors are no metrics of their own.
    series = {
        f"{name}_{part}" for name, metric in CATALOGUE.items() if metric.buckets for part in ("bucket", "count", "sum")
    }
    assert named - series - {"streammoe_connectors"} == set(CATALOGUE)


def test_the_document_says_of_what_type_each_metric_is_and_which_labels_it_has():
    rows = re.findall(r"^\| `(streammoe_\w+)` \| (\w+)([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    said = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert said == {name: (metric.kind.__name__.lower(), metric.labels) for name, metric in CATALOGUE.items()}


# --- values ---------------------------------------------------------------------------------------------------------


def test_all_outcomes_are_there_from_the_start_so_that_rates_need_no_first_event():
    value = samples(Metrics())
    assert {outcome: value["streammoe_events_total", outcome] for outcome in OUTCOMES} == dict.fromkeys(OUTCOMES, 0)


def test_counts_add_up(metrics):
    metrics.count("learned", 5)
    metrics.count_rejected("malformed", 1)
    metrics.count_rejected("wrong_type", 2)
    value = samples(metrics)
    assert value["streammoe_events_total", "learned"] == 155
    assert value["streammoe_rejected_total", "malformed"] == 4
    assert value["streammoe_rejected_total", "wrong_type"] == 2


def test_gauges_show_the_model_and_its_scores(metrics):
    model, scores = learned()
    value = samples(metrics)
    assert value["streammoe_model_events",] == model.n == 200
    assert value["streammoe_warming_up",] == 0
    assert value["streammoe_step_size",] == pytest.approx(model.step_size)
    assert value["streammoe_convergence_residual",] == pytest.approx(model.convergence_residual)
    assert value["streammoe_expert_mass", "0"] + value["streammoe_expert_mass", "1"] == pytest.approx(1.0)
    assert value["streammoe_source_progress_ratio",] == 0.25
    for average in AVERAGES:
        assert value["streammoe_prequential_rmse", average] == pytest.approx(scores.rmse()[average])
        assert value["streammoe_baseline_rmse", average] == pytest.approx(scores.baseline_rmse()[average])
        assert value["streammoe_prequential_log_loss", average] == pytest.approx(scores.log_loss.means()[average])


def test_gauges_show_how_each_expert_fares(metrics):
    model, _ = learned()
    value = samples(metrics)
    for k, expert in enumerate(model.experts()):
        assert value["streammoe_expert_loss", str(k)] == pytest.approx(expert["loss"])
        assert value["streammoe_expert_divergence", str(k)] == pytest.approx(expert["divergence"])
    conditions = [expert["condition"] for expert in model.experts()]
    assert {name: value["streammoe_experts", name] for name in CONDITIONS} == {
        name: conditions.count(name) for name in CONDITIONS
    }
    assert value["streammoe_model_candidates",] == 1


def test_experts_begun_anew_are_counted_once(metrics):
    model, scores = learned()
    model.reseed_expert(0)
    for _ in range(2):
        metrics.publish(model, scores, None)
    assert {outcome: samples(metrics)["streammoe_reseeds_total", outcome] for outcome in RESEED_OUTCOMES} == {
        "tried": 1,
        "kept": 1,
    }


def test_experts_that_are_no_more_after_a_race_are_not_a_number():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_300, 2))
    model, metrics = MoERegressor("auto", max_experts=3, warmup=100, warmup_restarts=1), Metrics()
    metrics.publish(model, PrequentialScores(), None)
    assert samples(metrics)["streammoe_model_candidates",] == 0
    model.set_columns(["x0", "x1"])
    for part in (slice(0, 200), slice(200, None)):
        model.learn_rows(X[part], X[part, :1] + 0.1 * rng.normal(size=(len(X[part]), 1)))
        metrics.publish(model, PrequentialScores(), None)
        value = samples(metrics)
        assert value["streammoe_model_candidates",] == model.n_candidates
        known = [k for k in range(3) if not math.isnan(value["streammoe_expert_mass", str(k)])]
        assert known == list(range(len(model.masses)))
        assert sum(value["streammoe_experts", name] for name in CONDITIONS) == len(known)
    assert known == [0]
    assert math.isnan(value["streammoe_expert_loss", "1"])
    assert math.isnan(value["streammoe_expert_divergence", "0"])


def test_each_output_has_an_error_of_its_own():
    _, scores = learned("outputs")
    value = samples(published("outputs"))
    for average in AVERAGES:
        assert value["streammoe_output_rmse", average, "low"] == pytest.approx(scores.rmse(0)[average])
        assert value["streammoe_output_rmse", average, "high"] == pytest.approx(scores.rmse(1)[average])
        assert value["streammoe_prequential_rmse", average] == pytest.approx(scores.rmse()[average])
    assert value["streammoe_output_rmse", "running", "low"] != value["streammoe_output_rmse", "running", "high"]


def test_a_classifier_shows_its_classes_and_hits():
    model, scores = learned("classifier")
    value = samples(published("classifier"))
    assert value["streammoe_model_classes",] == 3
    assert value["streammoe_model_features",] == model.n_expert_features == 3
    for average in AVERAGES:
        assert value["streammoe_prequential_accuracy", average] == scores.accuracy()[average]
        assert value["streammoe_baseline_accuracy", average] == scores.baseline_accuracy()[average]
        assert value["streammoe_prequential_log_loss", average] == scores.log_loss.means()[average]
    assert 0 < value["streammoe_prequential_accuracy", "running"] < 1


def test_what_is_not_known_yet_is_not_a_number():
    metrics = Metrics()
    metrics.publish(MoERegressor(2), PrequentialScores(), None)
    value = samples(metrics)
    assert value["streammoe_warming_up",] == 1
    assert value["streammoe_model_events",] == 0
    assert math.isnan(value["streammoe_prequential_rmse", "running"])
    assert math.isnan(value["streammoe_expert_mass", "0"])
    assert math.isnan(value["streammoe_convergence_residual",])


@pytest.mark.parametrize("progress", [(0, 0), None], ids=["empty", "endless"])
def test_a_source_that_is_empty_or_endless_has_no_progress(progress):
    # Not 0: an alert for a source that is stuck would go off.
    metrics = Metrics()
    metrics.publish(MoERegressor(2), PrequentialScores(), progress)
    assert math.isnan(samples(metrics)["streammoe_source_progress_ratio",])


def test_the_age_of_the_checkpoint_grows_until_the_next_one(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("streammoe.daemon.metrics.time.monotonic", lambda: now[0])
    metrics = Metrics()
    age = ("streammoe_checkpoint_age_seconds",)
    now[0] = 130.0
    assert samples(metrics)[age] == 30.0
    metrics.checkpoint(129.0, 0.8)
    assert samples(metrics)[age] == 1.0, "what was learned while it was written would be lost, too"
    now[0] = 131.5
    assert samples(metrics)[age] == 2.5


def test_two_daemons_in_a_process_share_no_metric():
    one, other = Metrics(), Metrics()
    one.count("learned", 7)
    assert samples(other)["streammoe_events_total", "learned"] == 0


# --- the source -----------------------------------------------------------------------------------------------------


def test_each_partition_has_a_lag_and_a_position():
    metrics = Metrics()
    metrics.source(status({0: 7, 1: 9}, {0: 3, 1: 0}))
    assert samples(metrics)["streammoe_consumer_lag", "0", "t"] == 3
    assert samples(metrics)["streammoe_consumer_lag", "1", "t"] == 0
    assert samples(metrics)["streammoe_consumer_position", "1", "t"] == 9


def test_series_of_a_partition_that_is_no_longer_read_go():
    metrics = Metrics()
    metrics.source(status({0: 7, 1: 9}, {0: 3, 1: 0}))
    metrics.source(status({1: 10}, {1: 4}))
    found = {name for name in samples(metrics) if name[0].startswith("streammoe_consumer_")}
    assert found == {("streammoe_consumer_lag", "1", "t"), ("streammoe_consumer_position", "1", "t")}
    assert samples(metrics)["streammoe_consumer_lag", "1", "t"] == 4


def test_what_happened_to_the_source_is_counted_once():
    metrics = Metrics()
    for reconnected, gap in ((1, 0), (1, 2), (3, 2)):
        metrics.source(status({}, {}, reconnected=reconnected, gap=gap))
    assert samples(metrics)["streammoe_source_happened_total", "reconnected"] == 3
    assert samples(metrics)["streammoe_source_happened_total", "gap"] == 2


def test_before_it_is_asked_the_source_is_neither_ready_nor_connected():
    metrics = Metrics()
    assert samples(metrics)["streammoe_source_ready",] == 0
    assert samples(metrics)["streammoe_source_connected",] == 0
    metrics.source(status({0: 1, 1: 1}, {0: 101, 1: 102})._replace(connected=False))
    assert samples(metrics)["streammoe_source_ready",] == 1
    assert samples(metrics)["streammoe_source_connected",] == 0
    assert samples(metrics)["streammoe_source_stalled",] == 2
