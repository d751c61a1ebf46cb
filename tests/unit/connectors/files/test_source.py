"""Files that are read to their end."""

import contextlib
import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import expand, matches_pattern
from tests.unit.connectors.reading import append, drain, read, records, source, through_json, warnings

# --- finding files --------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")  # without a writer
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone")
    for name in ("no*.csv", ".", "pipe.csv", "link.csv"):
        with pytest.raises(SourceError):
            source(tmp_path / name, format="csv").seek(None)


def test_formats_go_by_extension_and_files_by_name_also_with_the_characters_of_a_glob(write, tmp_path):
    for name in ("a.jsonl", "a.ndjson", "a.JSON"):
        (batch,) = read(write(name, b"\xef\xbb\xbf{}\n"))
        assert (batch.format, batch.columns, records([batch])) == ("jsonl", None, [b"{}"])
    write("b.csv", b"x\n2\n")
    path = write("a[1].csv", b"y\n1\n")
    batches = read(tmp_path / "*.csv")
    assert [(batch.columns, *records([batch])) for batch in batches] == [(("y",), b"1"), (("x",), b"2")]
    assert records(read(path)) == [b"1"]


NAMED = {
    "logs/*.csv": {"./logs/a.csv": True, "logs/b/a.csv": False, "logs/.a.csv": False},
    "logs/.*.csv": {"logs/.a.csv": True},
    "logs/**/*.csv": {"logs/a.csv": True},
    "logs/**": {"logs/../../etc/passwd": False},
    ".*/a.csv": {"../a.csv": False},
    "../*.csv": {"../a.csv": True},
}


def test_a_pattern_matches_files_below_its_folder_that_are_not_hidden():
    for pattern, paths in NAMED.items():
        assert {path: matches_pattern(pattern, path) for path in paths} == paths


@pytest.fixture(params=["symbolic", "hard"])
def link(request):
    """Gives a file another name."""
    return Path.symlink_to if request.param == "symbolic" else Path.hardlink_to


def test_each_file_is_read_under_one_name_whatever_links_there_are(write, tmp_path, link, caplog):
    link(tmp_path / "a.csv", write("z.csv", b"a\n1\n"))
    write("m.csv", b"a\n2\n")
    write("n.csv", b"a\n2\n")  # equal content makes no link
    batches = read(tmp_path / "*.csv")
    assert read(tmp_path / "*.csv", through_json(batches[-1].end)) == []
    # The name that is no symbolic link, else the first one.
    first, content = ("m.csv", b"221") if (tmp_path / "a.csv").is_symlink() else ("a.csv", b"122")
    assert b"".join(records(batches)) == content
    assert batches[0].location(0)["path"] == str(tmp_path / first)
    warning, *_ = warnings(caplog)
    assert all(name in warning for name in ("a.csv", "z.csv"))


def test_below_a_folder_that_links_to_itself_each_file_is_read_once(write, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path)
    Path.symlink_to(tmp_path / "b.csv", write("a.csv", b"a\n1\n"))
    assert records(read(tmp_path / "**" / "*.csv")) == [b"1"]


def test_a_finished_file_under_another_name_is_not_read_again(write, tmp_path):
    path, other = write("m.csv", b"a\n1\n"), tmp_path / "n.csv"
    other.hardlink_to(path)
    end = through_json(read(tmp_path / "*.csv")[-1].end)
    path.unlink()
    assert read(tmp_path / "*.csv", end) == []
    write("o.csv", b"a\n2\n")
    (batch,) = read(tmp_path / "*.csv", end)
    assert (records([batch]), batch.end["files"][0]["path"]) == ([b"2"], str(other))
    other.rename(tmp_path / "k.csv")
    assert read(tmp_path / "*.csv", through_json(batch.end)) == []
    append(tmp_path / "k.csv", b"3\n")
    assert records(read(tmp_path / "*.csv", through_json(batch.end))) == [b"3"]
    # The inode of a removed file is soon given to another one.
    (tmp_path / "k.csv").write_bytes(b"a\n4\n5\n")
    assert records(read(tmp_path / "*.csv", through_json(batch.end))) == [b"4", b"5"]


GROWN = {
    # content, what is appended: records of it, or nothing where it is an error
    (b"a\n1\n", b"2\n"): [b"2"],
    (b"a\n1\n", b"2"): [b"2"],
    (b"a\n1", b"\n2\n"): [b"2"],
    (b"a\n1", b"\r\n2\n"): [b"2"],
    (b"a\n1\r", b"\n2\n"): [b"2"],
    (b"a\n1", b"\n"): [],
    (b"a\n1", b"\r"): [],
    (b"a\n1", b"2\n"): None,
    (b"a\n1", b"\r2\n"): None,
    (b"a\n", b"1\n"): [b"1"],
    (b"a", b"\n1\n"): [b"1"],
    (b"a", b"b\n1\n"): None,
    (b"", b"a\n1\n"): [b"1"],
    (b"\xef\xbb\xbf", b"\na\n1\n"): [b"1"],
    (b'a\n"1\n2"\n', b'"3\n4"\n'): [b'"3\n4"'],
}


