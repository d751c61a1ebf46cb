import errno
import logging
import os
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import expand, is_named
from streammoe_connectors.files.source import FileSource
from tests.unit.connectors.reading import drain, read, records, source, through_json

# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": 3},
        {"format": "xml"},
        {"block_bytes": 4095},
        {"max_record_bytes": 0},
        {"block_rows": 0},
        {"unknown": 1},
    ],
)
def test_settings_are_strict(wrong):
    with pytest.raises(ValidationError):
        FileSource.Settings(**({"kind": "file", "path": "x.csv"} | wrong))


# --- finding files --------------------------------------------------------------------------------------------------


def test_nothing_that_matches_says_what_to_do(tmp_path):
    with pytest.raises(SourceError, match=r"source\.path .*no\*\.csv.* matches no file; correct"):
        source(tmp_path / "no*.csv").seek(None)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(SourceError, match="not a regular file"):
        source(tmp_path, format="csv").seek(None)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(SourceError, match="not a regular file"):
        source(tmp_path / "pipe.csv").seek(None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused_before_any_is_read(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n1\n").chmod(stat.S_IWUSR)
    with pytest.raises(SourceError, match=r"b\.csv cannot be read: Permission denied"):
        source(tmp_path / "*.csv").seek(None)


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"a\.csv cannot be read"):
        source(tmp_path / "a.csv").seek(None)


def test_an_unknown_extension_needs_a_format(write):
    path = write("data.txt", b"x\n1\n")
    with pytest.raises(SourceError, match=r"'\.txt'.*set source\.format"):
        source(path).seek(None)
    assert records(read(path, format="csv")) == [b"1"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.JSON"])
def test_extensions_of_jsonl(write, name):
    (batch,) = read(write(name, b"{}\n"))
    assert (batch.format, batch.columns) == ("jsonl", None)


def test_a_glob_is_read_in_name_order(write, tmp_path):
    write("b.csv", b"x\n2\n")
    write("a.csv", b"y\n1\n")
    batches = read(tmp_path / "*.csv")
    assert records(batches) == [b"1", b"2"]
    assert [batch.columns for batch in batches] == [("y",), ("x",)]


def test_a_name_with_the_characters_of_a_glob_is_a_name(write):
    assert records(read(write("a[1].csv", b"x\n1\n"))) == [b"1"]


# --- records --------------------------------------------------------------------------------------------------------


def test_records_places_and_header(write):
    path = write("a.csv", b'\xef\xbb\xbfx,"the y"\r\n1,2\r\n3,4')
    (batch,) = read(path)
    assert batch.columns == ("x", "the y")
    assert records([batch]) == [b"1,2", b"3,4"]
    assert [batch.place(i) for i in (0, 1)] == [{"path": str(path), "offset": 14}, {"path": str(path), "offset": 19}]
    assert batch.origin == str(path)
    assert batch.end["files"][0]["done"]


def test_a_byte_order_mark_before_jsonl_is_passed_over(write):
    assert records(read(write("a.jsonl", b"\xef\xbb\xbf{}\n"))) == [b"{}"]


@pytest.mark.parametrize("header", [b"a,,b\n", b"a,a\n", b"\xff\n", b'"a\n1\n', b"\n1\n", b"a,b\r1,2\r", b"a, \n"])
def test_a_header_must_name_every_column_once(write, header):
    with pytest.raises(SourceError, match=r"a\.csv .*must name its columns"):
        read(write("a.csv", header))


def test_a_header_may_be_longer_than_a_block_but_not_than_a_record(write):
    names = [f"column{i}" for i in range(1000)]
    path = write("a.csv", ",".join(names).encode() + b"\n" + b"1," * 999 + b"1\n")
    (batch,) = read(path, block_bytes=4096)
    assert batch.columns == tuple(names)
    with pytest.raises(SourceError, match="max_record_bytes"):
        read(path, block_bytes=4096, max_record_bytes=5000)


def test_line_ends_in_quotes_belong_to_the_record_in_csv_only(write):
    body = b'1,"a\nb"\n2,c\n'
    assert records(read(write("a.csv", b"x,y\n" + body))) == [b'1,"a\nb"', b"2,c"]
    assert records(read(write("a.jsonl", body))) == [b'1,"a', b'b"', b"2,c"]


def test_a_stray_quote_costs_one_record(write):
    body = b'1,"a\n' + b"2,b\n" * 100
    assert records(read(write("a.csv", b"x,y\n" + body), max_record_bytes=50)) == [b'1,"a'] + [b"2,b"] * 100
    assert records(read(write("b.csv", b"x,y\n" + body))) == [b'1,"a'] + [b"2,b"] * 100


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_of_a_record_that_is_too_long_only_the_beginning_is_given_and_marked(write, end):
    batches = read(write("a.jsonl", b"x" * 20_000 + end), block_bytes=4096, max_record_bytes=6000)
    assert [(len(batch.record(0)), batch.too_long) for batch in batches] == [(6000, True)]


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_the_tail_of_a_record_that_is_too_long_is_no_record(write, block_bytes):
    body = b"1,2\n" * 3 + b"x" * 6000 + b"8,9\n" + b"3,4\n" * 3
    path = write("a.csv", b"a,b\n" + body)
    batches = read(path, block_bytes=block_bytes, max_record_bytes=6000)
    assert [batch.record(i) for batch in batches for i in range(len(batch)) if not batch.too_long] == [
        *[b"1,2"] * 3,
        *[b"3,4"] * 3,
    ]
    (marked,) = [batch for batch in batches if batch.too_long]
    assert marked.place(0)["offset"] == 16
    assert records(read(path, block_bytes=block_bytes, max_record_bytes=6000, position=marked.end)) == [b"3,4"] * 3


def test_a_finished_file_that_was_replaced_is_not_passed_over(write):
    path = write("a.jsonl", b"1\n2\n")
    end = read(path)[-1].end
    write("a.jsonl", b"3\n4\n5\n")
    with pytest.raises(SourceError, match="replaced"):
        read(path, position=end)
    write("a.jsonl", b"1\n")
    with pytest.raises(SourceError, match="replaced"):
        read(path, position=end)


def test_a_record_longer_than_a_block(write):
    long = b"x" * 50_000
    batches = read(write("a.jsonl", b"1\n" + long + b"\n2\n"), block_bytes=4096)
    assert records(batches) == [b"1", long, b"2"]


def test_blank_lines_are_counted_and_keep_the_places_of_others(write):
    (batch,) = read(write("a.jsonl", b"\n1\n \t\r\n2\n\n"))
    assert records([batch]) == [b"1", b"2"]
    assert batch.block == b"1\n2\n"
    assert [batch.place(i)["offset"] for i in (0, 1)] == [1, 7]
    assert batch.skipped == 3


def test_blank_lines_without_records_count_in_the_next_batch(write, tmp_path):
    write("a.jsonl", b"1\n" + b"\n" * 9000)
    write("b.jsonl", b"\n\n")
    write("c.jsonl", b"\n2\n")
    batches = read(tmp_path / "*.jsonl", block_bytes=4096)
    assert records(batches) == [b"1", b"2"]
    assert sum(batch.skipped for batch in batches) == 9003


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_the_rest_of_a_record_that_is_too_long_takes_no_line_with_it(write, block_bytes):
    """Although it seems to open a quote: that is only where the beginning was cut off."""
    long = b"x" * 5999 + b'""' + b"x" * 7000
    path = write("a.csv", b'x\n"' + long + b'"\n1\n2\n3"\n4\n')
    batches = read(path, block_bytes=block_bytes, max_record_bytes=6001)
    assert [len(record) for record in records(batches)] == [6001, 1, 1, 2, 1]
    assert [batch.too_long for batch in batches] == [True] + [False] * (len(batches) - 1)


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_blank_lines_after_the_last_record_of_all_are_counted(write, block_bytes):
    batches = read(write("a.jsonl", b"1\n" + b"\n" * 9000), block_bytes=block_bytes)
    assert records(batches) == [b"1"]
    assert sum(batch.skipped for batch in batches) == 9000
    assert batches[-1].end["files"][0]["done"]


@pytest.mark.parametrize("mark", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_wide_texts_are_told_by_their_mark(write, format, mark):
    """Before their first record is taken for nonsense, and all that follow."""
    content = ("\ufeff" if mark.endswith("be") else "").encode(mark) + "x,y\n1,2\n".encode(mark)
    with pytest.raises(SourceError, match="UTF-8, so convert it, such as"):
        read(write(f"a.{format}", content))


def test_very_many_columns_can_be_named(write):
    """To compare each with each would take minutes."""
    names = [f"c{i}" for i in range(100_000)]
    (batch,) = read(write("a.csv", ",".join(names).encode() + b"\n1\n"))
    assert batch.columns == tuple(names)
    with pytest.raises(SourceError, match="more than once: 'c7'"):
        read(write("b.csv", ",".join([*names, "c7"]).encode() + b"\n1\n"))


@pytest.mark.parametrize("content", [b"", b"x,y\n", b"x,y", b"\xef\xbb\xbfx\n", b"x\n\n \n"])
def test_files_without_records_are_passed_over(write, tmp_path, content):
    write("a.csv", content)
    write("b.csv", b"x\n1\n")
    assert records(read(tmp_path / "*.csv")) == [b"1"]
    assert records(read(tmp_path / "a.csv")) == []


def test_progress_reaches_the_whole(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n" + b"2\n" * 5000)
    opened = source(tmp_path / "*.csv", block_bytes=4096)
    opened.seek(None)
    assert opened.progress() == (0, 10_006)
    seen = []
    while not opened.finished:
        batch = opened.poll(0)
        opened.commit(batch.end, 1)
        seen.append(opened.progress())
    assert seen == sorted(seen)
    assert seen[-1] == (10_006, 10_006)
    opened.close()


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.fixture
def halfway(write, tmp_path):
    """Two files of 5,000 records, and the position within the second one."""
    for name in ("a.csv", "b.csv"):
        write(name, b"x\n" + b"".join(b"%d\n" % i for i in range(5000)))
    batches = read(tmp_path / "*.csv", block_bytes=4096)
    position = [batch.end for batch in batches if batch.origin.endswith("b.csv")][1]
    return through_json(position)


def test_reading_goes_on_in_the_middle_with_the_columns_of_the_header(halfway, tmp_path):
    whole = records(read(tmp_path / "b.csv"))
    batches = read(tmp_path / "*.csv", halfway)
    assert batches[0].columns == ("x",)
    assert 0 < len(records(batches)) < 5000
    assert records(batches) == whole[-len(records(batches)) :]


def test_a_position_at_the_end_has_nothing_left(write):
    path = write("a.csv", b"x\n1\n")
    opened = source(path)
    opened.seek(through_json(read(path)[-1].end))
    assert opened.finished
    assert opened.poll(0) is None


def test_finished_files_may_vanish(halfway, tmp_path):
    (tmp_path / "a.csv").unlink()
    assert read(tmp_path / "*.csv", halfway)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "removed"),
        (lambda path: os.truncate(path, 3000), "replaced"),
        (lambda path: os.truncate(path, 5000), "truncated"),
        (lambda path: path.write_bytes(b"x\n" + b"7\n" * 20_000), "replaced"),
    ],
)
def test_a_file_that_no_longer_holds_the_position_is_refused(halfway, tmp_path, damage, message):
    damage(tmp_path / "b.csv")
    with pytest.raises(SourceError, match=rf"b\.csv was ({message}).*fresh checkpoint folder"):
        source(tmp_path / "*.csv").seek(halfway)


def test_a_copy_of_the_file_is_as_good(halfway, tmp_path):
    expected = records(read(tmp_path / "*.csv", halfway))
    content = (tmp_path / "b.csv").read_bytes()
    (tmp_path / "b.csv").rename(tmp_path / "old")
    (tmp_path / "b.csv").write_bytes(content)
    assert records(read(tmp_path / "*.csv", halfway)) == expected


def test_a_relative_and_an_absolute_path_are_the_same_file(write, tmp_path, monkeypatch):
    write("a.csv", b"x\n1\n")
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path / "*.csv", through_json(read("./a.csv")[-1].end)) == []


