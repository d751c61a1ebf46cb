"""Every query of the dashboard and every alert, on a real Prometheus that scrapes real metrics.

Grafana is not run: its variables are filled in here, and how panels look is for people to judge.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import trustme
import yaml

from scripts.kafka_broker import Unavailable
from streammoe.daemon.metrics import CATALOGUE, Metrics
from streammoe.daemon.server import Health, MetricsServer
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import SourceStatus
from streammoe.settings import Metrics as MetricsSettings
from tests.integration.conftest import without
from tests.integration.prometheus import Prometheus, program

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFIG = Path(__file__).parents[2] / "config"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}/{target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
VARIABLES = {"$__rate_interval": "10s", "$job": "streammoe", "$instance": ".+"}


def found(name):
    try:
        return program(name)
    except Unavailable as error:
        return without(str(error))


def learned(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    if kind == "classifier":
        model, scores, targets = (
            MoEClassifier(2, warmup=100),
            ClassificationScores(),
            np.array(["a", "b"])[(X[:, 0] > 0) * 1],
        )
    else:
        model, scores, targets = MoEMultiTargetRegressor(2, warmup=100), PrequentialScores(2), X * [1.0, 5.0]
        model.set_targets(["low", "high"])
    model.set_columns(["x0", "x1"])
    outcome = model.learn_rows(X, targets)
    scores.update(outcome.losses, outcome.predictions, outcome.targets)
    return model, scores


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A Prometheus with our rules that has scraped a regressor's and a classifier's metrics for some seconds."""
    found("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    registries = {kind: Metrics() for kind in ("regressor", "classifier")}
    servers = [MetricsServer(MetricsSettings(port=0), Health(60.0)) for _ in registries]
    for server, metrics in zip(servers, registries.values(), strict=True):
        server.show(metrics.registry)
    shutil.copy(CONFIG / "prometheus" / "alerts.yml", folder)
    config = yaml.safe_load((CONFIG / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    targets = [server.url.removeprefix("http://").removesuffix("/metrics") for server in servers]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    models = {kind: learned(kind) for kind in registries}
    try:
        with Prometheus(folder, folder / "prometheus.yml") as prometheus:
            deadline = time.monotonic() + 30
            while len(prometheus.query("up == 1")) < len(servers):  # some seconds until it looks for its targets
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for turn in range(20):
                for kind, metrics in registries.items():
                    metrics.publish(*models[kind], (turn, 100))
                    metrics.count("learned", 10)
                    metrics.count("rejected", 1)
                    metrics.count_rejected("malformed", 1)
                    metrics.pending(3)
                    metrics.batch(0.01)
                    metrics.checkpoint(time.monotonic(), 0.02)
                    metrics.checkpoint_pause(0.01)
                    partition = ("polls", 0)
                    counters = {"reconnected": 1 + turn}
                    status = SourceStatus(True, True, {partition: turn}, {partition: 5}, [partition], counters)
                    metrics.source(status)
                time.sleep(0.2)
            yield prometheus
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_dashboard_finds_something(prometheus, query):
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    assert "$" not in query
    series = prometheus.query(query)
    assert series
    assert any(sample["value"][1] != "NaN" for sample in series)


def test_a_query_that_is_none_is_refused(prometheus):
    with pytest.raises(ValueError, match="parse error"):
        prometheus.query("rate(streammoe_events_total)[")


def test_every_metric_of_the_catalogue_can_be_asked_for(prometheus):
    for name, metric in CATALOGUE.items():
        assert prometheus.query(f"{name}_count" if metric.buckets else name), name


def test_alerts_are_evaluated_without_error(prometheus):
    expected = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    deadline = time.monotonic() + 10
    while any(rule["health"] != "ok" for rule in prometheus.rules()) and time.monotonic() < deadline:
        time.sleep(0.1)
    rules = {rule["name"]: rule for rule in prometheus.rules()}
    assert rules.keys() == {rule["alert"] for rule in expected}
    assert {name: rule.get("lastError", "") for name, rule in rules.items()} == dict.fromkeys(rules, "")
    # One partition has more and gives nothing, and every eleventh record is refused; nothing else is amiss.
    assert {name for name, rule in rules.items() if rule["alerts"]} == {
        "StreammoeSourceStalled",
        "StreammoeManyRefused",
    }


def test_promtool_finds_nothing_wrong(tmp_path):
    checks = [["config", "prometheus.yml"], ["rules", "alerts.yml"]]
    for what, file in checks:
        done = subprocess.run(
            [found("promtool"), "check", what, CONFIG / "prometheus" / file],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "SUCCESS" in done.stdout


def test_the_example_of_a_secured_daemon_is_sound_and_scrapes_one(tmp_path):
    done = subprocess.run(
        [found("promtool"), "check", "config", "--syntax-only", CONFIG / "prometheus" / "secured.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found("prometheus")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    (tmp_path / "password").write_text("correct horse\n")
    files = {"tls_certfile": str(tmp_path / "cert.pem"), "tls_keyfile": str(tmp_path / "cert.pem")}
    config = yaml.safe_load((CONFIG / "prometheus" / "secured.yml").read_text())
    [job] = config["scrape_configs"]
    server = MetricsServer(
        MetricsSettings(
            port=0, username=job["basic_auth"]["username"], password_file=str(tmp_path / "password"), **files
        ),
        Health(60.0),
    )
    try:
        server.show(Metrics().registry)
        shutil.copy(CONFIG / "prometheus" / "alerts.yml", tmp_path)
        config["global"] = {"scrape_interval": "200ms"}
        job["tls_config"]["ca_file"] = str(tmp_path / "ca.pem")
        job["basic_auth"]["password_file"] = str(tmp_path / "password")
        job["static_configs"] = [{"targets": [server.url.removeprefix("https://").removesuffix("/metrics")]}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with Prometheus(tmp_path, tmp_path / "prometheus.yml") as prometheus:
            deadline = time.monotonic() + 30
            while not prometheus.query("up == 1"):
                assert time.monotonic() < deadline, prometheus.query("up")
                time.sleep(0.1)
    finally:
        server.close()


SERIES = {
    # Two hours, a sample a minute; what each alert is about, and when it must be there.
    "StreammoeDown": ({'up{job="streammoe"}': "1x5 0x115"}, "15m"),
    "StreammoeSourceDisconnected": ({"streammoe_source_connected": "1x5 0x115"}, "15m"),
    "StreammoeSourceStalled": ({"streammoe_source_stalled": "0x5 2x115"}, "15m"),
    "StreammoeStalled": ({"streammoe_model_events": "7x120", "streammoe_source_progress_ratio": "0.5x120"}, "30m"),
    "StreammoeFallsBehind": (
        {
            'streammoe_consumer_lag{topic="t",partition="0"}': "0+100x120",
            'streammoe_consumer_lag{topic="t",partition="1"}': "0x120",
        },
        "90m",
    ),
    "StreammoeCheckpointOld": (
        {"streammoe_checkpoint_age_seconds": "0+60x120", 'streammoe_events_total{outcome="learned"}': "0+60x120"},
        "30m",
    ),
    "StreammoeManyRefused": (
        {
            'streammoe_rejected_total{reason="malformed"}': "0+10x120",
            'streammoe_events_total{outcome="rejected"}': "0+10x120",
            'streammoe_events_total{outcome="learned"}': "0+90x120",
        },
        "30m",
    ),
    "StreammoeJumped": ({"streammoe_guard_jumps_total": "0x5 1x115"}, "15m"),
    "StreammoePoison": ({'streammoe_rejected_total{reason="poison"}': "0x5 3x115"}, "15m"),
    "StreammoeLabelsExpire": (
        {
            'streammoe_events_total{outcome="expired"}': "0+10x120",
            'streammoe_events_total{outcome="learned"}': "0+90x120",
        },
        "90m",
    ),
    "StreammoeWorseThanTheMean": (
        {
            'streammoe_prequential_rmse{average="exponential"}': "2x120",
            'streammoe_baseline_rmse{average="exponential"}': "1x120",
            "streammoe_warming_up": "0x120",
        },
        "60m",
    ),
    "StreammoeWorseThanTheMostFrequentClass": (
        {
            'streammoe_prequential_accuracy{average="exponential"}': "0.4x120",
            'streammoe_baseline_accuracy{average="exponential"}': "0.5x120",
            "streammoe_warming_up": "0x120",
        },
        "60m",
    ),
    "StreammoeDrift": (
        {
            'streammoe_prequential_rmse{average="exponential"}': "2x120",
            'streammoe_prequential_rmse{average="window"}': "1x120",
        },
        "30m",
    ),
    "StreammoeDriftsAllTheTime": ({"streammoe_drifts_total": "0+1x120"}, "90m"),
    "StreammoeStarvedExpert": ({'streammoe_expert_mass{expert="1"}': "0.0001x120"}, "90m"),
}


def with_instance(series):
    name, brace, labels = series.partition("{")
    return f'{name}{{instance="a",{labels}' if brace else f'{name}{{instance="a"}}'


def test_each_alert_goes_off_when_it_should_and_not_at_first(tmp_path):
    rules = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == SERIES.keys()
    tests = []
    for alert, (series, when) in SERIES.items():
        tests.append(
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
        )
    shutil.copy(CONFIG / "prometheus" / "alerts.yml", tmp_path)
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [found("promtool"), "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
