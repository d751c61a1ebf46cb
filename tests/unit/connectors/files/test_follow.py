import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from streammoe.errors import SourceError
from streammoe_connectors.files import follow
from streammoe_connectors.files.listing import digest
from streammoe_connectors.files.source import FileSource
from tests.unit.connectors.reading import placed, read, records, source, through_json, warnings


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch):
    monkeypatch.setattr(follow, "_LOOK_SECONDS", 0.005)


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


def append(path, data):
    with path.open("ab") as stream:
        stream.write(data)


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


# --- settings -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_followed_is_an_error_of_the_settings():
    wrong = [{"format": "parquet"}, {"path": "*.csv.gz"}, {"path": "a.PQ"}, {"on_truncate": "ignore"}, {"follow": 1}]
    for more in (*wrong, {"follow": False, "on_truncate": "restart"}):
        with pytest.raises(ValidationError):
            FileSource.Settings(**({"kind": "file", "path": "x.csv", "follow": True} | more))


# --- growth ---------------------------------------------------------------------------------------------------------


def test_header_and_record_wait_until_they_are_complete(write, opened):
    for i, parts in enumerate(
        (
            (b"", b"x,", b'y\n1,"a\n', b'b"\n'),
            (b"\xef\xbb", b"\xbfx,y\n", b"1,", b'"a\nb"', b"\n"),
            (b"x,y", b"\n", b'1,"a', b'\nb"\r', b"\n"),
        )
    ):
        path = write(f"{i}.csv", parts[0])
        followed = opened(path)
        for part in parts[1:]:
            assert followed.poll(0.01) is None
            append(path, part)
        (batch,) = take(followed, 1)
        assert batch.columns == ("x", "y")
        assert records([batch]) == [b'1,"a\nb"']
        assert {**batch.place(0), "offset": 0} == {"path": str(path), "rotation": 0, "offset": 0}


def test_a_stray_quote_delays_no_more_than_the_longest_record_and_blank_lines_are_counted_later(write, opened):
    path = write("a.csv", b'x,y\n1,"a\n' + b"2,b\n" * 10)
    followed = opened(path, max_record_bytes=60)
    assert followed.poll(0.01) is None
    append(path, b"2,b\n" * 10)
    assert taken(followed, 21)[:2] == [b'1,"a', b"2,b"]
    append(path, b"\n\n")
    assert followed.poll(0.01) is None
    append(path, b"1,c\n\n")
    assert [batch.skipped for batch in take(followed, 1)] == [3]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.lists(
        st.sampled_from([b"1,2\n", b"3,4\r\n", b"\n", b'5,"a\nb"\n', b'"', b"z" * 30, b"9"]), max_size=30
    ).map(b"".join),
    cuts=st.lists(st.tuples(st.integers(0, 250), st.booleans()), max_size=6),
    block_bytes=st.integers(1, 60),
    max_record_bytes=st.integers(8, 60),
    format=st.sampled_from(["csv", "jsonl"]),
)
def test_records_are_those_of_the_finished_file_wherever_a_writer_pauses_and_a_reader_restarts(
    tmp_path_factory, body, cuts, block_bytes, max_record_bytes, format
):
    content = b"x,y\n" + body
    folder = tmp_path_factory.mktemp("follow")
    (folder / "whole").write_bytes(content)
    sizes = {"format": format, "block_bytes": block_bytes, "max_record_bytes": max_record_bytes}
    expected = [(place["offset"], *rest) for place, *rest in placed(read(folder / "whole", **sizes))]
    log = folder / "log"
    log.write_bytes(b"")
    followed, position, found, before = None, None, [], 0
    for cut, restart in [*sorted((min(cut, len(content)), restart) for cut, restart in cuts), (len(content), True)]:
        append(log, content[before:cut])
        before = cut
        if followed is None or restart:
            if followed is not None:
                followed.close()
            followed = source(log, follow=True, **sizes)
            followed.seek(through_json(position))
        for _ in range(50):
            batch = followed.poll(0)
            if batch is not None:
                found.append(batch)
                position = batch.end
    log.rename(folder / "log.1")
    log.write_bytes(b"another,header\n")  # only now is the last line of the first one complete
    deadline = time.monotonic() + 10
    while len(records(found)) < len(expected) and time.monotonic() < deadline:
        batch = followed.poll(0.01)
        if batch is not None:
            found.append(batch)
    followed.close()
    seen = [(place["offset"], *rest) for place, *rest in placed(found) if place["rotation"] == 0]
    assert seen == expected