def test_new_files_come_after_the_listed_ones_in_name_order(halfway, write, tmp_path, caplog):
    write("c.csv", b"x\nlast\n")
    write("0.csv", b"x\nfirst\n")
    with caplog.at_level(logging.INFO, "streammoe.source"):
        batches = read(tmp_path / "*.csv", halfway)
    assert records(batches)[-2:] == [b"first", b"last"]
    assert records(batches)[0] not in {b"first", b"last"}
    assert [name in caplog.text for name in ("0.csv", "c.csv", "b.csv")] == [True, True, False]


def test_an_unfinished_file_outside_the_new_glob_is_not_read(halfway, write, tmp_path):
    write("c.csv", b"x\nlast\n")
    with pytest.raises(SourceError, match=r"in the middle of '.*b\.csv', which source\.path .*; let the first"):
        source(tmp_path / "c*.csv").seek(halfway)


def test_a_finished_file_outside_the_glob_is_not_even_opened(halfway, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "a.csv").mkdir(parents=True)  # whoever opens it fails
    (finished, unfinished) = halfway["files"]
    position = {**halfway, "files": [{**finished, "path": str(elsewhere / "a.csv")}, unfinished]}
    opened = source(tmp_path / "b.csv")
    opened.seek(position)
    assert opened.progress()[1] == finished["size"] + Path(unfinished["path"]).stat().st_size


