"""The command line as its users meet it: real processes, signals, exit codes, files.

Interrupted runs are told from uninterrupted ones by nothing: same digest, same counters.
"""

import csv
import json
import os
import random
import re
import signal
import socket
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streammoe.daemon.metrics import CATALOGUE
from tests.process.place import Place, counts, flags_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EVENTS = 8_000
MANY = 20_000

BAD_CSV = [
    ("1.0,2.0", "malformed", "decode"),
    ('1.0,2.0,"3', "malformed", "decode"),
    ("1.0,2.0,3.0,4.0", "malformed", "decode"),
    ("abc,2.0,3.0", "wrong_type", "decode"),
    ("1.0,2.0,abc", "wrong_type", "decode"),
    ("NaN,2.0,3.0", "not_finite", "decode"),
    ("1.0,2.0,nan", "not_finite", "decode"),
    ("1.0,-inf,3.0", "not_finite", "decode"),
    ("1.0,2.0,Infinity", "not_finite", "decode"),
    ("1e400,2.0,3.0", "out_of_range", "decode"),
    ("1.0,2.0,1e400", "out_of_range", "decode"),
    ("1.0,1e60,3.0", "out_of_range", "validate"),
    ("1.0,2.0,1e60", "out_of_range", "validate"),
    ("1e9,2.0,3.0", "out_of_range", "validate"),
    ("1.0,2.0,-1e9", "out_of_range", "validate"),
]
BAD_JSONL = [
    ('{"a": 1.0, "b": 2.0, "y": 3.0', "malformed", "decode"),
    ("[1.0, 2.0, 3.0]", "malformed", "decode"),
    ("what is this?", "malformed", "decode"),
    ('{"a": "abc", "b": 2.0, "y": 3.0}', "wrong_type", "decode"),
    ('{"a": 1.0, "b": 2.0, "y": {"is": 3.0}}', "wrong_type", "decode"),
    ('{"a": NaN, "b": 2.0, "y": 3.0}', "not_finite", "decode"),
    ('{"a": 1.0, "b": 2.0, "y": -Infinity}', "not_finite", "decode"),
    ('{"a": 1e400, "b": 2.0, "y": 3.0}', "out_of_range", "decode"),
    ('{"a": 1.0, "b": 1e60, "y": 3.0}', "out_of_range", "validate"),
    ('{"a": 1.0, "b": 2.0, "y": 1e60}', "out_of_range", "validate"),
    ('{"a": 1e9, "b": 2.0, "y": 3.0}', "out_of_range", "validate"),
    ('{"a": 1.0, "b": 2.0, "y": -1e9}', "out_of_range", "validate"),
]


def events(n=EVENTS):
    """Two regimes and their gate, as texts that csv and JSON read to the same floats."""
    rng = random.Random(7)
    for _ in range(n):
        a, b, noise = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 0.1)
        yield f"{a:.5f}", f"{b:.5f}", f"{(2 * a if a > 0 else b - 1) + noise:.5f}"


def with_bad_ones(lines, bad):
    """Some refused records at the very beginning, during warm-up, in the middle and at the very end."""
    lines = list(lines)
    n = len(bad)
    places = [0, 0, 0, 60, 61, 250, 251, *(3000 + 499 * i for i in range(n - 9)), len(lines), len(lines)]
    for at, record in sorted(zip(places, bad, strict=True), key=lambda pair: -pair[0]):
        lines.insert(at, record)
    return lines


def csv_lines(chosen):
    return [",".join(event) for event in chosen]


def json_lines(chosen):
    return [f'{{"a": {a}, "b": {b}, "y": {y}}}' for a, b, y in chosen]


