"""Dead letters learned after a fix: exactly once, whatever comes in between."""

import json
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streammoe.assembly import open_daemon
from streammoe.commands import dead_letters as module
from streammoe.commands.dead_letters import NOT_PASSED, NOT_WHOLE, OTHER_MODEL, look_into, replay
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError
from streammoe.estimators import MoERegressor
from streammoe.persistence import FolderLock, read_checkpoint
from streammoe.pipeline.dead_letters import DeadLetterFile, read_letter
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.ports import Batch, DeadLetter

N = 600
FAR = 9
"""Records that a range_factor of 1e6 refuses, and 1e12 lets pass."""
TEXT = 4
"""Records that are refused for good."""
CONFIG = """
source = {{ kind = "file", path = "data*.{format}" }}
schema = {{ target = "y", weight = "w" }}
model = {{ n_experts = 2, warmup = 100, range_factor = {factor} }}
metrics.enabled = false
"""
LETTERS = Path("state/dead-letters.jsonl")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def events(first=0, n=N):
    rng = np.random.default_rng(3 + first)
    for i in range(n):
        a, b = rng.normal(size=2)
        y = 2 * a if a > 0 else b
        if i % 60 == 57 and i < 60 * FAR:
            a = 1e9
        yield {"a": float(a), "b": float(b) if i % 150 != 120 else "?", "y": float(y), "w": 1.0}


def write(format="csv", name="data", **which):
    with Path(f"{name}.{format}").open("w") as stream:
        if format == "csv":
            stream.write("a,b,y,w\n")
        stream.writelines(
            (",".join(map(str, event.values())) if format == "csv" else json.dumps(event)) + "\n"
            for event in events(**which)
        )


def settings(factor="1e6", format="csv", *overrides):
    Path("config.toml").write_text(CONFIG.format(factor=factor, format=format))
    return load_settings("config.toml", environment={}, overrides=overrides)


def learn(*arguments, **more):
    with open_daemon(settings(*arguments), **more) as running, StopFlag() as stop:
        return running.daemon.run(stop)


@pytest.fixture
def refused(request):
    """A folder in which a daemon has refused some records and been stopped; the format of its data."""
    written_as = getattr(request, "param", "csv")
    write(written_as)
    summary = learn("1e6", written_as)
    assert (summary.learned, summary.rejected) == (N - FAR - TEXT, FAR + TEXT)
    return written_as


in_both_formats = pytest.mark.parametrize("refused", ["csv", "jsonl"], indirect=True)


def letters():
    return [read_letter(line) for line in LETTERS.read_bytes().splitlines(keepends=True)]


def counters(**expected):
    """The counters of the newest checkpoint; they add up to the events that there were."""
    found = read_checkpoint("state").metadata["counters"]
    assert sum(found["outcomes"].values()) == expected.pop("events", N)
    assert found["outcomes"]["rejected"] == sum(found["reasons"].values())
    return found


# --- what passes ----------------------------------------------------------------------------------------------------


@in_both_formats
def test_what_passes_after_a_fix_is_learned_and_leaves_the_file(refused):
    before = read_checkpoint("state")
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.refused, done.kept, done.dropped) == (FAR, {"wrong_type": TEXT}, {}, 0)
    assert done.detail.startswith("field 'b' is '?'")
    assert [letter.reason for letter in letters()] == ["wrong_type"] * TEXT
    after = read_checkpoint("state")
    assert after.metadata["positions"] == before.metadata["positions"]
    found = counters()
    assert (found["outcomes"]["learned"], found["reasons"]) == (N - TEXT, {"wrong_type": TEXT})
    assert describe_checkpoint("state")["n"] == N - TEXT
    assert done.checkpoint == "state/checkpoint-000000000002.safetensors"


@in_both_formats
def test_the_records_are_learned_as_events_that_come_last(refused):
    """The same as a file that holds them at its end."""
    replay(LETTERS, settings("1e12", refused))
    replayed = describe_checkpoint("state")["state_digest"]
    good = [event for event in events() if event["a"] < 1e9 and event["b"] != "?"]
    far = [event for event in events() if event["a"] == 1e9 and event["b"] != "?"]
    Path("state").rename("state-before")
    Path(f"data.{refused}").unlink()
    with Path("data.jsonl").open("w") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in good + far)
    assert len(far) == FAR
    assert learn("1e12", "jsonl").state_digest == replayed