@pytest.mark.parametrize(
    "change",
    [
        {"path": 7},
        {"path": ""},
        {"path": "a\0b"},
        {"path": "\ud800"},
        {"offset": -1},
        {"offset": 1.5},
        {"offset": True},
        {"head_bytes": 1 << 62},
        {"head_sha256": None},
        {"inode": "1"},
        {"done": 1},
        {"size": -1},
        {"rotation": 1 << 63},
        {"more": 1},
    ],
    ids=str,
)
def test_a_position_that_nobody_wrote_is_refused(halfway, change, tmp_path):
    position = {**halfway, "files": [halfway["files"][0], {**halfway["files"][1], **change}]}
    with pytest.raises(SourceError, match="is not one of files: each must have its path"):
        source(tmp_path / "*.csv").seek(position)


@pytest.mark.parametrize("missing", ["path", "inode", "head_bytes", "head_sha256", "offset", "done"])
def test_a_position_that_lacks_something_is_refused(halfway, missing, tmp_path):
    entry = {name: value for name, value in halfway["files"][1].items() if name != missing}
    with pytest.raises(SourceError, match="is not one of files"):
        source(tmp_path / "*.csv").seek({**halfway, "files": [entry]})


@pytest.mark.parametrize(
    ("pattern", "path", "named"),
    [
        ("logs/*.csv", "logs/a.csv", True),
        ("logs/*.csv", "./logs/a.csv", True),
        ("logs/*.csv", "logs/b/a.csv", False),
        ("logs/*.csv", "logs/.a.csv", False),
        ("logs/.*.csv", "logs/.a.csv", True),
        ("logs/**/*.csv", "logs/a.csv", True),
        ("logs/**/*.csv", "logs/b/c/a.csv", True),
        ("logs/**/*.csv", "logs/../a.csv", False),
        ("logs/**", "logs/../../etc/passwd", False),
        ("*/a.csv", "../a.csv", False),
        (".*/a.csv", "../a.csv", False),
        ("../*.csv", "../a.csv", True),
        ("a[1].csv", "a[1].csv", True),
        ("a[1].csv", "a1.csv", True),
        ("logs/*.csv", "/etc/passwd", False),
    ],
)
def test_what_a_pattern_stands_for(pattern, path, named):
    assert is_named(pattern, path) is named