@pytest.mark.parametrize("is_renamed", [False, True])
def test_what_is_appended_to_a_finished_file_is_read_if_it_begins_a_line(write, tmp_path, is_renamed):
    for (content, more), expected in GROWN.items():
        write("b.csv", b"a\n9\n")  # read after it, and not again
        path = write("a.csv", content)
        position = through_json(read(tmp_path / "*.csv")[-1].end)
        if is_renamed:
            path = path.rename(tmp_path / "c.csv")
        append(path, more)
        if expected is None:
            with pytest.raises(SourceError, match=f"{path.name} grew .* had no line end at byte {len(content)} "):
                read(tmp_path / "*.csv", position)
        else:
            batches = read(tmp_path / "*.csv", position)
            assert records(batches) == expected, (content, more)
            if batches and len(batches[-1]):
                assert read(tmp_path / "*.csv", through_json(batches[-1].end)) == []
        path.unlink()


# --- records --------------------------------------------------------------------------------------------------------


def test_the_rest_of_a_record_that_is_too_long_is_no_record_and_takes_no_line_with_it(write):
    sizes = {"block_bytes": 4096, "max_record_bytes": 6000}
    path = write("a.csv", b"a,b\n" + b"1,2\n" * 3 + b"x" * 6000 + b"8,9\n" + b"3,4\n" * 3)
    batches = read(path, **sizes)
    sound = [batch.record(i) for batch in batches for i in range(len(batch)) if not batch.too_long]
    assert sound == [*[b"1,2"] * 3, *[b"3,4"] * 3]
    (marked,) = [batch for batch in batches if batch.too_long]
    assert (marked.location(0)["offset"], len(marked.record(0))) == (16, 6000)
    assert records(read(path, position=marked.end, **sizes)) == [b"3,4"] * 3
    # Although it seems to open a quote: that is only where the beginning was cut off.
    batches = read(write("b.csv", b'x\n"' + b"x" * 5998 + b'""' + b"x" * 7000 + b'"\n1\n2\n'), **sizes)
    assert [len(record) for record in records(batches)] == [6000, 1, 1]
    batches = read(write("c.csv", b"x\n" + (b"1" * 30 + b"\n2\n") * 9), max_record_bytes=10)
    assert records(batches) == [b"1" * 10, b"2"] * 9


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.fixture
def halfway(write, tmp_path):
    """Two files of 5,000 records, and the position within the second one."""
    for name in ("a.csv", "b.csv"):
        write(name, b"x\n" + b"".join(b"%d\n" % i for i in range(5000)))
    batches = read(tmp_path / "*.csv", block_bytes=4096)
    position = [batch.end for batch in batches if batch.origin.endswith("b.csv")][1]
    return through_json(position)


def test_finished_files_may_be_gone_new_ones_come_last_and_the_one_that_was_begun_may_have_grown_or_not(
    halfway, write, tmp_path
):
    expected = records(read(tmp_path / "*.csv", halfway))
    (tmp_path / "a.csv").unlink()
    write("0.csv", b"x\n7\n")  # before the others by name
    append(tmp_path / "b.csv", b"8\n")
    assert records(read(tmp_path / "*.csv", halfway)) == [*expected, b"8", b"7"]
    size = (tmp_path / "b.csv").stat().st_size
    os.truncate(tmp_path / "b.csv", size - len(b"99\n8\n"))  # beyond the position, within a record
    assert records(read(tmp_path / "*.csv", halfway)) == [*expected[:-1], b"49", b"7"]


def test_a_copy_of_the_file_or_a_relative_path_is_as_good(halfway, tmp_path, monkeypatch):
    expected = records(read(tmp_path / "*.csv", halfway))
    assert 0 < len(expected) < 5000
    monkeypatch.chdir(tmp_path)
    content = Path("b.csv").read_bytes()
    Path("b.csv").rename("old")
    Path("b.csv").write_bytes(content)
    assert records(read("./*.csv", halfway)) == expected


# --- trouble on the way ---------------------------------------------------------------------------------------------


@pytest.fixture
def begun(write):
    """A file of which one block has been read, its source, and that batch."""
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    with contextlib.closing(source(path, block_bytes=4096)) as opened:
        opened.seek(None)
        yield path, opened, opened.poll(0)


@pytest.mark.parametrize("content", [b"x\n1\n", b"y\n" + b"2\n" * 9500], ids=["shorter", "longer"])
def test_a_file_that_is_overwritten_while_it_is_read_is_an_error(begun, content):
    path, opened, _ = begun
    path.write_bytes(content)  # the same file
    with pytest.raises(SourceError):
        opened.poll(0)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_while_it_is_read_is_read_to_its_end_as_it_was(begun, write, replaced):
    path, opened, first = begun
    path.unlink()
    if replaced:
        write("other", b"y\n2\n").rename(path)
    batches = drain(opened, [first])
    assert records(batches) == [b"1"] * 9000
    assert batches[-1].end["files"][0]["done"]
    with pytest.raises(SourceError):
        read(path, batches[-1].end if replaced else None)


def test_a_file_replaced_before_its_turn_is_an_error(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n2\n")
    with contextlib.closing(source(tmp_path / "*.csv")) as opened:
        opened.seek(None)
        opened.poll(0)
        write("b.csv", b"y\n2\n")
        with pytest.raises(SourceError):
            opened.poll(0)


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    for number, retriable in ((errno.EMFILE, True), (errno.EACCES, False)):
        monkeypatch.setattr(os, "scandir", Mock(side_effect=OSError(number, os.strerror(number))))
        for pattern in ("*.csv", "**/*.csv"):
            with pytest.raises(SourceError) as failed:
                expand(str(tmp_path / pattern))
            assert failed.value.retriable == retriable
