"""The command line as its users meet it: real processes, exit codes, files, and what a running daemon shows."""

import json
import random
import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streammoe.commands.rollback import roll_back
from streammoe.daemon.metrics import CATALOGUE
from streammoe.errors import CheckpointError, ConfigError
from tests.process.place import Place, counts

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 6_000
BAD = 50
"""Of so many records one is refused."""


def lines(n=EVENTS):
    """Two regimes and their gate."""
    rng = random.Random(7)
    for i in range(n):
        a, b, noise = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 0.1)
        yield f"{a:.5f},{b:.5f},{(2 * a if a > 0 else b - 1) + noise:.5f}" if i % BAD else "no"


def write_csv(path, lines):
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


def test_a_summary_on_stdout_logs_on_stderr_and_nothing_twice(place):
    write_csv(place.folder / "a.csv", lines())
    config = place.config("a.csv")
    done = place.call("run", config, "--summary", "json", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    summary = json.loads(done.stdout)
    assert {"rmse", "log_loss", "events_per_second", "checkpoint", *counts(summary)} <= summary.keys()
    assert summary["events"] == EVENTS
    assert summary["rejected"] == EVENTS // BAD == len(place.letters())
    assert summary["rmse"] < 0.5 * summary["baseline_rmse"]
    for line in done.stderr.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()
    again = place.run_here()
    assert counts(again) == counts(summary)
    assert again["state_digest"] == summary["state_digest"] == place.inspect()["state_digest"]


# --- while it runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A daemon in the middle of a file, and the address of its metrics."""
    place = Place(tmp_path_factory.mktemp("waiting"))
    write_csv(place.folder / "a.csv", lines())
    config = place.config("a.csv", extra="checkpoint.every_events = 500")
    process = place.start_paused(config, "a.csv", 20)
    try:
        yield place, re.search(r"http://\S+", next(line for line in process.stderr if "metrics at" in line)).group()
    finally:
        process.terminate()
        done = place.finish(process)
    assert done.returncode == 0, done.stderr


def test_metrics_can_be_scraped_while_it_runs(waiting):
    _, url = waiting
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {sample.name for sample in samples}
    of_other_models = {"streammoe_output_rmse", "streammoe_prequential_accuracy", "streammoe_baseline_accuracy"}
    of_topics = {"streammoe_consumer_lag", "streammoe_consumer_position", "streammoe_source_incidents_total"}
    for name in CATALOGUE.keys() - of_other_models - of_topics:
        assert names & {name, f"{name}_bucket"}, name
    value = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    learned = value["streammoe_events_total", "learned"]
    assert 0 < learned < EVENTS
    assert value["streammoe_model_events",] == learned
    assert value["streammoe_warming_up",] == 0
    assert value["streammoe_rejected_total", "malformed"] > 0
    assert 0 < value["streammoe_source_progress_ratio",] < 1
    assert value["streammoe_prequential_rmse", "running"] < value["streammoe_baseline_rmse", "running"]


def test_a_running_daemons_checkpoint_can_be_inspected(waiting):
    place, _ = waiting
    found = place.inspect()
    assert 0 < found["n"] < EVENTS
    assert found["counters"]["reasons"]["malformed"] > 0
    assert found["positions"][0]["files"][0]["offset"] > 0


def test_a_second_daemon_on_the_same_folder_is_refused(waiting):
    place, _ = waiting
    before = place.kept()
    with pytest.raises(CheckpointError):
        place.run_here()
    assert place.kept() == before


def test_rollback_beside_a_running_daemon_is_refused(waiting):
    place, _ = waiting
    before = place.kept()
    with pytest.raises(CheckpointError):
        roll_back(place.folder / "state")
    assert place.kept() == before


def test_a_port_in_use_is_refused_before_any_event_is_read(waiting):
    place, url = waiting
    other = {"checkpoint.dir": "other", "dead_letters.path": "other/dead.jsonl", "metrics.enabled": "true"}
    other["metrics.port"] = re.search(r":(\d+)", url[5:])[1]
    with pytest.raises(ConfigError):
        place.run_here("config.toml", *(f"{name}={value}" for name, value in other.items()))
    assert not list((place.folder / "other").glob("*.safetensors"))


# --- exit codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "code"),
    [("model.degree=two", 2), ("source.path=nowhere.csv", 3), ("checkpoint.dir=config.toml", 4)],
)
def test_what_cannot_be_used_or_opened_ends_the_start_with_its_code(place, flag, code):
    write_csv(place.folder / "a.csv", lines(10))
    done = place.run(place.config("a.csv"), "--set", flag, "--set", "dead_letters.path=dead.jsonl", code=code)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not list(place.folder.rglob("*.safetensors"))


def test_too_many_bad_records_stop_it_before_they_are_passed_over(place):
    good = ["1.5,2.0,3.5"] * 3_000
    write_csv(place.folder / "a.csv", [*good, *["a,bad,deploy"] * 5_000])
    config = place.config("a.csv", extra="checkpoint.every_events = 1000")
    done = place.run(config, code=5)
    assert "Traceback" not in done.stderr
    letters = place.letters()
    assert len(letters) > 500
    assert {letter["reason"] for letter in letters} == {"wrong_type"}
    rejected = place.inspect()["counters"]["outcomes"]["rejected"]
    assert rejected <= 500
    # After the deploy was taken back, nothing is missing.
    assert len("1.0,2.0,3.00") == len("a,bad,deploy")  # the position counts bytes
    write_csv(place.folder / "a.csv", [*good, *["1.0,2.0,3.00"] * 5_000])
    assert place.run_here()["learned"] + rejected == 8_000


# --- the demonstration ----------------------------------------------------------------------------------------------


def test_the_demonstration(place):
    done = place.call("demo", "--port", "0", "--dir", "shown")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1,001 events")
    digest = place.inspect("shown/checkpoints")["state_digest"]
    assert place.run_here("shown/demo.toml", fresh=True)["state_digest"] == digest
