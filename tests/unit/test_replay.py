"""Dead letters learned after a fix: exactly once, whatever comes in between."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streammoe.assembly import open_daemon
from streammoe.commands import dead_letters as module
from streammoe.commands.dead_letters import HALF, INCOMPLETE, OTHER_MODEL, READ_AGAIN, replay
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import FolderLock, read_checkpoint
from streammoe.pipeline.dead_letters import read_letter

N, MORE = 180, 40
FAR = 5
"""Records that a range_factor of 1e6 rejects, and 1e12 lets pass."""
TEXT = 3
"""Records that are rejected for good."""
CONFIG = """
source = {{ kind = "file", path = "data*.{format}" }}
schema = {{ target = "y", weight = "w" }}
model = {{ n_experts = 2, warmup.size = 40, warmup.restarts = 1, range_factor = {factor} }}
metrics.enabled = false
"""
LETTERS = Path("state/dead-letters.jsonl")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streammoe.assembly.compile_kernels", lambda settings=None: None)


def events(first=0, n=N):
    rng = np.random.default_rng(3 + first)
    for i in range(n):
        a, b = rng.normal(size=2)
        y = 2 * a if a > 0 else b
        a = 1e9 if i % 36 == 35 else float(a)
        yield {"a": a, "b": "x" if i % 55 == 44 else float(b), "y": float(y), "w": 1.0}


def write_lines(path, records):
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))


def write(format, name="data", **which):
    if format == "jsonl":
        write_lines(f"{name}.jsonl", events(**which))
        return
    rows = [",".join(map(str, event.values())) for event in events(**which)]
    Path(f"{name}.csv").write_text("\n".join(["a,b,y,w", *rows, ""]))


def settings(factor="1e12", format="csv", *overrides):
    Path("config.toml").write_text(CONFIG.format(factor=factor, format=format))
    return load_settings("config.toml", environment={}, overrides=overrides)


def learn(*arguments, **more):
    with open_daemon(settings(*arguments), **more) as running, StopFlag() as stop:
        return running.daemon.run(stop)


@pytest.fixture(params=["csv"])
def rejected(request):
    """Here a daemon has rejected some records and been stopped; the format of its data."""
    write(request.param)
    summary = learn("1e6", request.param)
    assert (summary.learned, summary.rejected) == (N - FAR - TEXT, FAR + TEXT)
    return request.param


def letters():
    return [read_letter(line) for line in LETTERS.read_bytes().splitlines(keepends=True)]


def state():
    found = describe_checkpoint("state")
    return found["n"], found["state_digest"]


# --- what passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rejected", ["csv", "jsonl"], indirect=True)
def test_what_passes_after_a_fix_leaves_the_file_and_is_learned_as_if_it_came_last(rejected):
    before = read_checkpoint("state")
    done = replay(LETTERS, settings(format=rejected))
    assert (done.learned, done.refused, done.kept, done.dropped) == (FAR, {"wrong_type": TEXT}, {}, 0)
    assert Counter(letter.reason for letter in letters()) == {"wrong_type": TEXT}
    after = read_checkpoint("state")
    assert after.metadata["positions"] == before.metadata["positions"]
    found = after.metadata["counters"]
    assert (Counter(found["outcomes"]), found["reasons"]) == (
        +Counter(learned=N - TEXT, rejected=TEXT),
        {"wrong_type": TEXT},
    )
    assert done.checkpoint == "state/checkpoint-000000000002.safetensors"
    n, digest = state()
    assert n == N - TEXT
    shutil.rmtree("state")
    Path(f"data.{rejected}").unlink()
    good = [event for event in events() if event["b"] != "x"]
    write_lines("data.jsonl", sorted(good, key=lambda event: event["a"] == 1e9))
    assert learn("1e12", "jsonl").state_digest == digest


@pytest.mark.usefixtures("rejected")
def test_what_a_new_setting_reads_passes():
    done = replay(LETTERS, settings("1e12", "csv", "schema.missing=['x']"))
    assert (done.learned, done.refused) == (FAR + TEXT, {})


def test_what_waits_for_its_label_waits_on():
    flags = ["labels.key=id", "schema.ignore=['id']"]
    features = [{"id": i, **event} for i, event in enumerate(events())]
    labels = [{"id": each["id"], "y": each.pop("y")} for each in features]
    write_lines("data.jsonl", [*features, *labels[:-30]])
    before = learn("1e6", "jsonl", *flags)
    assert before.pending == 29
    assert replay(LETTERS, settings("1e12", "jsonl", *flags)).learned == FAR - 1
    assert describe_checkpoint("state")["pending"] == 29
    assert learn("1e12", "jsonl", *flags).state_digest == state()[1]
    write_lines("data-2.jsonl", labels[-30:])
    after = learn("1e12", "jsonl", *flags)
    assert (after.learned, after.pending, after.rejected) == (N - TEXT, 0, 2 * TEXT)


def test_what_waited_in_vain_is_kept_and_counts_once_and_no_replay_learns_half_an_event(caplog):
    flags = ["labels.key=id", "schema.ignore=['id']", "labels.max_pending=100", "labels.keep_expired=true"]
    features = [{"id": i, **event} for i, event in enumerate(events())]
    labels = [{"id": each["id"], "y": each.pop("y")} for each in features]
    write_lines("data.jsonl", [*features, *labels[-100:]])
    done = learn("1e6", "jsonl", *flags)
    kept = Counter(letter.reason for letter in letters())
    assert (done.expired, done.rejected, done.pending) == (kept["expired"], kept.total() - kept["expired"], 0)
    assert kept["expired"] > 70
    assert "expired" not in caplog.text  # which is no surprise that a log would tell of
    before = LETTERS.read_bytes()
    assert replay(LETTERS, settings("1e6", "jsonl", *flags), reason="expired").kept == {HALF: kept["expired"]}
    assert LETTERS.read_bytes() == before


def test_without_a_fix_nothing_passes_and_with_a_reason_only_its_letters(rejected):
    before = LETTERS.read_bytes()
    done = replay(LETTERS, settings("1e6"))
    assert (done.learned, done.refused) == (0, {"wrong_type": TEXT, "out_of_range": FAR})
    assert LETTERS.read_bytes() == before
    done = replay(LETTERS, settings(), reason="wrong_type")
    assert (done.learned, done.refused, done.checkpoint) == (0, {"wrong_type": TEXT}, None)
    assert replay(LETTERS, settings(), reason="out_of_range").learned == FAR


def test_a_configuration_stands_for_the_file_that_it_names(rejected):
    settings()
    assert module.read_contents(Path("config.toml"), show=99) == module.read_contents(LETTERS, show=99)
    assert replay(Path("config.toml"), settings()).learned == FAR
    assert len(letters()) == TEXT


def test_letters_of_a_sink_that_cannot_read_them_are_an_error(monkeypatch):
    settings()
    config = Path("config.toml")
    kafka = 'bootstrap_servers = "there:1"'
    config.write_text(config.read_text() + f'dead_letters = {{ kind = "kafka", topic = "d", {kafka} }}\n')
    monkeypatch.setattr(module, "connectors", lambda group: {"kafka": object})
    with pytest.raises(SourceError):
        module.read_contents(config)


# --- exactly once ---------------------------------------------------------------------------------------------------


def test_a_crash_between_checkpoint_and_file_learns_nothing_twice_also_once_the_daemon_has_gone_on(
    rejected, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(module, "replace", lambda path, *pieces: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            replay(LETTERS, settings())
    learned, before = state(), LETTERS.read_bytes()
    done = replay(LETTERS, settings())
    assert (done.learned, done.dropped, done.checkpoint) == (0, FAR, None)
    assert (state(), len(letters())) == (learned, TEXT)
    LETTERS.write_bytes(before)
    Path("data-more.csv").write_text("a,b,y,w\n1,1e9,2,1\n1,1,2,1\n")
    learn("1e6")  # with the old limit, so that a further record is rejected
    moved = LETTERS.rename("letters.jsonl")
    done = replay(moved, settings())
    assert (done.learned, done.dropped) == (1, FAR)
    assert state()[0] == learned[0] + 2
    assert replay(moved, settings()).dropped == 0


def test_what_was_rejected_after_the_last_checkpoint_stays_for_the_daemon(rejected):
    """A killed daemon has written letters and no checkpoint; the next run reads their records again."""
    write(rejected, "data-more", first=1, n=MORE)
    with open_daemon(settings("1e6")) as running:
        running.daemon.checkpoint()
        while not running.daemon._source.finished:
            running.daemon._advance()
        running.daemon._dead_letters.flush()
    assert len(letters()) == FAR + TEXT + 1
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (FAR, {READ_AGAIN: 1})
    assert learn("1e12").learned == N + MORE - TEXT
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (0, {READ_AGAIN: 1})


# --- what stays -----------------------------------------------------------------------------------------------------


def test_what_another_model_rejected_stays(rejected):
    learn("1e12", fresh=True)
    before = state()
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (0, {OTHER_MODEL: FAR})
    assert done.refused == {"wrong_type": TEXT}  # by the new one too
    assert state() == before


def test_records_that_were_cut_and_what_is_no_letter_stay():
    write("csv")
    with Path("data.csv").open("a") as stream:
        stream.write(f"1,{'1' * 200},2,1\n")
    assert learn("1e6", "csv", "source.max_record_bytes=90").rejected == FAR + TEXT + 1
    no_letters = b'\xff what\n[1]\n{"place": {}}\n{"half'
    with LETTERS.open("ab") as stream:
        stream.write(no_letters)
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (FAR, {INCOMPLETE: 1})
    assert LETTERS.read_bytes().endswith(no_letters)


def test_what_others_write_meanwhile_is_kept(rejected, monkeypatch):
    save = module._Replay._save

    def save_while_others_write(self):
        with LETTERS.open("ab") as stream:
            stream.write(b"{}\n")
        return save(self)

    with monkeypatch.context() as patched:
        patched.setattr(module._Replay, "_save", save_while_others_write)
        with pytest.raises(CheckpointError):
            replay(LETTERS, settings())
    assert replay(LETTERS, settings()).dropped == FAR
    assert LETTERS.read_bytes().endswith(b"{}\n")


def test_the_daemon_must_be_stopped_and_its_settings_be_those_of_the_checkpoint(rejected):
    before = LETTERS.read_bytes()
    with FolderLock("state"), pytest.raises(CheckpointError):
        replay(LETTERS, settings())
    with pytest.raises(CheckpointError):
        replay(LETTERS, settings("1e12", "csv", "model.n_experts=3"))
    assert LETTERS.read_bytes() == before