def test_growth_of_a_finished_file_is_told(halfway, tmp_path, caplog):
    with (tmp_path / "a.csv").open("ab") as stream:
        stream.write(b"more\n")
    source(tmp_path / "*.csv").seek(halfway)
    assert "grew by 5 bytes" in caplog.text


def test_a_position_of_another_kind_is_refused(write):
    with pytest.raises(SourceError, match="kind 'kafka'"):
        source(write("a.csv", b"x\n1\n")).seek({"kind": "kafka"})


# --- trouble on the way ---------------------------------------------------------------------------------------------


def test_a_file_that_shrinks_while_it_is_read_is_refused(write):
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    opened = source(path, block_bytes=4096)
    opened.seek(None)
    opened.poll(0)
    os.truncate(path, 100)
    with pytest.raises(SourceError, match="shorter while it was being read"):
        opened.poll(0)
    opened.close()


def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(write):
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    opened = source(path, block_bytes=4096)
    opened.seek(None)
    first = opened.poll(0)
    path.unlink()
    batches = drain(opened, [first])
    assert len(first) < 9000
    assert records(batches) == [b"1"] * 9000
    assert batches[-1].end["files"][0]["done"]
    opened.close()


def test_a_file_replaced_before_its_turn_is_refused(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n2\n")
    opened = source(tmp_path / "*.csv")
    opened.seek(None)
    opened.poll(0)
    write("b.csv", b"y\n2\n")
    with pytest.raises(SourceError, match="replaced"):
        opened.poll(0)
    opened.close()


def test_a_file_with_a_bad_header_stays_refused(write):
    opened = source(write("a.csv", b"x,x\n1,2\n"))
    opened.seek(None)
    for _ in range(2):
        with pytest.raises(SourceError, match="more than once"):
            opened.poll(0)
    opened.close()


def test_a_read_error_becomes_a_source_error(write, monkeypatch):
    opened = source(write("a.csv", b"x\n1\n"))
    opened.seek(None)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fstat", fail)
    with pytest.raises(SourceError, match=r"a\.csv cannot be read: Input/output error"):
        opened.poll(0)
    monkeypatch.undo()
    opened.close()


@pytest.mark.parametrize("longer", [True, False])
def test_a_file_that_is_overwritten_while_it_is_read_is_refused(write, longer):
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    opened = source(path, block_bytes=4096)
    opened.seek(None)
    opened.poll(0)
    with path.open("r+b") as stream:  # the same file, with other content
        stream.write(b"y\n" + b"2\n" * (9500 if longer else 9000))
    with pytest.raises(SourceError, match="overwritten while it was being read"):
        opened.poll(0)
    opened.close()


def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end_as_it_was(write, tmp_path):
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    opened = source(path, block_bytes=4096)
    opened.seek(None)
    first = opened.poll(0)
    write("other", b"y\n2\n").rename(path)
    batches = drain(opened, [first])
    assert records(batches) == [b"1"] * 9000
    opened.close()
    with pytest.raises(SourceError, match="replaced"):
        source(path).seek(through_json(batches[-1].end))


def no_descriptor(*arguments, **named):
    raise OSError(errno.EMFILE, "Too many open files")


def test_want_of_descriptors_is_waited_out(write, tmp_path, monkeypatch, caplog):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n2\n")
    opened = source(tmp_path / "*.csv")
    opened.seek(None)
    first = opened.poll(0)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", no_descriptor)
        for _ in range(3):
            assert opened.poll(0.001) is None
            assert not opened.finished
            assert not opened.status().connected
    assert caplog.text.count("b.csv cannot be opened: Too many open files") == 1
    assert records(drain(opened, [first])) == [b"1", b"2"]
    assert opened.status().connected
    opened.close()


def test_at_the_start_want_of_descriptors_is_told(write, monkeypatch):
    path = write("a.csv", b"x\n1\n")
    monkeypatch.setattr(Path, "open", no_descriptor)
    with pytest.raises(SourceError, match="raise the limit"):
        source(path).seek(None)


@pytest.mark.parametrize("pattern", ["*.csv", "**/*.csv", "*/a.csv"])
@pytest.mark.parametrize(("number", "retriable"), [(errno.EMFILE, True), (errno.EACCES, False)])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch, pattern, number, retriable):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(SourceError) as refused:
        expand(str(tmp_path / pattern))
    assert refused.value.retriable == retriable


@pytest.mark.parametrize("pattern", ["*.csv", "no/*.csv", "a.csv/*", "no.csv"])
def test_a_folder_that_is_not_there_is_an_empty_one(write, tmp_path, pattern, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_bytes(b"")
    monkeypatch.chdir(tmp_path / "sub")
    assert expand(pattern) == (["a.csv"] if pattern == "*.csv" else [])