def write_csv(path, lines):
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same events in several shapes, and with bad records among them."""
    folder = tmp_path_factory.mktemp("data")
    lines = csv_lines(events())
    write_csv(folder / "good.csv", lines)
    (folder / "good.jsonl").write_text("\n".join(json_lines(events())) + "\n")
    cuts = [0, 1, 100, 299, 5000, 5001, 7000, len(lines)]
    for part in range(7):
        write_csv(folder / f"part-{part}.csv", lines[cuts[part] : cuts[part + 1]])
    write_csv(folder / "bad.csv", with_bad_ones(lines, [record for record, _, _ in BAD_CSV]))
    # Without stray quotes, for which a reader has to look far ahead.
    many = csv_lines(events(MANY))
    write_csv(folder / "many.csv", [line for i in range(0, MANY, 50) for line in [*many[i : i + 50], "no"]])
    bad = with_bad_ones(json_lines(events()), [record for record, _, _ in BAD_JSONL])
    (folder / "bad.jsonl").write_text("\n".join(bad) + "\n")
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("finished"))
    place.config(data / "good.csv")
    return place


@pytest.fixture(scope="module")
def reference(finished):
    """What an undisturbed run over the good events says on both streams."""
    done = finished.call("run", "config.toml", "--summary", "json", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def summary(reference):
    return json.loads(reference.stdout)


# --- what a run says ------------------------------------------------------------------------------------------------


def test_the_summary_is_one_line_of_json_on_stdout(reference, summary):
    assert reference.stdout.count("\n") == 1
    named = {"rmse", "log_loss", "events_per_second", "checkpoint", *counts(summary)}
    assert named <= summary.keys()
    assert summary["events"] == summary["learned"] == EVENTS
    assert summary["rmse"] < 0.5 * summary["baseline_rmse"]
    assert summary["events_per_second"] > 0


def test_logs_are_lines_of_json_on_stderr(reference):
    entries = [json.loads(line) for line in reference.stderr.splitlines()]
    assert entries
    for entry in entries:
        assert {"time", "level", "logger", "message"} <= entry.keys()
    assert any("metrics at http://127.0.0.1:" in entry["message"] for entry in entries)


def test_the_text_summary_is_on_stdout_and_the_rest_on_stderr(place, data):
    (place.folder / "few.csv").write_text("a,b,y\n1,2,3\n\n2,3,\n")
    done = place.call("run", place.config("few.csv"), "--log-level", "info")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^learned +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^predicted_only +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^skipped +1$", done.stdout, re.MULTILINE)
    assert "metrics at" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("path", ["good.jsonl", "part-*.csv"])
def test_the_same_events_in_another_shape_end_in_the_same_state(place, data, summary, path):
    other = place.run(place.config(data / path))
    assert other["state_digest"] == summary["state_digest"]
    assert counts(other) == counts(summary)
    found = place.inspect()
    assert (found["n"], found["state_digest"]) == (EVENTS, summary["state_digest"])


def test_a_second_run_over_a_finished_file_learns_nothing_twice(finished, summary):
    again = finished.run(finished.folder / "config.toml")
    assert counts(again) == counts(summary)
    assert again["state_digest"] == summary["state_digest"]


# --- stopping and starting again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "stop"), [(1, signal.SIGINT), (22, signal.SIGTERM)])
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(place, data, summary, batches, stop):
    config = place.config(data / "good.csv")
    process = place.start_paused(config, data / "good.csv", batches)
    process.send_signal(stop)
    stopped = place.finish(process)
    assert stopped.returncode == 0, stopped.stderr
    partial = json.loads(stopped.stdout)
    assert partial["checkpoint"]
    assert (0 < partial["learned"] < 300) == (batches == 1)  # still warming up, or long after
    assert partial["learned"] < EVENTS
    whole = place.run(config)
    assert whole["state_digest"] == summary["state_digest"]
    assert counts(whole) == counts(summary)
    assert whole["rmse"] == pytest.approx(summary["rmse"], rel=1e-9)


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_leaves_at_once_without_a_checkpoint(place, data, summary, second, code):
    config = place.config(data / "good.csv", extra="checkpoint.every_events = 600\ncheckpoint.every_seconds = 1e6")
    process = place.start_paused(config, data / "good.csv", 6, deaf=True)
    before = place.settled()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(second)
    sent = time.monotonic()
    done = place.finish(process)
    assert time.monotonic() - sent < 5
    assert done.returncode == code
    assert done.stdout == ""
    assert place.inspect() == before
    assert place.run(config)["state_digest"] == summary["state_digest"]


def test_killed_at_any_moment_each_event_still_counts_once(place, data):
    rng = random.Random(3)
    path = data / "many.csv"
    undisturbed = place.run(place.config(path, dir="undisturbed"))
    # A checkpoint for every batch: most of the time goes into writing them, and so do most of the kills.
    config = place.config(path, extra="checkpoint.every_events = 150")

    def generation():
        names = [
            int(re.sub(r"\D", "", file.name)) for file in (place.folder / "state").glob("checkpoint-*.safetensors")
        ]
        return max(names, default=0)

    kills = 8
    for attempt in range(kills):
        process = place.start("run", config)
        target = generation() + rng.randint(0 if attempt else 1, 6)
        try:
            next(line for line in process.stderr if "metrics at" in line)  # from here on it learns
            wait_until(lambda process=process, target=target: generation() >= target or process.poll() is not None)
            time.sleep(rng.uniform(0, 0.01))
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL, "it came to its end before the kill"
    assert 0 < place.inspect()["n"] < MANY
    whole = place.run(config)
    assert whole["state_digest"] == undisturbed["state_digest"]
    assert counts(whole) == counts(undisturbed)
    assert whole["learned"] == MANY
    places = {letter["place"]["offset"] for letter in place.letters("state", torn=kills)}
    assert places == {letter["place"]["offset"] for letter in place.letters("undisturbed")}
    assert len(places) == MANY // 50


# --- while it runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(data, tmp_path_factory):
    """A daemon in the middle of a file; the port of its metrics; its place."""
    place = Place(tmp_path_factory.mktemp("waiting"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = place.config(data / "many.csv", extra="checkpoint.every_events = 1000")
    process = place.start_paused(config, data / "many.csv", 30, "--set", f"metrics.port={port}")
    yield place, config, port
    process.terminate()
    done = place.finish(process)
    assert done.returncode == 0, done.stderr


def test_metrics_can_be_scraped_while_it_runs(waiting):
    _, _, port = waiting
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {sample.name for sample in samples}
    of_other_models = {"streammoe_output_rmse", "streammoe_prequential_accuracy", "streammoe_baseline_accuracy"}
    of_topics = {"streammoe_consumer_lag", "streammoe_consumer_position", "streammoe_source_happened_total"}
    for name in CATALOGUE.keys() - of_other_models - of_topics:
        assert names & {name, f"{name}_bucket"}, name
    value = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    learned = value["streammoe_events_total", "learned"]
    assert 0 < learned < MANY
    assert value["streammoe_model_events",] == learned
    assert value["streammoe_warming_up",] == 0
    assert value["streammoe_rejected_total", "malformed"] > 0
    assert 0 < value["streammoe_source_progress_ratio",] < 1
    assert value["streammoe_checkpoint_seconds_count",] > 0
    assert value["streammoe_prequential_rmse", "running"] < value["streammoe_baseline_rmse", "running"]


def test_a_second_daemon_on_the_same_folder_is_refused(waiting):
    place, config, _ = waiting
    done = place.run(config, code=4)
    assert re.search(r"error: checkpoint folder state: in use by process \d+; stop that process, or", done.stderr)


def test_a_port_in_use_is_refused_before_any_event_is_read(waiting):
    place, config, port = waiting
    other = {"checkpoint.dir": "other", "dead_letters.path": "other/dead.jsonl", "metrics.port": port}
    done = place.run(config, *flags_of(**other), code=2)
    assert f"error: metrics.host 127.0.0.1 with metrics.port {port}: cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((place.folder / "other").glob("*.safetensors"))


def test_a_running_daemons_checkpoint_can_be_inspected(waiting):
    place, _, _ = waiting
    done = place.call("inspect", "state", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"n", "positions", "model", "version", "state_digest"} <= found.keys()
    assert 0 < found["n"] < MANY
    assert found["counters"]["reasons"]["malformed"] > 0
    assert found["positions"][0]["files"][0]["offset"] > 0


# --- bad records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bad"), [("bad.csv", BAD_CSV), ("bad.jsonl", BAD_JSONL)])
def test_bad_records_are_kept_counted_and_leave_no_trace(place, data, summary, name, bad):
    found = place.run(place.config(data / name))
    assert found["state_digest"] == summary["state_digest"]
    assert counts(found) == {**counts(summary), "events": EVENTS + len(bad), "rejected": len(bad)}

    letters = place.letters()
    said = Counter((letter["record"], letter["reason"], letter["stage"]) for letter in letters)
    assert said == Counter(bad)
    content = (data / name).read_bytes()
    for letter in letters:
        assert letter["place"]["path"] == str(data / name)
        assert content[letter["place"]["offset"] :].startswith(letter["record"].encode() + b"\n")
        assert letter["detail"]
    offsets = [letter["place"]["offset"] for letter in letters]
    assert offsets == sorted(offsets)
    assert place.inspect()["counters"]["reasons"] == Counter(reason for _, reason, _ in bad)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_first_block_without_any_good_record(place, data, summary, name):
    bad = ["no,y"] * 900 if name == "a.csv" else ["{"] * 900
    lines = csv_lines(events()) if name == "a.csv" else json_lines(events())
    header = ["a,b,y"] if name == "a.csv" else []
    (place.folder / name).write_text("\n".join([*header, *bad, *["{}" if not header else "x"] * 2000, *lines]) + "\n")
    found = place.run(place.config(name), "--set", "dead_letters.max_ratio=1.0")
    assert found["rejected"] == 2900
    assert found["state_digest"] == summary["state_digest"]


def test_too_many_bad_records_stop_it_before_they_are_passed_over(place):
    good = csv_lines(events(3000))
    write_csv(place.folder / "a.csv", [*good, *["a,bad,deploy"] * 5000])
    config = place.config("a.csv", extra="checkpoint.every_events = 1000")
    done = place.run(config, code=5)
    assert "dead_letters.max_ratio" in done.stderr
    assert "Traceback" not in done.stderr
    letters = place.letters()
    assert len(letters) > 500
    assert {letter["reason"] for letter in letters} == {"wrong_type"}
    found = place.inspect()
    assert found["counters"]["outcomes"]["rejected"] <= 500
    # After the deploy was taken back, nothing is missing.
    assert len("1.0,2.0,3.00") == len("a,bad,deploy")  # the position counts bytes
    write_csv(place.folder / "a.csv", [*good, *["1.0,2.0,3.00"] * 5000])
    assert place.run(config)["learned"] + found["counters"]["outcomes"]["rejected"] == 8000


# --- exit codes -----------------------------------------------------------------------------------------------------


def test_all_wrong_settings_are_named_at_once(place):
    config = place.folder / "config.toml"
    config.write_text('[source]\nkind = "file"\n[model]\nn_expert = 3\ndegree = "two"\n')
    done = place.call("run", config)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 4
    for named in ("model.n_expert: unknown", "n_experts?", "model.degree", "schema.target: required", "source.path"):
        assert named in done.stderr
    assert done.stdout == ""
    assert {path.name for path in place.folder.iterdir()} == {"config.toml", "plugins"}


def test_a_missing_config_file(place):
    done = place.call("run", "nowhere.toml")
    assert done.returncode == 2
    assert "nowhere.toml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_source_file(place):
    done = place.run(place.config("nowhere.csv"), code=3)
    assert "nowhere.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_as_source(place):
    (place.folder / "data.csv").mkdir()
    done = place.run(place.config("data.csv"), code=3)
    assert re.search("data.csv is not a regular file", done.stderr)


def test_a_checkpoint_folder_that_cannot_be_written(place):
    (place.folder / "state").write_text("a file where a folder is asked for")
    # It is told of the folder, since that is looked at before there is anything to read.
    done = place.run(place.config("nowhere.csv"), "--set", "dead_letters.path=dead.jsonl", code=4)
    assert "error: checkpoint folder state: cannot be locked" in done.stderr
    assert "checkpoint.dir" in done.stderr
    assert "nowhere.csv" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_checkpoint_folder_without_permission(place):
    (place.folder / "state").mkdir(mode=0o500)
    done = place.run(place.config("nowhere.csv"), "--set", "dead_letters.path=dead.jsonl", code=4)
    assert "error: checkpoint folder state: cannot be locked (Permission denied)" in done.stderr


def test_dead_letters_that_cannot_be_written(place, data):
    (place.folder / "letters").write_text("a file where a folder is asked for")
    done = place.run(place.config(data / "good.csv"), "--set", "dead_letters.path=letters/dead.jsonl", code=2)
    assert "dead_letters.path letters/dead.jsonl: cannot be opened" in done.stderr


def test_a_full_disk_under_the_dead_letters_is_no_bug(place, data):
    full = flags_of(**{"dead_letters.path": "/dev/full", "checkpoint.retry_seconds": 0})
    done = place.call("run", place.config(data / "bad.csv"), *full)
    assert done.returncode in {2, 4}, done.stderr
    assert "/dev/full" in done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((place.folder / "state").glob("*.safetensors"))


def test_other_model_settings_than_the_checkpoints(place):
    write_csv(place.folder / "a.csv", csv_lines(events(2000)))
    config = place.config("a.csv")
    before = place.run(config)
    other = flags_of(**{"model.n_experts": 3, "model.seed": 9})
    done = place.run(config, *other, code=4)
    for named in ("model.n_experts was 2 and is 3 now", "model.seed was 0 and is 9 now", "--fresh"):
        assert named in done.stderr
    assert "model.warmup " not in done.stderr
    assert place.inspect()["state_digest"] == before["state_digest"]
    fresh = place.run(config, *other, "--fresh")
    assert fresh["learned"] == 2000
    assert place.inspect()["model"]["arguments"]["n_experts"] == 3


def test_a_target_that_the_header_lacks_can_be_corrected(place):
    write_csv(place.folder / "a.csv", csv_lines(events(500)))
    config = place.config("a.csv")
    done = place.run(config, "--set", "schema.target=z", code=3)
    assert re.search("a.csv has no column 'z'.*'a', 'b', 'y'", done.stderr)
    # Nothing was learned, so that nothing stands against the corrected name.
    assert place.run(config)["learned"] == 500
    assert place.inspect()["features"] == ["a", "b"]


def test_a_source_that_fails_in_the_middle_saves_what_was_learned(place):
    lines = csv_lines(events(2000))
    write_csv(place.folder / "a-1.csv", lines[:1000])
    (place.folder / "a-2.csv").write_text("\n".join(["a,a,y", *lines[1000:]]) + "\n")
    config = place.config("a-*.csv")
    done = place.run(config, code=3)
    assert "a-2.csv names columns more than once" in done.stderr
    assert place.inspect()["n"] == 1000


# --- the other commands ---------------------------------------------------------------------------------------------


def test_the_demonstration(place):
    done = place.call("demo", "--port", "0", "--dir", "shown")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r"\d+\.\d{3} +\d+\.\d{3}", line)]
    assert [row.split()[0] for row in rows] == ["streammoe,", "river", "river", "running"]
    assert done.stdout.startswith("1,001 events")
    assert re.search(r"metrics +http://127\.0\.0\.1:\d+/metrics", done.stdout)
    assert float(rows[0].split()[3]) < float(rows[3].split()[2])
    inspected = place.call("inspect", "shown/checkpoints")
    assert inspected.returncode == 0, inspected.stderr
    assert re.search(r"^n +1001$", inspected.stdout, re.MULTILINE)
    with (place.folder / "shown" / "trump-approval.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 1001
    again = place.run("shown/demo.toml", "--fresh")
    assert again["learned"] == 1001
    assert again["state_digest"] == place.inspect("shown/checkpoints")["state_digest"]


@pytest.mark.parametrize("example", sorted((ROOT / "config" / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_have_no_errors(place, example):
    done = place.call("check-config", example)
    assert done.returncode == 0, done.stderr
    assert "no errors" in done.stdout
    assert [path.name for path in place.folder.iterdir()] == ["plugins"]


def test_nothing_to_inspect(place):
    done = place.call("inspect", "plugins")
    assert done.returncode == 4
    assert "error: plugins: there is no checkpoint in this folder" in done.stderr
    assert done.stdout == ""