def test_the_daemon_goes_on_from_there(refused):
    replay(LETTERS, settings("1e12", refused))
    write(refused, "data-more", first=1, n=100)
    summary = learn("1e12", refused)
    assert (summary.events, summary.learned, summary.rejected) == (N + 100, N - TEXT + 100, TEXT)
    assert replay(LETTERS, settings("1e12", refused)).learned == 0


def test_what_waits_for_its_label_waits_on(tmp_path):
    flags = ["labels.key=id", "schema.ignore=['id']"]
    records = [
        {"id": i, **{name: value for name, value in event.items() if name != "y"}} for i, event in enumerate(events())
    ]
    labels = [{"id": i, "y": event["y"]} for i, event in enumerate(events())]
    Path("data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records, *labels[:-100]]))
    before = learn("1e6", "jsonl", *flags)
    # What is far out of range is refused once it has a target, a text at once, and again then.
    far, text = FAR - 1, TEXT - 1  # among those that have their labels; the others have one of each
    assert (before.learned, before.rejected, before.pending) == (N - 100 - far - text, far + text + TEXT, 99)
    done = replay(LETTERS, settings("1e12", "jsonl", *flags))
    assert done.learned == far
    assert describe_checkpoint("state")["pending"] == 99
    digest = describe_checkpoint("state")["state_digest"]
    assert learn("1e12", "jsonl", *flags).state_digest == read_checkpoint("state").metadata["state_digest"] == digest
    with Path("data-2.jsonl").open("w") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in labels[-100:])
    after = learn("1e12", "jsonl", *flags)
    assert (after.learned, after.pending, after.rejected) == (N - TEXT, 0, 2 * TEXT)


