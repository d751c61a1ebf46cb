import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe_connectors.files import follow
from tests.unit.connectors.reading import PIECES, append, placed, read, records, source, through_json, warnings


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch):
    monkeypatch.setattr(follow, "_CHECK_INTERVAL_SECONDS", 0.005)


@pytest.fixture
def opened():
    """Opens sources and closes them at the end."""
    sources = []

    def make(path, position=None, **settings):
        sources.append(source(path, follow=True, **settings))
        sources[-1].seek(through_json(position))
        return sources[-1]

    yield make
    for each in sources:
        each.close()


@pytest.fixture
def log(write):
    return write("log.jsonl", b"1\n")


def take(followed, count):
    """Batches that hold the next `count` records."""
    batches = []
    deadline = time.monotonic() + 10
    while sum(map(len, batches)) < count:
        assert time.monotonic() < deadline, f"only {records(batches)} came, of {count}"
        batch = followed.poll(0.1)
        if batch is not None:
            batches.append(batch)
    return batches


def taken(followed, count):
    return records(take(followed, count))


# --- growth ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=PIECES,
    cuts=st.lists(st.tuples(st.integers(0, 250), st.booleans()), max_size=6),
    block_bytes=st.integers(1, 60),
    max_record_bytes=st.integers(8, 60),
    format=st.sampled_from(["csv", "jsonl"]),
    dialect=st.sampled_from([{}, {"skip_lines": 3}, {"encoding": "shift_jis"}]),
)
def test_records_are_those_of_the_finished_file_wherever_a_writer_pauses_and_a_reader_restarts(
    tmp_path_factory, body, cuts, block_bytes, max_record_bytes, format, dialect
):
    dialect = dialect if format == "csv" or "encoding" in dialect else {}
    skipped = b"\n" * dialect.get("skip_lines", 0)
    content = skipped + b'y,z\nz"\n' + body
    folder = tmp_path_factory.mktemp("follow")
    (folder / "whole").write_bytes(content)
    sizes = {"format": format, "block_bytes": block_bytes, "max_record_bytes": max_record_bytes, **dialect}
    whole = read(folder / "whole", **sizes)
    log = folder / "log"
    log.write_bytes(b"")
    followed, found, before = source(log, follow=True, **sizes), [], 0
    followed.seek(None)
    for cut, restart in sorted((min(cut, len(content)), restart) for cut, restart in [*cuts, (len(content), True)]):
        append(log, content[before:cut])
        before = cut
        if restart:
            followed.close()
            followed = source(log, follow=True, **sizes)
            followed.seek(through_json(found[-1].end) if found else None)
        for _ in range(50):
            batch = followed.poll(0)
            if batch is not None:
                found.append(batch)
    log.rename(folder / "log.1")
    log.write_bytes(skipped + b"y,x\n9,9\n")  # only now is the last line of the first one complete
    while not any(place["rotation"] for place, *_ in placed(found)):
        found += take(followed, 1)
    followed.close()
    seen = [(place["offset"], *rest) for place, *rest in placed(found) if place["rotation"] == 0]
    assert seen == [(place["offset"], *rest) for place, *rest in placed(whole)]
    assert sum(batch.skipped for batch in found) == sum(batch.skipped for batch in whole)


def test_no_file_waits_for_another_one_that_never_pauses(write, opened, tmp_path):
    busy = write("a.jsonl", b"1\n" * 3000)
    write("b.jsonl", b"2\n")
    followed = opened(tmp_path / "*.jsonl", block_bytes=4096)
    found = []
    for _ in range(10):
        append(busy, b"1\n" * 3000)
        found += records([followed.poll(0)])
    assert b"2" in found