def test_new_files_are_waited_for_and_read_after_the_known_ones(write, opened, tmp_path):
    followed = opened(tmp_path / "*.csv")
    write("b.csv", b"x\n1\n")
    assert taken(followed, 1) == [b"1"]
    write("c.csv", b"x\n3\n")
    write("a.csv", b"x\n2\n")
    assert taken(followed, 2) == [b"2", b"3"]
    append(tmp_path / "b.csv", b"4\n")
    assert taken(followed, 1) == [b"4"]


def test_no_file_waits_for_another_one_that_never_pauses(write, opened, tmp_path):
    busy = write("a.jsonl", b"1\n" * 3000)
    write("b.jsonl", b"2\n")
    followed = opened(tmp_path / "*.jsonl", block_bytes=4096)
    found = []
    for _ in range(10):
        append(busy, b"1\n" * 3000)
        found += records([followed.poll(0)])
    assert b"2" in found


def test_what_cannot_be_followed_is_an_error(write, opened, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(SourceError):
        opened(tmp_path / "*.csv")
    with pytest.raises(SourceError):
        opened(tmp_path / "a.csv", {"kind": "kafka"})
    path = write("a.jsonl", b"1\n2\n")
    position = take(opened(path, format="jsonl"), 2)[-1].end
    data = b"\x1f\x8b" + b"\0" * 20  # compressed since
    write("a.jsonl", data)
    file = {**position["files"][0], "head_bytes": len(data), "head_sha256": digest(data)}
    with pytest.raises(SourceError):
        opened(path, {"kind": "file", "files": [file]}, format="jsonl")


def test_compressed_files_among_others_are_reported_once_and_left(write, opened, tmp_path, caplog):
    write("a.csv.2.gz", b"\x1f\x8b")
    write("a.csv", b"x\n1\n")
    followed = opened(tmp_path / "a.csv*", format="csv")
    assert taken(followed, 1) == [b"1"]
    followed.poll(0.05)
    assert len(warnings(caplog)) == 1


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
    assert followed.poll(0.05) is None  # nobody writes to the new one yet
    append(tmp_path / "log.1", b"0\nlast")
    assert taken(followed, 1) == [b"40"]
    append(log, b"5\n")
    batches = take(followed, 2)
    assert records(batches) == [b"last", b"5"]
    assert batches[-1].place(0) == {"path": str(log), "rotation": 1, "offset": 0}
    assert followed.poll(0.05) is None


def test_rotation_may_continue_for_ever(write, opened, tmp_path):
    log = tmp_path / "log"
    followed = opened(tmp_path / "log*", format="csv")
    sizes = []
    for i in range(6):
        for old in reversed(range(3)):
            name = tmp_path / f"log.{old}"
            if name.exists():
                name.rename(tmp_path / f"log.{old + 1}")
        if log.exists():
            log.rename(tmp_path / "log.0")
        (tmp_path / "log.3").unlink(missing_ok=True)
        write("log", b"x\n%d\n" % i)
        (batch,) = take(followed, 1)
        assert records([batch]) == [b"%d" % i]
        assert batch.place(0)["rotation"] == i
        sizes.append(len(batch.end["files"]))
    assert max(sizes) <= 5  # those that are gone are forgotten
    assert followed.poll(0.05) is None


def test_more_than_one_rotation_between_two_looks_is_reported(write, opened, tmp_path, caplog):
    log = write("log", b"1\n")
    followed = opened(log, format="jsonl")
    assert taken(followed, 1) == [b"1"]
    log.rename(tmp_path / "log.2")
    os.utime(write("log.1", b"2\n"), (time.time() + 5, time.time() + 5))
    write("log", b"3\n")
    assert taken(followed, 1) == [b"3"]
    assert [f"{log}.1" in message for message in warnings(caplog)] == [True]


def test_what_comes_too_late_is_reported(write, opened, tmp_path, caplog):
    log = write("log", b"1\n")
    followed = opened(log, format="jsonl")
    assert taken(followed, 1) == [b"1"]
    log.rename(tmp_path / "log.1")
    write("log", b"2\n")
    assert taken(followed, 1) == [b"2"]
    append(tmp_path / "log.1", b"late\n")
    deadline = time.monotonic() + 10
    while not warnings(caplog) and time.monotonic() < deadline:
        assert followed.poll(0.05) is None
    followed.poll(0.05)
    assert len(warnings(caplog)) == 1


def test_another_file_or_link_renamed_over_it_is_a_rotation(write, opened, tmp_path):
    log = write("log", b"1\n")
    followed = opened(log, format="jsonl")
    assert taken(followed, 1) == [b"1"]
    append(log, b"2\n")
    write("new", b"3\n").rename(log)
    assert taken(followed, 2) == [b"2", b"3"]
    write("tuesday", b"4\n")
    (tmp_path / "next").symlink_to("tuesday")
    (tmp_path / "next").rename(log)
    assert taken(followed, 1) == [b"4"]


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
    followed = opened(tmp_path / "log", rotated, format="csv")
    batches = take(followed, 5)
    assert records(batches) == [b"2", b"3", b"4", b"5", b"6"]
    assert [batch.columns for batch in batches] == [("x",), ("y",)]
    assert [batch.place(0)["rotation"] for batch in batches] == [0, 1]
    # And each later position resumes where it should.
    for batch in batches:
        left = [b"6"] if batch.columns == ("x",) else []
        again = opened(tmp_path / "log", batch.end, format="csv")
        assert taken(again, len(left)) == left
        assert again.poll(0.02) is None


def test_a_rotated_file_waits_for_the_new_one_after_a_restart_too(rotated, opened, tmp_path):
    (tmp_path / "log").unlink()
    followed = opened(tmp_path / "log", rotated, format="csv")
    assert taken(followed, 3) == [b"2", b"3", b"4"]
    assert followed.poll(0.02) is None
    (tmp_path / "log").write_bytes(b"y\n6\n")
    assert taken(followed, 2) == [b"5", b"6"]


@pytest.mark.parametrize("there", [True, False])
def test_a_rotated_file_that_is_gone_is_an_error(rotated, opened, tmp_path, there, caplog):
    (tmp_path / "elsewhere").rename(tmp_path.parent / f"{tmp_path.name}-other-folder")
    if not there:
        (tmp_path / "log").unlink()
    with pytest.raises(SourceError):
        opened(tmp_path / "log", rotated, format="csv")
    followed = opened(tmp_path / "log", rotated, format="csv", on_truncate="restart")
    assert any("on_truncate" in message for message in warnings(caplog))
    (tmp_path / "log").write_bytes(b"y\n6\n")
    assert taken(followed, 1) == [b"6"]


def test_a_new_file_that_was_given_the_old_ones_inode_is_not_taken_for_it(rotated, opened, tmp_path):
    log = tmp_path / "log"
    (tmp_path / "elsewhere").unlink()
    position = through_json(rotated)
    position["files"][0]["inode"] = log.stat().st_ino
    with pytest.raises(SourceError):
        opened(log, position, format="csv")


def test_a_copy_under_the_same_path_is_as_good(write, opened, tmp_path):
    log = write("log", b"1\n2\n")
    (batch,) = take(opened(log, format="jsonl"), 2)
    log.rename(tmp_path / "old")
    write("log", b"1\n2\n3\n")
    (tmp_path / "old").unlink()
    followed = opened(log, batch.end, format="jsonl")
    assert taken(followed, 1) == [b"3"]
    assert followed.poll(0.05) is None
    append(log, b"4\n")
    (batch,) = take(followed, 1)
    assert records([batch]) == [b"4"]
    assert batch.place(0)["rotation"] == 0
    assert batch.end["files"][0]["inode"] == log.stat().st_ino


def test_a_restart_leaves_files_alone_that_are_read_under_another_path(write, opened, tmp_path):
    write("log", b"2\n")
    write("log.1", b"1\n")
    end = through_json(take(opened(tmp_path / "log*", format="jsonl"), 2)[-1].end)
    (tmp_path / "log.1").unlink()
    (tmp_path / "log").rename(tmp_path / "log.1")
    write("log", b"3\n")
    followed = opened(tmp_path / "log*", end, format="jsonl", on_truncate="restart")
    assert taken(followed, 1) == [b"3"]
    assert followed.poll(0.05) is None


def test_the_fingerprint_of_a_short_file_grows_with_it(write, opened):
    log = write("log", b"1\n")
    followed = opened(log, format="jsonl")
    seen = []
    for size in (1, 30, 5000):
        seen.append(take(followed, 1)[-1].end["files"][0])
        append(log, b"z" * size + b"\n")
    take(followed, 1)
    content = log.read_bytes()
    assert [file["head_bytes"] for file in seen] == [2, 4, 35]
    assert all(digest(content[: file["head_bytes"]]) == file["head_sha256"] for file in seen)
    for file in seen:  # each of them still fits
        assert opened(log, {"kind": "file", "files": [file]}, format="jsonl").poll(1) is not None


def test_following_can_begin_and_end_with_any_position(write, opened, tmp_path):
    path = write("a.csv", b"x\n1\n2")
    end = read(path)[-1].end
    append(path, b"34\n5\n")
    followed = opened(path, end)
    assert taken(followed, 1) == [b"5"]  # the rest of a line that was taken for a record is none
    path.rename(tmp_path / "a.csv.1")
    write("a.csv", b"x\n6\n")
    end = through_json(take(followed, 1)[-1].end)
    append(path, b"7\n")
    assert records(read(path, end)) == [b"7"]


# --- loss -----------------------------------------------------------------------------------------------------------


def truncate(path):
    os.truncate(path, 0)


def truncate_and_grow(path):
    os.truncate(path, 0)
    append(path, b"7\n" * 50)


def overwrite(path):
    path.write_bytes(path.read_bytes().replace(b"1", b"9"))


@pytest.mark.parametrize(
    ("damage", "running"), [(truncate, True), (truncate, False), (truncate_and_grow, True), (overwrite, False)]
)
def test_what_was_lost_is_an_error_or_left_behind(write, opened, damage, running, caplog):
    log = write("log", b"1\n2\n3")
    for on_truncate in ("stop", "restart"):
        log.write_bytes(b"1\n2\n3")
        followed = opened(log, format="jsonl", on_truncate=on_truncate)
        position = take(followed, 2)[-1].end
        damage(log)
        if on_truncate == "stop":
            with pytest.raises(SourceError):
                followed.poll(5) if running else opened(log, position, format="jsonl")
            continue
        if not running:
            followed = opened(log, position, format="jsonl", on_truncate="restart")
        append(log, b"\n8\n")
        found = take(followed, 1)
        expected = {truncate: [b"8"], truncate_and_grow: [b"7"] * 50 + [b"8"], overwrite: [b"9", b"2", b"3", b"8"]}
        while len(records(found)) < len(expected[damage]):
            found += take(followed, 1)
        assert records(found) == expected[damage]
        assert found[0].place(0)["rotation"] == 1
        assert any("on_truncate" in message for message in warnings(caplog))


def test_a_loss_stays_one_when_the_file_grows_again(write, opened):
    log = write("log", b"1\n2\n3\n")
    followed = opened(log, format="jsonl")
    take(followed, 3)
    os.truncate(log, 2)
    for _ in range(2):
        with pytest.raises(SourceError):
            followed.poll(5)
        append(log, b"2\n3\n4\n")


# --- with a writer at work ------------------------------------------------------------------------------------------

WRITER = """
import os, sys, time
path, count, seen = sys.argv[1], int(sys.argv[2]), sys.argv[3]
stream = open(path, "ab", buffering=0)
for i in range(count):
    line = b'{"i": %d, "pad": "%s"}\\n' % (i, b"z" * (i % 97))
    half = len(line) // 2
    stream.write(line[:half])
    stream.write(line[half:])
    if i % 500 == 499:
        while int(open(seen).read() or 0) < i - 400:  # rotations that nobody could see are another matter
            time.sleep(0.001)
        os.rename(path, f"{path}.{i}")
        stream.write(line)  # what a process does that has not heard of the rotation yet
        stream.close()
        stream = open(path, "ab", buffering=0)
    if i % 50 == 0:
        time.sleep(0.002)
"""


def test_a_writer_that_rotates_while_readers_are_killed_and_start_again(tmp_path, opened):
    log, seen, count = tmp_path / "log", tmp_path / "seen", 4000
    seen.write_text("0")
    expected = [i for i in range(count) for _ in range(2 if i % 500 == 499 else 1)]
    found, position = [], None
    with subprocess.Popen([sys.executable, "-c", WRITER, str(log), str(count), str(seen)]) as writer:
        deadline = time.monotonic() + 60
        while len(found) < len(expected) and time.monotonic() < deadline:
            followed = opened(log, position, format="jsonl")
            for _ in range(7):
                batch = followed.poll(0.05)
                if batch is not None:
                    found += [int(record[6 : record.index(b",")]) for record in records([batch])]
                    position = through_json(batch.end)
                    seen.write_text(str(found[-1]))
            followed.close()
        if len(found) < len(expected):
            writer.kill()
    assert found == expected
    assert writer.returncode == 0


def test_descriptors_are_closed(write, opened, tmp_path):
    log = write("log", b"1\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    followed = opened(tmp_path / "log", format="jsonl")
    take(followed, 1)
    for i in range(5):
        log.rename(tmp_path / f"log.{i}")
        write("log", b"1\n")
        take(followed, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2  # also the last one before
    followed.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- what cannot be seen for a while --------------------------------------------------------------------------------


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
        for _ in range(3):
            assert followed.poll(0.02) is None
        assert not followed.status().connected
    assert taken(followed, 1) == [b"3"]
    assert followed.status().connected
    assert followed.poll(0.1) is None


def no_descriptor(*arguments):
    raise OSError(errno.EMFILE, "Too many open files")


def test_new_files_are_opened_once_they_can_be(write, opened, tmp_path, monkeypatch):
    write("a.jsonl", b"1\n")
    followed = opened(tmp_path / "*.jsonl")
    assert taken(followed, 1) == [b"1"]
    write("b.jsonl", b"2\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", no_descriptor)
        assert followed.poll(0.03) is None
    assert taken(followed, 1) == [b"2"]


def test_a_removed_file_is_waited_for_and_times_of_files_may_jump(write, opened):
    path = write("a.jsonl", b"0\n")
    followed = opened(path)
    assert taken(followed, 1) == [b"0"]
    path.unlink()
    assert followed.poll(0.03) is None
    write("new", b"").rename(path)
    for i, at in enumerate((0, 4_000_000_000, 1, 2_000_000_000)):
        append(path, b"%d\n" % i)
        os.utime(path, (at, at))
        assert taken(followed, 1) == [b"%d" % i]
