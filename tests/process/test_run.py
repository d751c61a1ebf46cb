"""`streammoe run` as its users meet it: output, exit codes and metrics."""

import json
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streammoe.commands.rollback import roll_back
from streammoe.errors import CheckpointError, ConfigError
from tests.process.workspace import BATCH, EVENTS, LINES, pause, wait_until

COUNTS = ("events", "learned", "predicted_only", "rejected", "skipped", "pending", "expired")


def test_a_summary_on_stdout_logs_on_stderr_and_nothing_twice(here):
    here.write("all.csv", [line if i % 50 else b"no\n" for i, line in enumerate(LINES)])
    here.config("all.csv")
    command = here.start_new("run", "config.toml", "--json", "--log-format", "json")
    summary = command.end()
    assert command.out.count("\n") == 1
    assert {"rmse", "log_loss", "events_per_second", "checkpoint", *COUNTS} <= summary.keys()
    assert summary["events"] == EVENTS
    assert summary["rejected"] == EVENTS // 50 == len(here.letters())
    assert summary["rmse"] < 0.5 * summary["baseline_rmse"]
    for line in command.err.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()
    again = here.run_here()
    assert [again[name] for name in COUNTS] == [summary[name] for name in COUNTS]
    assert again["state_digest"] == summary["state_digest"] == here.inspect()["state_digest"]


def test_while_it_runs_metrics_and_checkpoints_can_be_seen_and_folder_and_port_are_its_own(here):
    here.write("all.csv", [line if i % 50 else b"no\n" for i, line in enumerate(LINES)])
    here.config("all.csv", "checkpoint.every_events = 500")
    daemon = here.run_paused(12)

    def scraped():
        families = text_string_to_metric_families(daemon.ask("metrics")[1])
        return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}

    learned = scraped()["streammoe_events_total", "learned"]
    assert 0 < learned < EVENTS
    wait_until(lambda: scraped()["streammoe_model_events",] == learned)
    value = scraped()
    assert value["streammoe_warming_up",] == 0
    assert value["streammoe_rejected_total", "malformed"] > 0
    assert 0 < value["streammoe_source_progress_ratio",] < 1
    # What a kill would cost: at most `every_events`, one batch, and what is learned while a checkpoint is written.
    wait_until(lambda: learned < here.inspect()["n"] + 500 + BATCH // min(map(len, LINES)))

    found, before = here.inspect(), here.checkpoints()
    assert 0 < found["n"] < learned + 1
    assert found["counters"]["reasons"]["malformed"] > 0
    assert found["positions"][0]["files"][0]["offset"] > 0
    with pytest.raises(CheckpointError):
        here.run_here()
    with pytest.raises(CheckpointError):
        roll_back(here / "state")
    other = {"checkpoint.dir": "other", "dead_letters.path": "other.jsonl", "metrics.enabled": "true"}
    other["metrics.port"] = daemon.url.split(":")[2].strip("/")
    with pytest.raises(ConfigError):
        here.run_here(*(f"{name}={value}" for name, value in other.items()))
    assert not list((here / "other").glob("*.safetensors"))
    assert here.checkpoints() == before
    daemon.stop()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["model.degree=two"], 2),
        (["source.path=nowhere.csv"], 3),
        (["source.path=all.jsonl", "schema.target=nosuch"], 3),
        ([f"checkpoint.dir={'long' * 100}"], 4),
        (["schema.target=b", "source.path=bad.csv"], 5),
        ([], 70),
    ],
    ids=str,
)
def test_each_kind_of_failure_has_an_exit_code_and_saves_nothing(here, flags, code):
    here.write("all.csv")
    here.write("bad.csv", [b"a,bad,deploy\n"] * 5_000)
    here.write("all.jsonl", [b'{"a": 1, "b": 2, "y": 3}\n'] * 500)
    here.config("all.csv", "checkpoint.every_events = 1000000")
    # Where its source cannot leave its mark, it fails as one with a bug would.
    command = here.run(
        *(word for flag in flags for word in ("--set", flag)),
        before=None if flags else partial(pause, 3, "nowhere/mark"),
    )
    assert command.end(code) == ""
    assert ("Traceback" in command.err) == (code == 70)
    assert not list(here.folder.rglob("*.safetensors"))