# --- rotation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("glob", ["log", "log*"])
def test_the_rest_of_a_rotated_file_comes_before_the_new_one(write, opened, tmp_path, glob):
    log = write("log", b"1\n")
    followed = opened(tmp_path / glob, format="jsonl")
    assert taken(followed, 1) == [b"1"]
    append(log, b"2\n")
    log.rename(tmp_path / "log.1")
    assert taken(followed, 1) == [b"2"]
    append(tmp_path / "log.1", b"3\n4")  # the writer has it open still
    assert taken(followed, 1) == [b"3"]
    write("log", b"")
    assert followed.poll(0.05) is None  # nothing is written to the new one yet
    append(tmp_path / "log.1", b"0\nlast")
    assert taken(followed, 1) == [b"40"]
    append(log, b"5\n")
    batches = take(followed, 2)
    assert records(batches) == [b"last", b"5"]
    assert batches[-1].location(0) == {"path": str(log), "rotation": 1, "offset": 0}
    assert followed.poll(0.05) is None


def test_rotation_may_continue_for_ever_and_files_that_are_gone_are_forgotten_and_closed(write, opened, tmp_path):
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    log, before = tmp_path / "log", descriptors()
    followed = opened(tmp_path / "log*", format="csv")
    sizes = []
    for i in range(6):
        for name in [f"log.{old}" for old in reversed(range(3))]:
            if (tmp_path / name).exists():
                (tmp_path / name).rename(tmp_path / f"log.{int(name[-1]) + 1}")
        if log.exists():
            log.rename(tmp_path / "log.0")
        (tmp_path / "log.3").unlink(missing_ok=True)
        write("log", b"x\n%d\n" % i)
        (batch,) = take(followed, 1)
        assert records([batch]) == [b"%d" % i]
        assert batch.location(0)["rotation"] == i
        sizes.append(len(batch.end["files"]))
    assert max(sizes) <= 5
    assert followed.poll(0.05) is None
    assert descriptors() <= before + 2  # also the last one before
    followed.close()
    assert descriptors() == before


def test_more_than_one_rotation_between_two_looks_is_reported(write, opened, tmp_path, caplog):
    log = write("log", b"1\n")
    followed = opened(log, format="jsonl")
    assert taken(followed, 1) == [b"1"]
    log.rename(tmp_path / "log.2")
    os.utime(write("log.1", b"2\n"), (time.time() + 5, time.time() + 5))
    write("log", b"3\n")
    assert taken(followed, 1) == [b"3"]
    assert [f"{log}.1" in message for message in warnings(caplog)] == [True]


# --- after a restart ------------------------------------------------------------------------------------------------


@pytest.fixture
def rotated(write, opened, tmp_path):
    """A position within a file that was rotated away since; the new one is there, too."""
    log = write("log", b"x\n" + b"1\n2\n3\n")
    followed = opened(log, format="csv", block_bytes=1)
    (batch,) = take(followed, 1)
    followed.close()
    log.rename(tmp_path / "elsewhere")
    append(tmp_path / "elsewhere", b"4\n5")
    write("log", b"y\n6\n")
    return batch.end


def test_a_rotated_file_is_found_again_and_finished_first(rotated, opened, tmp_path):
    batches = take(opened(tmp_path / "log", rotated, format="csv"), 5)
    assert records(batches) == [b"2", b"3", b"4", b"5", b"6"]
    assert [batch.columns for batch in batches] == [("x",), ("y",)]
    assert [batch.location(0)["rotation"] for batch in batches] == [0, 1]
    for batch, left in zip(batches, ([b"6"], []), strict=True):  # and each later position resumes where it should
        again = opened(tmp_path / "log", batch.end, format="csv")
        assert taken(again, len(left)) == left
        assert again.poll(0.02) is None
    (tmp_path / "log").unlink()  # the last line waits for the new file after a restart, too
    followed = opened(tmp_path / "log", rotated, format="csv")
    assert taken(followed, 3) == [b"2", b"3", b"4"]
    assert followed.poll(0.02) is None
    (tmp_path / "log").write_bytes(b"y\n6\n")
    assert taken(followed, 2) == [b"5", b"6"]


