"""`streammoe run` as its users meet it: output, exit codes, metrics, and files that change between two runs."""

import csv
import gzip
import io
import json
import os
import shutil

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import parquet

from streammoe.commands.rollback import roll_back
from streammoe.daemon.metrics import CATALOGUE
from streammoe.errors import CheckpointError, ConfigError, SourceError
from tests.process.workspace import BATCH, EVENTS, HEADER, LINES, Workspace, append, wait_until

COUNTS = ("events", "learned", "predicted_only", "rejected", "skipped", "pending", "expired")


def test_a_summary_on_stdout_logs_on_stderr_and_nothing_twice(here):
    here.write("all.csv", [line if i % 50 else b"no\n" for i, line in enumerate(LINES)])
    here.config("all.csv")
    command = here.start_new("run", "config.toml", "--summary", "json", "--log-format", "json")
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
    daemon = here.run_paused("all.csv", 12)
    families = text_string_to_metric_families(daemon.ask("metrics")[1])
    value = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    of_other_models = {"streammoe_output_rmse", "streammoe_prequential_accuracy", "streammoe_baseline_accuracy"}
    of_topics = {name for name, metric in CATALOGUE.items() if {"partition", "event"} & set(metric.labels)}
    names = {name for name, *_ in value}
    for name in CATALOGUE.keys() - of_other_models - of_topics:
        assert names & {name, f"{name}_bucket"}, name
    learned = value["streammoe_events_total", "learned"]
    assert 0 < learned == value["streammoe_model_events",] < EVENTS
    assert value["streammoe_warming_up",] == 0
    assert value["streammoe_rejected_total", "malformed"] > 0
    assert 0 < value["streammoe_source_progress_ratio",] < 1
    assert value["streammoe_prequential_rmse", "running"] < value["streammoe_baseline_rmse", "running"]
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
        # Where it cannot leave its mark, the connector of these tests fails as one with a bug would.
        (["source.kind=pausing", "source.batches=3", "source.mark=nowhere/mark"], 70),
    ],
    ids=str,
)
def test_each_kind_of_failure_has_an_exit_code_and_saves_nothing(here, flags, code):
    here.write("all.csv")
    here.write("bad.csv", [b"a,bad,deploy\n"] * 5_000)
    here.write("all.jsonl", [b'{"a": 1, "b": 2, "y": 3}\n'] * 500)
    here.config("all.csv", "checkpoint.every_events = 1000000")
    command = here.run(*(word for flag in flags for word in ("--set", flag)))
    assert command.end(code) == ""
    assert ("Traceback" in command.err) == (code == 70)
    assert not list(here.folder.rglob("*.safetensors"))


def test_the_demonstration(here):
    assert here.start("demo", "--port", "0", "--dir", "shown").end().startswith("1,001 events")
    digest = here.inspect("shown/checkpoints")["state_digest"]
    assert here.run_here(config="shown/demo.toml", fresh=True)["state_digest"] == digest


# --- files that change between two runs ------------------------------------------------------------------------------

