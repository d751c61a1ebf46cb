"""Every query of the dashboard, every alert and who is told of them, by Prometheus' own tools.

Each alert is tried with a daemon that was well before, at 1, 40 and 10,000 events a second: it goes off within five
minutes, no other one does, and it ends. A daemon that is well for two days sets off none. What they ask for is held to
the catalogue of metrics in tests/unit/config. Grafana is not run: its variables are filled in here, and how panels look
is for people to judge.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from streammoe.daemon.metrics import OUTCOMES, RELOAD_OUTCOMES
from streammoe.errors import REASONS
from streammoe.ports import STALLS
from streammoe_connectors.kafka.reader import INCIDENTS
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
STEP = 15
"""Seconds between two samples."""
HOUR = 3600
BEGIN, END, FORGOTTEN = 12 * 60, 20 * 60, 36 * 60
"""When something begins to be wrong, when it is over, and when it is forgotten, in seconds."""
SLOW = 45 * 60
"""How long it lasts where an alert is to wait for half an hour."""
DEPLOYED, OUT, FIT = 10 * HOUR, 20 * HOUR, 30 * HOUR
"""When a daemon that is well is restarted, is out of touch with its brokers for a minute, and fits for 40 seconds."""


def tool(name, *arguments, folder=CONFIG / "prometheus"):
    command = [available(lambda: program(name)), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def promtool(*arguments, **options):
    return tool("promtool", *arguments, **options)


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


def test_alerts_reach_those_who_are_to_be_told_of_them_and_one_that_explains_others_comes_alone():
    tool("amtool", "check-config", "alertmanager.yml")
    settings = yaml.safe_load((CONFIG / "prometheus" / "alertmanager.yml").read_text())
    alerts = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    for severity in {rule["labels"]["severity"] for rule in rules}:
        told = tool("amtool", "config", "routes", "test", "--config.file=alertmanager.yml", f"severity={severity}")
        assert told == severity
    [inhibition] = settings["inhibit_rules"]
    [source] = inhibition["source_matchers"]
    assert source.removeprefix("alertname = ") in {rule["alert"] for rule in rules}
    assert inhibition["target_matchers"] == [source.replace("=", "!=")]


# --- a daemon that is well, and what may be wrong with it -------------------------------------------------------------


def labelled(name, label, values, value):
    return {f"streammoe_{name}{{{label}='{each}'}}": value for each in values}


def steadily(per_second):
    """A counter that rises by so much a second."""
    return lambda t: per_second * t


def well(rate):
    """Return the series of a daemon that learns `rate` events a second: values, or functions of the seconds."""
    return {
        "up": 1,
        "streammoe_build_info": 1,
        "streammoe_starts_total": 1,
        "streammoe_source_connected": 1,
        "streammoe_source_rejected": 0,
        **labelled("source_stalled", "reason", STALLS, 0),
        **labelled("source_incidents_total", "event", INCIDENTS, 0),
        "streammoe_behind_seconds": lambda t: t // STEP % 3,
        "streammoe_sink_waiting_seconds{sink='predictions'}": lambda t: t // STEP % 5 / 10,
        "streammoe_sink_waited_seconds_total{sink='predictions'}": steadily(0.1),
        "streammoe_sink_rejected{sink='predictions'}": 0,
        "streammoe_checkpoint_age_seconds": lambda t: t % 35,
        "streammoe_unsaved_events": lambda t: rate * (t % 35),
        "streammoe_checkpoint_failures_total": 0,
        **labelled("events_total", "outcome", OUTCOMES, 0),
        "streammoe_events_total{outcome='learned'}": steadily(0.99 * rate),
        "streammoe_events_total{outcome='rejected'}": steadily(0.01 * rate),
        **labelled("rejected_total", "reason", REASONS, 0),
        "streammoe_rejected_total{reason='malformed'}": steadily(0.01 * rate),
        "process_resident_memory_bytes": 2e8,
        "streammoe_memory_limit_bytes": 1e9,
        "streammoe_columns_vanished": 0,
        "streammoe_drifts_total": 0,
        "streammoe_guard_jumps_total": 0,
        "streammoe_prequential_rmse{average='exponential'}": 1,
        "streammoe_baseline_rmse{average='exponential'}": 2,
        "streammoe_warming_up": lambda t: t * rate < 200,
        "streammoe_model_events": steadily(rate),
        "streammoe_interval_coverage{output='y',level='0.9',average='window'}": 0.9,
        "streammoe_interval_coverage{output='y',level='0.5',average='window'}": 0.5,
        **labelled("reload_total", "outcome", RELOAD_OUTCOMES, 0),
        "streammoe_mirror_age_seconds": lambda t: t % 70,
        "streammoe_mirror_failures_total": 0,
        "streammoe_reduce_checked_seconds": lambda t: t % 60,
        **{f"streammoe_shard_problem{{shard='{each}',reason='damaged'}}": 0 for each in "ab"},
        **{f"streammoe_shard_divergence{{shard='{each}'}}": 0.05 for each in "ab"},
        **{f"streammoe_shard_events{{shard='{each}'}}": steadily(rate) for each in "ab"},
    }


def once(t):
    """A counter that rises by one when something begins to be wrong."""
    return t >= BEGIN


def since(t, end=END):
    """The seconds since something is wrong; 0 before and after."""
    return t - BEGIN if BEGIN <= t < end else 0


def part(t, end=END):
    """The seconds so far in which something was wrong."""
    return min(max(t - BEGIN, 0), end - BEGIN)


BEHIND = {"streammoe_behind_seconds": since}
WRONG = {
    # Which alert, and which series differ while something is wrong.
    "an outage": ("SourceUnreachable", {"streammoe_source_connected": lambda t: not since(t)}),
    "the daemon is down": ("Down", {"up": lambda t: not since(t)}),
    "a crash loop": ("Down", {"streammoe_starts_total": lambda t: 1 + part(t) // 60}),
    "a crash loop that is seen now and then": (
        "Down",
        {
            "up": lambda t: not since(t) or t // STEP % 2,
            "streammoe_starts_total": lambda t: 1 + part(t) // 30 if not since(t) or t // STEP % 2 else None,
        },
    ),
    "a login is rejected": (
        "LoginRejected",
        {"streammoe_source_rejected": lambda t: since(t) > 0, "streammoe_source_connected": lambda t: not since(t)},
    ),
    "a sink's certificate has expired": (
        "LoginRejected",
        {
            "streammoe_sink_rejected{sink='predictions'}": lambda t: since(t) > 0,
            "streammoe_sink_waiting_seconds{sink='predictions'}": since,
            "streammoe_sink_waited_seconds_total{sink='predictions'}": part,
            **BEHIND,
        },
    ),
    **{
        f"a partition stands still: {reason}": (
            "PartitionStalled",
            {f"streammoe_source_stalled{{reason='{reason}'}}": lambda t: since(t) > 30, **BEHIND},
        )
        for reason in STALLS
    },
    "a topic is deleted and created again": (
        "PartitionStalled",
        {
            "streammoe_source_stalled{reason='topic'}": lambda t: since(t) > 0,
            "streammoe_source_incidents_total{event='offset_reset'}": lambda t: t > END,
        },
    ),
    "a dead sink": (
        "SinkWaits",
        {
            "streammoe_sink_waiting_seconds{sink='predictions'}": since,
            "streammoe_sink_waited_seconds_total{sink='predictions'}": part,
            "streammoe_checkpoint_age_seconds": lambda t: t % 35 + since(t),
            **BEHIND,
        },
    ),
    "a dead sink, for which the daemon ends and waits anew": (
        "SinkWaits",
        {
            "streammoe_starts_total": lambda t: 1 + part(t) // 150,
            "streammoe_sink_waiting_seconds{sink='predictions'}": lambda t: max(since(t) % 150 - 30, 0),
            "streammoe_sink_waited_seconds_total{sink='predictions'}": lambda t: max(since(t) % 150 - 30, 0),
            "streammoe_behind_seconds": lambda t: max(since(t) % 150 - 30, 0),
        },
    ),
    "a slow sink": (
        "SinkWaits",
        {
            "streammoe_sink_waited_seconds_total{sink='predictions'}": lambda t: 0.1 * t + 0.7 * part(t),
            # Between two waits it learns all that has come meanwhile.
            "streammoe_behind_seconds": lambda t: since(t) % 60,
        },
    ),
    "too much to learn": ("FallsBehind", BEHIND),
    "a full disk": (
        "NotSaved",
        {
            "streammoe_checkpoint_failures_total": lambda t: part(t) // 30,
            "streammoe_checkpoint_age_seconds": lambda t: t % 35 + since(t),
            **BEHIND,
        },
    ),
    "a disk that hangs": (
        "NotSaved",
        {"streammoe_checkpoint_age_seconds": lambda t: t % 35 + since(t), "streammoe_unsaved_events": lambda t: 7},
    ),
    "lost records": ("RecordsLost", {"streammoe_source_incidents_total{event='offset_reset'}": once}),
    "garbage": ("ManyRejected", lambda rate: {"streammoe_rejected_total{reason='malformed'}": bad(rate, 120, 0.3)}),
    "poison": ("Poison", {"streammoe_rejected_total{reason='poison'}": once}),
    "memory": ("MemoryShort", {"process_resident_memory_bytes": lambda t: 2e8 + 7e8 * (since(t) > 0)}),
    "the target vanishes": (
        "LearnsNothing",
        lambda rate: {
            "streammoe_events_total{outcome='learned'}": lambda t: 0.99 * rate * (t - part(t)),
            "streammoe_events_total{outcome='predicted_only'}": lambda t: 0.99 * rate * part(t),
        },
    ),
    "labels expire": (
        "LabelsExpire",
        lambda rate: {"streammoe_events_total{outcome='expired'}": lambda t: 0.2 * rate * part(t)},
    ),
    "a column vanishes": (
        "ColumnVanished",
        # The relation is another one without it, and again with it.
        {
            "streammoe_columns_vanished": lambda t: since(t) > 30,
            "streammoe_drifts_total": lambda t: (t >= BEGIN) + (t >= END + 30),
            "streammoe_guard_jumps_total": once,
        },
    ),
    "a drift": (
        "Drift",
        # The error is higher for a while that depends on the rate, and the loss may have jumped, too.
        {"streammoe_drifts_total": once, "streammoe_guard_jumps_total": once},
    ),
    "a jump that is not followed": ("Jumped", {"streammoe_guard_jumps_total": once}),
    "copies fail": (
        "MirrorOld",
        {
            "streammoe_mirror_age_seconds": lambda t: t % 70 + (since(t) and 900),
            "streammoe_mirror_failures_total": lambda t: part(t) // 60,
        },
    ),
    "a refused reload": ("ReloadRefused", {"streammoe_reload_total{outcome='refused'}": once}),
}
SLOWLY = {
    "the mean is better": (
        "WorseThanTheBaseline",
        {"streammoe_prequential_rmse{average='exponential'}": lambda t: 1 + 2 * (since(t, SLOW + BEGIN) > 0)},
    ),
    "intervals that are too narrow": (
        "IntervalsOff",
        {
            "streammoe_interval_coverage{output='y',level='0.9',average='window'}": lambda t: (
                0.9 - 0.06 * (since(t, SLOW + BEGIN) > 0)
            )
        },
    ),
    "a shard that differs": (
        "ShardsDiffer",
        {"streammoe_shard_divergence{shard='a'}": lambda t: 0.05 + 0.3 * (since(t, SLOW + BEGIN) > 0)},
    ),
    "a shard that is damaged": (
        "ShardLeftBehind",
        {"streammoe_shard_problem{shard='a',reason='damaged'}": lambda t: since(t, SLOW + BEGIN) > 0},
    ),
    "a shard that stands still": (
        "ShardLeftBehind",
        lambda rate: {"streammoe_shard_events{shard='a'}": lambda t: rate * (t - part(t, SLOW + BEGIN))},
    ),
    "no global model": ("GlobalModelOld", {"streammoe_reduce_checked_seconds": lambda t: since(t, SLOW + BEGIN)}),
}


def bad(rate, seconds, share):
    """A counter of bad records: one of a hundred, and a higher share for so many seconds."""
    return lambda t: 0.01 * rate * t + share * rate * min(max(t - BEGIN, 0), seconds)


def rules_tested(tests, folder):
    shutil.copy(CONFIG / "prometheus" / "alerts.yml", folder)
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{STEP}s", "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", "tests.yml", folder=folder)


def watched(series, firing):
    """A test of promtool: which alerts must be firing at which seconds, and no others."""
    last = max(firing)
    return {
        "interval": f"{STEP}s",
        "input_series": [
            {
                "series": with_instance(name),
                "values": " ".join(
                    written(value(t) if callable(value) else value) for t in range(0, last + STEP, STEP)
                ),
            }
            for name, value in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{at}s",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in ([alert] if alert else [])
                ],
            }
            for at, alert in firing.items()
        ],
    }


def written(value):
    """A sample, or that there is none."""
    return "stale" if value is None else f"{float(value):.10g}"


def with_instance(series):
    name, _, labels = series.partition("{")
    return f'{name}{{job="any",instance="a"{"," + labels if labels else "}"}'


@pytest.mark.parametrize("rate", [1, 40, 10_000])
def test_each_alert_goes_off_within_minutes_alone_and_ends(tmp_path, rate):
    rules = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    cases = {**WRONG, **(SLOWLY if rate == 40 else {})}
    assert {rule["alert"] for rule in rules} == {f"Streammoe{alert}" for alert, _ in {**WRONG, **SLOWLY}.values()}
    tests = []
    for what, (alert, differs) in cases.items():
        series = {**well(rate), **(differs(rate) if callable(differs) else differs)}
        within, last = (5 * 60, FORGOTTEN) if what in WRONG else (SLOW - 60, 2 * HOUR)
        tests.append(watched(series, {BEGIN - STEP: None, BEGIN + within: f"Streammoe{alert}", last: None}))
    rules_tested(tests, tmp_path)


@pytest.mark.exhaustive
def test_a_daemon_that_is_well_for_two_days_sets_off_no_alert(tmp_path):
    """It is restarted once, an hour's backlog is caught up with after an outage of a minute, and a fit takes 40 s."""
    tests = []
    for rate in (1, 40, 2_000):
        restarted = {name: counted_again(value) if callable(value) else value for name, value in well(rate).items()}
        restarted |= {
            "up": lambda t: not DEPLOYED <= t < DEPLOYED + 60,
            "streammoe_starts_total": lambda t: 1 + (t >= DEPLOYED),
            "streammoe_source_connected": lambda t: not OUT <= t < OUT + 60,
            "streammoe_behind_seconds": behind,
        }
        times = [*range(HOUR // 2, 48 * HOUR, 15 * 60), DEPLOYED + 120, DEPLOYED + 300, OUT + 180]
        tests.append(watched(restarted, dict.fromkeys(times)))
    rules_tested(tests, tmp_path)


def counted_again(value):
    """The series from 0 on after the restart."""
    return lambda t: value(t - DEPLOYED if t >= DEPLOYED else t)


def behind(t):
    """An hour's backlog after the restart, which shrinks by five seconds a second, and that of a fit."""
    return max(HOUR - 5 * (t - DEPLOYED - 60) if t >= DEPLOYED else 0, 40 - (t - FIT) if t >= FIT else 0, 0)