@pytest.mark.parametrize("there", [True, False])
def test_a_rotated_file_that_is_gone_is_an_error(rotated, opened, tmp_path, there, caplog):
    log = tmp_path / "log"
    (tmp_path / "elsewhere").unlink()
    if there:
        rotated["files"][0]["inode"] = log.stat().st_ino  # which is free to be given to another file
    else:
        log.unlink()
    with pytest.raises(SourceError):
        opened(log, rotated, format="csv")
    followed = opened(log, rotated, format="csv", on_truncate="restart")
    assert any("on_truncate" in message for message in warnings(caplog))
    log.write_bytes(b"y\n6\n")
    assert taken(followed, 1) == [b"6"]


# --- loss -----------------------------------------------------------------------------------------------------------


def truncate(path):
    os.truncate(path, 0)


def truncate_and_grow(path):
    path.write_bytes(b"7\n" * 50)


def overwrite(path):
    path.write_bytes(path.read_bytes().replace(b"2", b"9"))


LEFT = {truncate: [b"8"], truncate_and_grow: [b"7"] * 50 + [b"8"], overwrite: [b"1", b"9", b"3", b"8"]}


@pytest.mark.parametrize(
    ("damage", "running"), [(truncate, True), (truncate, False), (truncate_and_grow, True), (overwrite, False)]
)
@pytest.mark.parametrize("on_truncate", ["stop", "restart"])
def test_what_was_lost_is_an_error_or_left_behind(opened, log, damage, running, on_truncate, caplog):
    followed = opened(log, on_truncate=on_truncate)
    append(log, b"2\n3")
    position = take(followed, 2)[-1].end
    damage(log)
    if on_truncate == "stop":
        with pytest.raises(SourceError):
            followed.poll(5) if running else opened(log, position)
        if running:
            append(log, b"1\n2\n3\n4\n")  # a loss stays one when the file grows again
            with pytest.raises(SourceError):
                followed.poll(5)
        return
    if not running:
        followed = opened(log, position, on_truncate="restart")
    append(log, b"\n8\n")
    found = take(followed, len(LEFT[damage]))
    assert records(found) == LEFT[damage]
    assert found[0].location(0)["rotation"] == 1
    assert any("on_truncate" in message for message in warnings(caplog))


# --- what cannot be seen for a while --------------------------------------------------------------------------------


def no_descriptor(*arguments, **options):
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_folder_that_cannot_be_listed_for_a_while_has_nothing_read_twice(write, opened, tmp_path, monkeypatch):
    """Not even what was rotated away, and keeps a name that is looked for."""
    path = write("app.jsonl", b"1\n")
    followed = opened(tmp_path / "app*")
    assert taken(followed, 1) == [b"1"]
    path.rename(tmp_path / "app-1.jsonl")
    write("app.jsonl", b"2\n")
    assert taken(followed, 1) == [b"2"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", no_descriptor)
        patched.setattr(Path, "iterdir", no_descriptor)
        # And a file that ends meanwhile is not forgotten.
        (tmp_path / "app.jsonl").rename(tmp_path / "app-2.jsonl")
        write("app.jsonl", b"3\n")
        for _ in range(500):  # until it has looked
            assert followed.poll(0.02) is None
            if not followed.status().connected:
                break
        assert not followed.status().connected
    assert taken(followed, 1) == [b"3"]
    assert followed.status().connected
    write("app-3.jsonl", b"4\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", no_descriptor)
        assert followed.poll(0.03) is None
    assert taken(followed, 1) == [b"4"]
    assert followed.poll(0.05) is None


def test_a_removed_file_is_waited_for_and_times_of_files_may_jump(write, opened, log):
    followed = opened(log)
    assert taken(followed, 1) == [b"1"]
    log.unlink()
    assert followed.poll(0.03) is None
    write("new", b"").rename(log)
    for i, at in enumerate((0, 4_000_000_000, 1, 2_000_000_000)):
        append(log, b"%d\n" % i)
        os.utime(log, (at, at))
        assert taken(followed, 1) == [b"%d" % i]