def test_a_dry_run_says_the_same_and_changes_nothing(refused, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with FolderLock("state"):  # a running daemon is no hindrance
        before[tmp_path / "state" / "lock"] = (tmp_path / "state" / "lock").read_bytes()
        dry = replay(LETTERS, settings("1e12", refused), dry_run=True)
    before[tmp_path / "config.toml"] = (tmp_path / "config.toml").read_bytes()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    wet = replay(LETTERS, settings("1e12", refused))
    assert dry == wet._replace(checkpoint=None)


def test_only_letters_with_a_reason_and_without_a_fix_none(refused):
    before = LETTERS.read_bytes()
    done = replay(LETTERS, settings("1e6", refused))
    assert (done.learned, done.refused) == (0, {"wrong_type": TEXT, "out_of_range": FAR})
    assert LETTERS.read_bytes() == before
    assert counters()["outcomes"]["rejected"] == FAR + TEXT
    done = replay(LETTERS, settings("1e12", refused), reason="wrong_type")
    assert (done.learned, done.refused, done.checkpoint) == (0, {"wrong_type": TEXT}, None)
    assert len(letters()) == FAR + TEXT
    assert replay(LETTERS, settings("1e12", refused), reason="out_of_range").learned == FAR
    assert len(letters()) == TEXT


def test_records_that_only_count_as_predicted_are_counted_so():
    write("jsonl")
    learn("1e6", "jsonl")
    first, *others = LETTERS.read_text().splitlines(keepends=True)
    # Such as a record whose number could not be read before a new version.
    changed = {**json.loads(first), "record": '{"a": 1, "b": 2}'}
    LETTERS.write_text(json.dumps(changed) + "\n" + "".join(others))
    done = replay(LETTERS, settings("1e12", "jsonl"))
    assert (done.learned, done.predicted_only) == (FAR - 1, 1)
    assert counters()["outcomes"]["predicted_only"] == 1


def test_rows_of_tables_are_read_again_as_what_their_letters_hold():
    table = pa.RecordBatch.from_pydict({"a": [1.0, 1e9], "b": [0.0, 2.0], "y": [1.0, 1.0], "w": [1.0, 1.0]})
    batch = Batch(b"", np.empty(0, np.int64), "arrow", None, "x", lambda i: {"row": i}, {}, table=table)
    pipeline = Pipeline(MoERegressor(2, range_factor=1e6), Schema(("y",)), PrequentialScores())
    (letter,) = pipeline.process(batch).letters
    assert (letter.format, letter.columns) == ("jsonl", None)
    assert json.loads(letter.record) == {"a": 1e9, "b": 2.0, "y": 1.0, "w": 1.0}


# --- exactly once ---------------------------------------------------------------------------------------------------


@in_both_formats
def test_a_crash_between_checkpoint_and_file_learns_nothing_twice(refused, monkeypatch):
    def crash(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            replay(LETTERS, settings("1e12", refused))
    assert len(letters()) == FAR + TEXT
    learned = describe_checkpoint("state")
    assert learned["n"] == N - TEXT
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.dropped, done.checkpoint) == (0, FAR, None)
    assert len(letters()) == TEXT
    assert describe_checkpoint("state")["state_digest"] == learned["state_digest"]
    assert counters()["outcomes"]["learned"] == N - TEXT


def test_nor_if_the_daemon_runs_in_between_and_more_is_replayed(refused, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(module, "replace", lambda path, *pieces: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            replay(LETTERS, settings("1e12", refused))
    write(refused, "data-more", first=1, n=100)
    learn("1e6", refused)  # with the old limit, so that further records are refused
    far = Counter(letter.reason for letter in letters())["out_of_range"] - FAR
    found = describe_checkpoint("state")["n"]
    Path("elsewhere").mkdir()
    moved = LETTERS.rename("elsewhere/letters.jsonl")
    done = replay(moved, settings("1e12", refused))
    assert (done.learned, done.dropped) == (far, FAR)
    assert describe_checkpoint("state")["n"] == found + far
    assert replay(moved, settings("1e12", refused)).dropped == 0


def test_a_crash_before_the_checkpoint_leaves_all_as_it_was(refused, monkeypatch):
    before = LETTERS.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("streammoe.persistence.store.replace", lambda path, *pieces: 1 / 0)
        patched.setattr("streammoe.persistence.store.CheckpointStore.prepare", lambda store: None)
        with pytest.raises(ZeroDivisionError):
            replay(LETTERS, settings("1e12", refused))
    assert LETTERS.read_bytes() == before
    assert replay(LETTERS, settings("1e12", refused)).learned == FAR


def test_letters_that_a_restart_wrote_again_are_learned_once(refused):
    content = LETTERS.read_bytes()
    LETTERS.write_bytes(content + content)
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.dropped) == (FAR, FAR)
    assert len(letters()) == 2 * TEXT
    assert counters()["outcomes"]["learned"] == N - TEXT


def test_what_was_refused_after_the_last_checkpoint_stays_for_the_daemon(refused):
    """A killed daemon has written letters and no checkpoint; the next run reads their records again."""
    write(refused, "data-more", first=1, n=100)
    with open_daemon(settings("1e6", refused)) as running:
        running.daemon.checkpoint()
        while not running.daemon._source.finished:
            running.daemon._advance()
        running.daemon._dead_letters.flush()
    kept = [letter for letter in letters() if "more" in letter.place["path"]]
    assert kept
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.kept) == (FAR, {NOT_PASSED: len(kept)})
    summary = learn("1e12", refused)
    assert summary.learned == N + 100 - TEXT - Counter(letter.reason for letter in kept)["wrong_type"]
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.kept[NOT_PASSED]) == (0, Counter(letter.reason for letter in kept)["out_of_range"])


def test_what_another_model_refused_stays(refused):
    learn("1e12", refused, fresh=True)
    before = describe_checkpoint("state")["n"]
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.kept) == (0, {OTHER_MODEL: FAR})
    assert done.refused == {"wrong_type": TEXT}  # by the new one too
    assert describe_checkpoint("state")["n"] == before


def test_letters_of_older_versions_stay(refused):
    old = [json.loads(line) for line in LETTERS.read_text().splitlines()]
    for entry in old:
        for name in ("format", "columns", "run", "events"):
            entry.pop(name, None)
    LETTERS.write_text("".join(json.dumps(entry) + "\n" for entry in old))
    before = LETTERS.read_bytes()
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.kept) == (0, {NOT_WHOLE: FAR + TEXT})
    assert LETTERS.read_bytes() == before


def test_a_record_that_was_cut_is_not_taken_for_a_whole_one():
    write("csv")
    with Path("data.csv").open("a") as stream:
        stream.write(f"1,{'1' * 200},2,1\n")
    summary = learn("1e6", "csv", "source.max_record_bytes=90")
    assert summary.rejected == FAR + TEXT + 1
    cut = letters()[-1]
    assert (cut.format, cut.run is None) == (None, False)
    assert replay(LETTERS, settings("1e12", "csv")).kept == {NOT_WHOLE: 1}


# --- the file -------------------------------------------------------------------------------------------------------


