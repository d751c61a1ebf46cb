"""Every query of the dashboard and every alert, on a real Prometheus that scrapes real metrics.

Grafana is not run: its variables are filled in here, and how panels look is for people to judge.
"""

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from streammoe.daemon.health import Health
from streammoe.daemon.metrics import CATALOGUE, Metrics
from streammoe.daemon.server import MetricsServer
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor
from streammoe.pipeline.contest import Contest
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import SourceStatus
from streammoe.scaleout.global_model import Contained, GlobalModel
from streammoe.scaleout.metrics import CATALOGUE as OF_REDUCE
from streammoe.scaleout.metrics import OF_FOLLOWERS, FollowerMetrics, ReduceMetrics
from streammoe.settings import Metrics as MetricsSettings
from tests.integration.conftest import available
from tests.integration.prometheus import Prometheus, program
from tests.kafka_lab.lab import wait_until

CONFIG = Path(__file__).parents[2] / "config"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
    *(marked["expr"] for marked in DASHBOARD["annotations"]["list"]),
]
VARIABLES = {"$__rate_interval": "10s", "$job": "streammoe", "$instance": ".+"}


def learned(kind):
    X = np.random.default_rng(0).normal(size=(300, 2))
    if kind == "classifier":
        model, scores, targets = MoEClassifier(2, warmup=100), ClassificationScores(), np.where(X[:, 0] > 0, "a", "b")
    else:
        model, scores, targets = MoEMultiTargetRegressor(2, warmup=100), PrequentialScores(2), X * [1.0, 5.0]
        model.set_targets(["low", "high"])
    model.set_columns(["x0", "x1"])
    outcome = model.learn_rows(X, targets)
    scores.update(outcome.losses, outcome.predictions, outcome.targets)
    return model, scores