FIRST, THERE = 600, 2_400
"""Records of the first file, which is read to its end before the run is stopped, and of both files at that time."""
REST = b"".join(LINES[THERE:])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder in which a run was stopped: one file read to its end, another one in part, several checkpoints."""
    workspace = Workspace(tmp_path_factory.mktemp("stopped") / "here")
    workspace.write("live-1.csv", LINES[:FIRST])
    workspace.write("live-2.csv", LINES[FIRST:THERE])
    workspace.config("live-*.csv", "checkpoint.every_events = 300")
    workspace.run_here(batches=10)
    first, second = workspace.inspect()["positions"][0]["files"]
    assert (first["done"], second["done"]) == (True, False)
    assert 2 * BATCH < second["offset"] < (workspace / "live-2.csv").stat().st_size - 2 * BATCH
    return workspace


@pytest.fixture
def again(tmp_path, stopped):
    """A copy of that folder, to do something to it."""
    shutil.copytree(stopped.folder, tmp_path / "again", ignore=shutil.ignore_patterns("plugins"))
    return Workspace(tmp_path / "again")


CHANGES = {
    "the finished one is removed": lambda at: (at / "live-1.csv").unlink() or append(at / "live-2.csv", REST),
    # Before the others by name; its records are learned after theirs all the same.
    "a new one": lambda at: (at / "live-0.csv").write_bytes(HEADER + REST),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_costs_nothing_shows_in_nothing(again, whole, change):
    CHANGES[change](again)
    found = again.run_here()
    assert (found["state_digest"], found["learned"], found["rejected"]) == (whole["state_digest"], EVENTS, 0)


def test_a_file_cut_beyond_the_position_is_read_to_its_new_end_and_one_before_it_ends_the_start(again):
    path, before = again / "live-2.csv", again.checkpoints()
    content = path.read_bytes()
    os.truncate(path, 2 * BATCH)
    with pytest.raises(SourceError):
        again.run_here()
    assert again.checkpoints() == before
    cut = content[: content.rindex(b"\n", 0, len(content) - BATCH) + 3]
    path.write_bytes(cut)
    found = again.run_here()
    assert (found["learned"], found["rejected"]) == (FIRST + cut.count(b"\n") - 1, 1)
    assert again.letters()[-1]["record"] == cut[-2:].decode()


def test_what_comes_before_a_damage_is_saved_and_reading_resumes_once_it_is_mended(here, whole):
    content = gzip.compress(HEADER + b"".join(LINES))
    (here / "all.csv.gz").write_bytes(content[: len(content) // 2])
    here.config("all.csv.gz")
    with pytest.raises(SourceError):
        here.run_here()
    assert EVENTS // 4 < here.inspect()["n"] < EVENTS
    (here / "all.csv.gz").write_bytes(content)
    found = here.run_here()
    assert (found["state_digest"], found["learned"]) == (whole["state_digest"], EVENTS)
    stored = gzip.compress(HEADER + b"".join(LINES), compresslevel=0)
    changed = stored.replace(LINES[1_000], LINES[1_000].replace(b".", b"9", 1))
    (here / "all.csv.gz").write_bytes(changed)
    with pytest.raises(SourceError):  # by the checksum, at the end
        here.run_here(fresh=True)
    assert here.inspect()["n"] == EVENTS


# --- a file that grows ----------------------------------------------------------------------------------------------


def csv_bytes(events):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(events)
    return text.getvalue().encode()


def test_a_growing_file_with_a_rotation_and_a_kill_is_read_as_if_it_had_always_been_whole(here):
    """Of a classifier with a category, weights, and labels some of which are missing or come late."""
    events = []
    for i, line in enumerate(LINES):
        a, b, y = line.decode().split(",")
        label = "" if i % 41 == 0 else "rare" if i > 1_500 and i % 7 == 0 else "low" if float(y) < 0 else "high, or so"
        events.append((a if i % 97 else "", b, f"level {i % (1 + i // 600)}", i % 3, label))
    header = b"a,b,c,w,y\n"
    here.write("whole.csv", [csv_bytes(events)], header)
    extra = 'schema.categorical = ["c"]\nschema.weight = "w"'
    options = {"model": 'kind = "classifier", n_experts = 2, warmup.size = 300, warmup.restarts = 1'}
    here.config("whole.csv", extra, **options)
    plain = here.run_here("checkpoint.dir=plain")

    live = here / "live.csv"
    live.write_bytes(header[:3])  # the header is not even complete
    rows = 'predictions = { kind = "file", path = "rows.parquet" }'
    here.config("live.csv", f"checkpoint.every_seconds = 0.05\n{rows}\n{extra}", **options)
    following = ["--set", "source.follow=true"]
    first = here.run(*following)
    first.wait_for("metrics at")
    append(live, header[3:] + csv_bytes(events[:1_000]))
    wait_until(lambda: here.consumed() > 500)
    first.kill()
    append(live, csv_bytes(events[1_000:1_300]))  # while no daemon reads

    second = here.run(*following)
    second.wait_for("metrics at")
    piece = csv_bytes(events[1_300:1_800])
    append(live, piece[:5_001])  # as a producer writes, not up to the end of a line
    append(live, piece[5_001:])
    live.rename(here / "live.csv.1")
    append(here / "live.csv.1", csv_bytes(events[1_800:1_900]))  # by a writer that is late
    append(live, header + csv_bytes(events[1_900:]))
    wait_until(lambda: here.consumed() == EVENTS or second.code is not None)
    followed = second.stop()
    for name in ("state_digest", "events", "learned", "predicted_only", "rejected"):
        assert followed[name] == plain[name]
    found = [row for part in here.folder.glob("rows-*.parquet") for row in parquet.read_table(part).to_pylist()]
    assert len({tuple(row["place"].items()) for row in found}) == len(found) == EVENTS