def test_what_is_no_letter_stays(refused):
    with LETTERS.open("ab") as stream:
        stream.write(b'\xff what\n[1]\n{"place": {}}\n{"half')
    replay(LETTERS, settings("1e12", refused))
    assert LETTERS.read_bytes().endswith(b'\xff what\n[1]\n{"place": {}}\n{"half')
    assert look_into(LETTERS).unreadable == 4


def test_permissions_and_links_are_kept(refused):
    LETTERS.rename("kept.jsonl")
    LETTERS.symlink_to(Path("kept.jsonl").absolute())
    Path("kept.jsonl").chmod(0o640)
    replay(LETTERS, settings("1e12", refused))
    assert LETTERS.is_symlink()
    assert stat.S_IMODE(Path("kept.jsonl").stat().st_mode) == 0o640
    assert len(letters()) == TEXT


def test_a_file_that_somebody_still_writes_to_is_left_alone(refused, monkeypatch):
    save = module._Replay._save

    def save_while_others_write(self):
        with LETTERS.open("ab") as stream:
            stream.write(b"{}\n")
        return save(self)

    with monkeypatch.context() as patched:
        patched.setattr(module._Replay, "_save", save_while_others_write)
        with pytest.raises(CheckpointError):
            replay(LETTERS, settings("1e12", refused))
    done = replay(LETTERS, settings("1e12", refused))
    assert (done.learned, done.dropped) == (0, FAR)
    assert LETTERS.read_bytes().endswith(b"{}\n")


def test_the_daemon_must_be_stopped_and_its_settings_and_checkpoint_be_there(refused, tmp_path):
    before = LETTERS.read_bytes()
    with FolderLock("state"), pytest.raises(CheckpointError):
        replay(LETTERS, settings("1e12", refused))
    for flag in ("model.n_experts=3", "checkpoint.dir=nowhere"):
        with pytest.raises(CheckpointError):
            replay(LETTERS, settings("1e12", refused, flag))
    assert LETTERS.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


# --- looking --------------------------------------------------------------------------------------------------------


def test_counts_by_reason_and_stage(refused):
    found = look_into(LETTERS, show=3, reason=None)
    reasons = [("out_of_range", "validate", FAR), ("wrong_type", "decode", TEXT)]
    assert [tuple(count) for count in found.counts] == reasons
    assert (found.unreadable, len(found.shown)) == (0, 3)
    found = look_into(LETTERS, show=100, reason="wrong_type")
    assert [letter.reason for letter in found.shown] == ["wrong_type"] * TEXT
    assert [tuple(count) for count in found.counts] == reasons[1:]
    Path("empty").touch()
    assert look_into(Path("empty")).counts == []


def test_another_file_is_not_taken_for_one_of_letters():
    for content in (b"a,b\n1,2\n", b'{"a": 1}\n', b"[" * 100_000 + b"\n"):
        Path("other").write_bytes(content)
        with pytest.raises(SourceError):
            look_into(Path("other"))
    with pytest.raises(SourceError):
        look_into(Path("nowhere"))


def test_a_letter_is_read_as_it_was_written():
    written = [
        DeadLetter({"path": "a", "offset": 7}, "decode", "malformed", "no \ud800", b"1,2\r", "csv", ("a", "b"), "r", 9),
        DeadLetter({"topic": "t"}, "validate", "out_of_range", "ü", b"\xff\x00", "jsonl"),
        DeadLetter({"path": "a"}, "decode", "malformed", "", b""),
    ]
    sink = DeadLetterFile(LETTERS)
    sink.write(written)
    sink.close()
    assert letters() == written


def test_what_is_no_letter():
    whole = {"place": {}, "stage": "", "reason": "", "detail": "", "record": ""}
    assert read_letter(json.dumps(whole).encode()) is not None
    wrong = [{"place": 1}, {"stage": 1}, {"record": 1}, {"columns": [1]}, {"columns": 5}, {"events": "x"}]
    for entry in [*(whole | each for each in wrong), {**whole, "record": None, "record_base64": "!"}]:
        held = {name: value for name, value in entry.items() if value is not None}
        assert read_letter(json.dumps(held).encode()) is None, held
    for line in (b"", b"null", b"3", b"[" * 100_000):
        assert read_letter(line) is None


def test_nothing_in_a_letter_steers_the_terminal():
    letter = DeadLetter({"path": "a\x1b[2J"}, "decode", "x", "\x07 \u202e", b"\x1b]0;title\x07\xff" + b"z" * 1000)
    shown = module.describe(letter)
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown.splitlines()) == 3
    assert shown.endswith("(1,011 bytes)")