def publish(registries, models, shards, ended):
    """Let all numbers grow, a few times a second."""
    turn = 0
    contest = Contest()
    contest.choose(np.array([1.0]), np.array([0.5]))
    for metrics in registries.values():
        followed = FollowerMetrics(metrics.live)
        followed.show_version(2)
        followed.show_contest(contest, has_rival=True)
    while not ended.wait(0.2):
        turn += 1
        shards.count_round("written", 0.1)
        for kind, metrics in registries.items():
            metrics.publish(*models[kind], (turn, 10_000))
            metrics.count("learned", 10)
            metrics.count("rejected", 1)
            metrics.count_rejected("malformed", 1)
            metrics.set_pending(3)
            metrics.observe_batch(0.01)
            metrics.observe_checkpoint(time.monotonic(), 0.02)
            metrics.observe_checkpoint_pause(0.01)
            partition = ("polls", 0)
            counters = {"reconnected": 1 + turn}
            metrics.set_source_status(
                SourceStatus(True, True, {partition: turn}, {partition: 5}, [partition], counters, {partition: 2})
            )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A Prometheus with our rules that scrapes the metrics of a regressor, a classifier and a reduction."""
    available(lambda: program("prometheus"))
    folder = tmp_path_factory.mktemp("prometheus")
    registries = {kind: Metrics() for kind in ("regressor", "classifier")}
    shards = ReduceMetrics(["north", "south"])
    served = [*registries.values(), shards]
    servers = [MetricsServer(MetricsSettings(port=0), Health(60.0)) for _ in served]
    for server, metrics in zip(servers, served, strict=True):
        server.show(metrics.registry)
    alerts = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        rule.pop("for", None)  # minutes, until which an alert would be pending only
    (folder / "alerts.yml").write_text(yaml.safe_dump(alerts))
    config = yaml.safe_load((CONFIG / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    targets = [server.url.removeprefix("http://").removesuffix("/metrics") for server in servers]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    models = {kind: learned(kind) for kind in registries}
    model, _ = models["regressor"]
    part = Contained(generation=3, n=7, positions=[], state_digest="", weight=7.0, share=0.5, divergence=0.2)
    shards.show(GlobalModel(2, model, {"north": part, "south": part}), {"north": 2, "south": 2})
    ended = threading.Event()
    try:
        with Prometheus(folder, folder / "prometheus.yml") as prometheus:
            # Some seconds until it looks for its targets.
            wait_until(lambda: len(prometheus.query("up == 1")) == len(servers), "it scrapes all")
            publishing = threading.Thread(target=publish, args=(registries, models, shards, ended))
            publishing.start()
            yield prometheus
    finally:
        ended.set()
        for server in servers:
            server.close()


def test_each_query_of_the_dashboard_and_each_metric_of_the_catalogue_finds_something(prometheus):
    queries = [
        f"{name}_count" if metric.buckets else name
        for name, metric in {**CATALOGUE, **OF_FOLLOWERS, **OF_REDUCE}.items()
    ]

    def finds(query):
        return any(sample["value"][1] != "NaN" for sample in prometheus.query(query))

    for template in [*QUERIES, *queries]:
        query = template
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        assert "$" not in query
        wait_until(lambda query=query: finds(query), f"a sample of {query}")


def test_alerts_are_evaluated_without_error(prometheus):
    expected = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    wait_until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), "all rules are evaluated")
    rules = {rule["name"]: rule for rule in prometheus.rules()}
    assert rules.keys() == {rule["alert"] for rule in expected}
    assert {name: rule.get("lastError", "") for name, rule in rules.items()} == dict.fromkeys(rules, "")
    # One partition has more and gives nothing, every eleventh record is rejected, and of two experts for a relation
    # that needs one the other is starved, as the log would say; nothing else is wrong.
    expected = {"StreammoeSourceStalled", "StreammoeManyRejected", "StreammoeStarvedExpert"}
    wait_until(lambda: {rule["name"] for rule in prometheus.rules() if rule["alerts"]} == expected, "just these alerts")


def promtool(*arguments, folder=CONFIG / "prometheus"):
    command = [available(lambda: program("promtool")), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "--syntax-only", "secured.yml")


SHARD = 'streammoe_shard_divergence{{shard="{}"}}'
REASON = 'streammoe_rejected_total{{reason="{}"}}'


def events(**growth):
    """The counts of events, each of which grows by so many a minute."""
    return {f'streammoe_events_total{{outcome="{outcome}"}}': f"0+{by}x120" for outcome, by in growth.items()}


def averages(**values):
    """Scores after the warm-up."""
    found = {f'streammoe_{name}{{average="exponential"}}': f"{value}x120" for name, value in values.items()}
    return {**found, "streammoe_warming_up": "0x120"}


SERIES = {
    # Two hours, a sample a minute; when the alert must be there, and the series that it is about.
    "StreammoeDown": ("15m", {'up{job="streammoe"}': "1x5 0x115"}),
    "StreammoeSourceDisconnected": ("15m", {"streammoe_source_connected": "1x5 0x115"}),
    "StreammoeSourceStalled": ("15m", {"streammoe_source_stalled": "0x5 2x115"}),
    "StreammoeStalled": ("30m", {"streammoe_model_events": "7x120", "streammoe_source_progress_ratio": "0.5x120"}),
    "StreammoeFallsBehind": ("90m", {f'streammoe_consumer_lag{{partition="{i}"}}': f"0+{100 * i}x120" for i in (0, 1)}),
    "StreammoeSinkWaits": ("15m", {'streammoe_sink_waiting_seconds{sink="predictions"}': "0x5 0+60x115"}),
    "StreammoeCheckpointOld": (
        "30m",
        {"streammoe_checkpoint_age_seconds": "0+60x120", "streammoe_unsaved_events": "0x5 60x115"},
    ),
    "StreammoeManyRejected": ("30m", {REASON.format("malformed"): "0+10x120", **events(rejected=10, learned=90)}),
    "StreammoeJumped": ("15m", {"streammoe_guard_jumps_total": "0x5 1x115"}),
    "StreammoePoison": ("15m", {REASON.format("poison"): "0x5 3x115"}),
    "StreammoeLabelsExpire": ("90m", events(expired=10, learned=90)),
    "StreammoeWorseThanTheMean": ("60m", averages(prequential_rmse=2, baseline_rmse=1)),
    "StreammoeWorseThanTheMostFrequentClass": ("60m", averages(prequential_accuracy=0.4, baseline_accuracy=0.5)),
    "StreammoeDrift": (
        "30m",
        {
            'streammoe_prequential_rmse{average="exponential"}': "2x120",
            'streammoe_prequential_rmse{average="window"}': "1x120",
        },
    ),
    "StreammoeDriftsAllTheTime": ("90m", {"streammoe_drifts_total": "0+1x120"}),
    "StreammoeStarvedExpert": ("90m", {'streammoe_experts{condition="starved"}': "0x5 1x115"}),
    # Of two shards the one that is apart, for the last hour.
    "StreammoeShardLeavesTheOthers": ("100m", {SHARD.format("a"): "0.1x120", SHARD.format("b"): "0.25x60 0.4x60"}),
    "StreammoeShardsDisagree": ("100m", {SHARD.format("a"): "0.1x60 0.8x60", SHARD.format("b"): "0.4x60 0.8x60"}),
    "StreammoeShardIsLeftBehind": (
        "30m",
        {
            'streammoe_shard_problem{shard="a",reason="damaged"}': "0x5 1x115",
            'streammoe_shard_problem{shard="b",reason="warming_up"}': "1x120",
        },
    ),
    "StreammoeGlobalModelOld": ("30m", {"streammoe_reduce_checked_seconds": "0+60x120"}),
}


def with_instance(series):
    name, brace, labels = series.partition("{")
    return f'{name}{{instance="a",{labels}' if brace else f'{name}{{instance="a"}}'


def test_each_alert_goes_off_when_it_should_and_not_at_first(tmp_path):
    rules = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == SERIES.keys()
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": with_instance(name), "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": when,
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
            "alert_rule_test": [{"eval_time": "1m", "alertname": alert, "exp_alerts": []}],
        }
        for alert, (when, series) in SERIES.items()
    ]
    shutil.copy(CONFIG / "prometheus" / "alerts.yml", tmp_path)
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", "tests.yml", folder=tmp_path)
