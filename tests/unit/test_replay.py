"""Dead letters learned after a fix: exactly once, whatever comes in between."""

import json
import shutil
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streammoe.assembly import open_daemon
from streammoe.commands import dead_letters as module
from streammoe.commands.dead_letters import NOT_PASSED, NOT_WHOLE, OTHER_MODEL, look_into, replay
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import FolderLock, read_checkpoint
from streammoe.pipeline.dead_letters import read_letter
from streammoe.ports import DeadLetter

N, MORE = 180, 40
FAR = 5
"""Records that a range_factor of 1e6 rejects, and 1e12 lets pass."""
TEXT = 3
"""Records that are rejected for good."""
CONFIG = """
source = {{ kind = "file", path = "data*.{format}" }}
schema = {{ target = "y", weight = "w" }}
model = {{ n_experts = 2, warmup = 40, warmup_restarts = 1, range_factor = {factor} }}
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
        a = 1e9 if i % 36 == 17 else float(a)
        yield {"a": a, "b": "?" if i % 55 == 44 else float(b), "y": float(y), "w": 1.0}


def write_lines(path, records, mode="w"):
    with Path(path).open(mode) as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def write(format="csv", name="data", **which):
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders in which a daemon has rejected some records and been stopped, by the format of its data."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for written_as in ("csv", "jsonl"):
            found[written_as] = tmp_path_factory.mktemp(written_as)
            patch.chdir(found[written_as])
            write(written_as)
            summary = learn("1e6", written_as)
            assert (summary.learned, summary.rejected) == (N - FAR - TEXT, FAR + TEXT)
    return found


@pytest.fixture
def rejected(request, folders, tmp_path):
    """Such a folder, to go on in; the format of its data."""
    written_as = getattr(request, "param", "csv")
    shutil.copytree(folders[written_as], tmp_path, dirs_exist_ok=True)
    return written_as


def letters():
    return [read_letter(line) for line in LETTERS.read_bytes().splitlines(keepends=True)]


def reasons(*some):
    return Counter(letter.reason for letter in some or letters())


def counters():
    """The counters of the newest checkpoint; they add up to the events that there were."""
    found = read_checkpoint("state").metadata["counters"]
    assert sum(found["outcomes"].values()) == N
    assert found["outcomes"]["rejected"] == sum(found["reasons"].values())
    return found


def state():
    found = describe_checkpoint("state")
    return found["n"], found["state_digest"]


# --- what passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rejected", ["csv", "jsonl"], indirect=True)
def test_what_passes_after_a_fix_leaves_the_file_and_is_learned_as_if_it_came_last(rejected):
    before = read_checkpoint("state")
    done = replay(LETTERS, settings(format=rejected))
    assert (done.learned, done.refused, done.kept, done.dropped) == (FAR, {"wrong_type": TEXT}, {}, 0)
    assert reasons() == {"wrong_type": TEXT}
    assert read_checkpoint("state").metadata["positions"] == before.metadata["positions"]
    found = counters()
    assert (found["outcomes"]["learned"], found["reasons"]) == (N - TEXT, {"wrong_type": TEXT})
    assert done.checkpoint == "state/checkpoint-000000000002.safetensors"
    n, digest = state()
    assert n == N - TEXT
    shutil.rmtree("state")
    Path(f"data.{rejected}").unlink()
    good = [event for event in events() if event["b"] != "?"]
    write_lines("data.jsonl", sorted(good, key=lambda event: event["a"] == 1e9))
    assert learn("1e12", "jsonl").state_digest == digest


def test_what_waits_for_its_label_waits_on():
    flags = ["labels.key=id", "schema.ignore=['id']"]
    features = [{"id": i, **event} for i, event in enumerate(events())]
    labels = [{"id": each["id"], "y": each.pop("y")} for each in features]
    write_lines("data.jsonl", [*features, *labels[:-30]])
    before = learn("1e6", "jsonl", *flags)
    # What is far out of range is rejected once it has a target, a text at once, and again then.
    far, text = FAR - 1, TEXT - 1  # among those that have their labels; the others have one of each
    assert (before.learned, before.rejected, before.pending) == (N - 30 - far - text, far + text + TEXT, 29)
    assert replay(LETTERS, settings("1e12", "jsonl", *flags)).learned == far
    assert describe_checkpoint("state")["pending"] == 29
    assert learn("1e12", "jsonl", *flags).state_digest == state()[1]
    write_lines("data-2.jsonl", labels[-30:])
    after = learn("1e12", "jsonl", *flags)
    assert (after.learned, after.pending, after.rejected) == (N - TEXT, 0, 2 * TEXT)


def test_a_dry_run_says_the_same_and_changes_nothing(rejected, tmp_path):
    def files():
        kept = (path for path in tmp_path.rglob("*") if path.is_file() and path.name not in {"config.toml", "lock"})
        return {path: path.read_bytes() for path in kept}

    before = files()
    with FolderLock("state"):  # a running daemon is no hindrance
        dry = replay(LETTERS, settings(), dry_run=True)
    assert files() == before
    assert dry == replay(LETTERS, settings())._replace(checkpoint=None)


def test_without_a_fix_nothing_passes_and_with_a_reason_only_its_letters(rejected):
    before = LETTERS.read_bytes()
    done = replay(LETTERS, settings("1e6"))
    assert (done.learned, done.refused) == (0, {"wrong_type": TEXT, "out_of_range": FAR})
    assert LETTERS.read_bytes() == before
    assert counters()["outcomes"]["rejected"] == FAR + TEXT
    done = replay(LETTERS, settings(), reason="wrong_type")
    assert (done.learned, done.refused, done.checkpoint) == (0, {"wrong_type": TEXT}, None)
    assert replay(LETTERS, settings(), reason="out_of_range").learned == FAR
    assert reasons() == {"wrong_type": TEXT}


@pytest.mark.parametrize("rejected", ["jsonl"], indirect=True)
def test_records_that_only_count_as_predicted_are_counted_so(rejected):
    first, *others = LETTERS.read_text().splitlines(keepends=True)
    # Such as a record whose number could not be read before a new version.
    changed = {**json.loads(first), "record": '{"a": 1, "b": 2}'}
    LETTERS.write_text(json.dumps(changed) + "\n" + "".join(others))
    done = replay(LETTERS, settings(format="jsonl"))
    assert (done.learned, done.predicted_only) == (FAR - 1, 1)
    assert counters()["outcomes"]["predicted_only"] == 1


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
    assert counters()["outcomes"]["learned"] == learned[0] == N - TEXT
    LETTERS.write_bytes(before)
    Path("data-more.csv").write_text("a,b,y,w\n1,1e9,2,1\n1,1,2,1\n")
    learn("1e6")  # with the old limit, so that a further record is rejected
    moved = LETTERS.rename("letters.jsonl")
    done = replay(moved, settings())
    assert (done.learned, done.dropped) == (1, FAR)
    assert state()[0] == learned[0] + 2
    assert replay(moved, settings()).dropped == 0


def test_letters_that_a_restart_wrote_again_are_learned_once(rejected):
    LETTERS.write_bytes(2 * LETTERS.read_bytes())
    done = replay(LETTERS, settings())
    assert (done.learned, done.dropped, len(letters())) == (FAR, FAR, 2 * TEXT)


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
    assert (done.learned, done.kept) == (FAR, {NOT_PASSED: 1})
    assert learn("1e12").learned == N + MORE - TEXT
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (0, {NOT_PASSED: 1})


# --- what stays -----------------------------------------------------------------------------------------------------


def test_what_another_model_rejected_stays(rejected):
    learn("1e12", fresh=True)
    before = state()
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (0, {OTHER_MODEL: FAR})
    assert done.refused == {"wrong_type": TEXT}  # by the new one too
    assert state() == before


def test_letters_of_older_versions_and_what_is_no_letter_stay(rejected):
    old = [json.loads(line) for line in LETTERS.read_text().splitlines()]
    for entry in old:
        for name in ("format", "columns", "run", "events"):
            entry.pop(name, None)
    write_lines(LETTERS, old)
    with LETTERS.open("ab") as stream:
        stream.write(b'\xff what\n[1]\n{"place": {}}\n{"half')
    before = LETTERS.read_bytes()
    done = replay(LETTERS, settings())
    assert (done.learned, done.kept) == (0, {NOT_WHOLE: FAR + TEXT})
    assert LETTERS.read_bytes() == before
    assert look_into(LETTERS).unreadable == 4


def test_a_record_that_was_cut_is_not_taken_for_a_whole_one():
    write("csv")
    with Path("data.csv").open("a") as stream:
        stream.write(f"1,{'1' * 200},2,1\n")
    assert learn("1e6", "csv", "source.max_record_bytes=90").rejected == FAR + TEXT + 1
    cut = letters()[-1]
    assert (cut.format, cut.run is None) == (None, False)
    assert replay(LETTERS, settings()).kept == {NOT_WHOLE: 1}


def test_permissions_and_links_of_the_file_are_kept_and_what_others_write_meanwhile(rejected, monkeypatch):
    LETTERS.rename("kept.jsonl").chmod(0o640)
    LETTERS.symlink_to(Path("kept.jsonl").absolute())
    save = module._Replay._save

    def save_while_others_write(self):
        with LETTERS.open("ab") as stream:
            stream.write(b"{}\n")
        return save(self)

    with monkeypatch.context() as patched:
        patched.setattr(module._Replay, "_save", save_while_others_write)
        with pytest.raises(CheckpointError):
            replay(LETTERS, settings())
    done = replay(LETTERS, settings())
    assert (done.learned, done.dropped) == (0, FAR)
    assert LETTERS.read_bytes().endswith(b"{}\n")
    assert LETTERS.is_symlink()
    assert stat.S_IMODE(Path("kept.jsonl").stat().st_mode) == 0o640


def test_the_daemon_must_be_stopped_and_its_settings_and_checkpoint_be_there(rejected):
    before = LETTERS.read_bytes()
    with FolderLock("state"), pytest.raises(CheckpointError):
        replay(LETTERS, settings())
    for flag in ("model.n_experts=3", "checkpoint.dir=nowhere"):
        with pytest.raises(CheckpointError):
            replay(LETTERS, settings("1e12", "csv", flag))
    assert LETTERS.read_bytes() == before
    assert not Path("nowhere").exists()


# --- looking --------------------------------------------------------------------------------------------------------


def test_letters_are_counted_by_reason_and_stage_and_another_file_is_not_taken_for_theirs(rejected):
    found = look_into(LETTERS, show=3, reason=None)
    counts = [("out_of_range", "validate", FAR), ("wrong_type", "decode", TEXT)]
    assert [tuple(count) for count in found.counts] == counts
    assert (found.unreadable, len(found.shown)) == (0, 3)
    found = look_into(LETTERS, show=100, reason="wrong_type")
    assert [tuple(count) for count in found.counts] == counts[1:]
    assert reasons(*found.shown) == {"wrong_type": TEXT}
    Path("other").touch()
    assert look_into(Path("other")).counts == []
    for content in (b"a,b\n1,2\n", b'{"a": 1}\n', b"[" * 100_000 + b"\n"):
        Path("other").write_bytes(content)
        with pytest.raises(SourceError):
            look_into(Path("other"))


def test_nothing_in_a_letter_steers_the_terminal():
    letter = DeadLetter({"path": "a\x1b[2J"}, "decode", "x", "\x07 \u202e", b"\x1b]0;title\x07\xff" + b"z" * 1000)
    shown = module.describe(letter)
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown.splitlines()) == 3
    assert shown.endswith("(1,011 bytes)")
