"""Every query of the dashboard, and every alert, by Prometheus' own tool.

What they ask for is held to the catalogue of metrics in tests/unit/config. Grafana is not run: its variables are filled
in here, and how panels look is for people to judge.
"""

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.integration.conftest import available
from tests.integration.prometheus import program

CONFIG = Path(__file__).parents[2] / "config"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
PANELS = [each for panel in DASHBOARD["panels"] for each in (panel, *panel.get("panels", ()))]
QUERIES = [
    *(target["expr"] for panel in PANELS for target in panel.get("targets", ())),
    *(marked["expr"] for marked in DASHBOARD["annotations"]["list"]),
]
VARIABLES = {"$__rate_interval": "10s", "$job": "streammoe", "$instance": ".+", "$output": ".+"}


def promtool(*arguments, folder=CONFIG / "prometheus"):
    command = [available(lambda: program("promtool")), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong(tmp_path):
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "--syntax-only", "secured.yml")
    rules = []
    for number, template in enumerate(QUERIES):
        query = template
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        assert "$" not in query
        rules.append({"record": f"query:{number}", "expr": query})
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", "queries.yml", folder=tmp_path)


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
