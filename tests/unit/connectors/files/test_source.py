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
from tests.unit.connectors.reading import drain, read, records, source, through_json, warnings

# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_are_strict():
    wrong = [{"path": ""}, {"path": 3}, {"format": "xml"}, {"block_bytes": 4095}, {"max_record_bytes": 0}]
    for settings in (*wrong, {"block_rows": 0}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            FileSource.Settings(**({"kind": "file", "path": "x.csv"} | settings))


# --- finding files --------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_an_error(write, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")  # which nobody writes to
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone")
    for name in ("no*.csv", ".", "pipe.csv", "link.csv"):
        with pytest.raises(SourceError):
            source(tmp_path / name, format="csv").seek(None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_an_error_before_any_is_read(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n1\n").chmod(stat.S_IWUSR)
    with pytest.raises(SourceError):
        source(tmp_path / "*.csv").seek(None)


def test_an_unknown_extension_needs_a_format(write):
    path = write("data.txt", b"x\n1\n")
    with pytest.raises(SourceError):
        source(path).seek(None)
    assert records(read(path, format="csv")) == [b"1"]


def test_extensions_of_jsonl_and_byte_order_marks(write):
    for name in ("a.jsonl", "a.ndjson", "a.JSON"):
        (batch,) = read(write(name, b"\xef\xbb\xbf{}\n"))
        assert (batch.format, batch.columns, records([batch])) == ("jsonl", None, [b"{}"])


def test_a_glob_is_read_in_name_order_and_a_name_may_hold_its_characters(write, tmp_path):
    write("b.csv", b"x\n2\n")
    path = write("a[1].csv", b"y\n1\n")
    batches = read(tmp_path / "*.csv")
    assert records(batches) == [b"1", b"2"]
    assert [batch.columns for batch in batches] == [("y",), ("x",)]
    assert records(read(path)) == [b"1"]


# --- records --------------------------------------------------------------------------------------------------------


def test_records_places_and_header(write):
    path = write("a.csv", b'\xef\xbb\xbfx,"the y"\r\n1,2\r\n3,4')
    (batch,) = read(path)
    assert batch.columns == ("x", "the y")
    assert records([batch]) == [b"1,2", b"3,4"]
    assert [batch.place(i) for i in (0, 1)] == [{"path": str(path), "offset": 14}, {"path": str(path), "offset": 19}]
    assert batch.origin == str(path)
    assert batch.end["files"][0]["done"]


def test_a_header_must_name_every_column_once(write):
    for header in (b"a,,b\n", b"a,a\n", b"\xff\n", b'"a\n1\n', b"\n1\n", b"a,b\r1,2\r", b"a, \n"):
        opened = source(write("a.csv", header))
        opened.seek(None)
        for _ in range(2):
            with pytest.raises(SourceError):
                opened.poll(0)
        opened.close()


def test_a_header_may_be_longer_than_a_block_but_not_than_a_record(write):
    names = [f"column{i}" for i in range(1000)]
    path = write("a.csv", ",".join(names).encode() + b"\n" + b"1," * 999 + b"1\n")
    (batch,) = read(path, block_bytes=4096)
    assert batch.columns == tuple(names)
    with pytest.raises(SourceError):
        read(path, block_bytes=4096, max_record_bytes=5000)


def test_line_ends_in_quotes_belong_to_the_record_in_csv_only(write):
    body = b'1,"a\nb"\n2,c\n'
    assert records(read(write("a.csv", b"x,y\n" + body))) == [b'1,"a\nb"', b"2,c"]
    assert records(read(write("a.jsonl", body))) == [b'1,"a', b'b"', b"2,c"]


def test_a_stray_quote_costs_one_record(write):
    body = b'1,"a\n' + b"2,b\n" * 100
    assert records(read(write("a.csv", b"x,y\n" + body), max_record_bytes=50)) == [b'1,"a'] + [b"2,b"] * 100
    assert records(read(write("b.csv", b"x,y\n" + body))) == [b'1,"a'] + [b"2,b"] * 100


def test_of_a_record_that_is_too_long_only_the_beginning_is_given_and_marked(write):
    for end in (b"", b"\n"):
        batches = read(write("a.jsonl", b"x" * 20_000 + end), block_bytes=4096, max_record_bytes=6000)
        assert [(len(batch.record(0)), batch.too_long) for batch in batches] == [(6000, True)]


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_the_rest_of_a_record_that_is_too_long_is_no_record_and_takes_no_line_with_it(write, block_bytes):
    sizes = {"block_bytes": block_bytes, "max_record_bytes": 6000}
    path = write("a.csv", b"a,b\n" + b"1,2\n" * 3 + b"x" * 6000 + b"8,9\n" + b"3,4\n" * 3)
    batches = read(path, **sizes)
    sound = [batch.record(i) for batch in batches for i in range(len(batch)) if not batch.too_long]
    assert sound == [*[b"1,2"] * 3, *[b"3,4"] * 3]
    (marked,) = [batch for batch in batches if batch.too_long]
    assert marked.place(0)["offset"] == 16
    assert records(read(path, position=marked.end, **sizes)) == [b"3,4"] * 3
    # Although it seems to open a quote: that is only where the beginning was cut off.
    long = b"x" * 5998 + b'""' + b"x" * 7000
    batches = read(write("b.csv", b'x\n"' + long + b'"\n1\n2\n3"\n4\n'), **sizes)
    assert [len(record) for record in records(batches)] == [6000, 1, 1, 2, 1]
    assert [batch.too_long for batch in batches] == [True] + [False] * (len(batches) - 1)


def test_a_finished_file_that_was_replaced_is_not_passed_over(write):
    path = write("a.jsonl", b"1\n2\n")
    end = read(path)[-1].end
    for content in (b"3\n4\n5\n", b"1\n"):
        write("a.jsonl", content)
        with pytest.raises(SourceError):
            read(path, position=end)


def test_a_record_may_be_longer_than_a_block_and_blank_lines_are_counted(write, tmp_path):
    long = b"x" * 50_000
    assert records(read(write("b.jsonl", b"1\n" + long + b"\n2\n"), block_bytes=4096)) == [b"1", long, b"2"]
    (batch,) = read(write("a.jsonl", b"\n1\n \t\r\n2\n\n"))
    assert records([batch]) == [b"1", b"2"]
    assert batch.block == b"1\n2\n"
    assert [batch.place(i)["offset"] for i in (0, 1)] == [1, 7]
    assert batch.skipped == 3
    write("a.jsonl", b"1\n" + b"\n" * 9000)
    write("b.jsonl", b"\n\n")
    write("c.jsonl", b"\n2\n" + b"\n" * 9000)
    for block_bytes in (4096, 1 << 20):
        batches = read(tmp_path / "*.jsonl", block_bytes=block_bytes)
        assert records(batches) == [b"1", b"2"]
        assert sum(batch.skipped for batch in batches) == 18_003
        assert all(file["done"] for file in batches[-1].end["files"])


def test_wide_texts_are_recognized_by_their_mark(write):
    """Before their first record is taken for nonsense, and all that follow."""
    for encoding in ("utf-16", "utf-16-be", "utf-32"):
        content = ("\ufeff" if encoding.endswith("be") else "").encode(encoding) + "x,y\n1,2\n".encode(encoding)
        for form in ("csv", "jsonl"):
            with pytest.raises(SourceError):
                read(write(f"a.{form}", content))


def test_very_many_columns_can_be_named(write):
    """To compare each with each would take minutes."""
    names = [f"c{i}" for i in range(100_000)]
    (batch,) = read(write("a.csv", ",".join(names).encode() + b"\n1\n"))
    assert batch.columns == tuple(names)
    with pytest.raises(SourceError):
        read(write("b.csv", ",".join([*names, "c7"]).encode() + b"\n1\n"))


def test_files_without_records_are_passed_over(write, tmp_path):
    write("b.csv", b"x\n1\n")
    for content in (b"", b"x,y\n", b"x,y", b"\xef\xbb\xbfx\n", b"x\n\n \n"):
        write("a.csv", content)
        assert records(read(tmp_path / "*.csv")) == [b"1"]


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.fixture
def halfway(write, tmp_path):
    """Two files of 5,000 records, and the position within the second one."""
    for name in ("a.csv", "b.csv"):
        write(name, b"x\n" + b"".join(b"%d\n" % i for i in range(5000)))
    batches = read(tmp_path / "*.csv", block_bytes=4096)
    position = [batch.end for batch in batches if batch.origin.endswith("b.csv")][1]
    return through_json(position)


def test_reading_resumes_in_the_middle_with_the_columns_of_the_header(halfway, tmp_path):
    whole = records(read(tmp_path / "b.csv"))
    batches = read(tmp_path / "*.csv", halfway)
    assert batches[0].columns == ("x",)
    assert 0 < len(records(batches)) < 5000
    assert records(batches) == whole[-len(records(batches)) :]


def test_finished_files_may_vanish(halfway, tmp_path):
    (tmp_path / "a.csv").unlink()
    assert read(tmp_path / "*.csv", halfway)


DAMAGES = {
    "removed": lambda path: path.unlink(),
    "replaced by less": lambda path: os.truncate(path, 3000),
    "truncated": lambda path: os.truncate(path, 5000),
    "replaced": lambda path: path.write_bytes(b"x\n" + b"7\n" * 20_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_no_longer_holds_the_position_is_an_error(halfway, tmp_path, damage):
    DAMAGES[damage](tmp_path / "b.csv")
    with pytest.raises(SourceError):
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
    with pytest.raises(SourceError):
        source(tmp_path / "c*.csv").seek(halfway)


def test_a_finished_file_outside_the_glob_is_not_even_opened(halfway, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "a.csv").mkdir(parents=True)  # to open it would fail
    (finished, unfinished) = halfway["files"]
    position = {**halfway, "files": [{**finished, "path": str(elsewhere / "a.csv")}, unfinished]}
    opened = source(tmp_path / "b.csv")
    opened.seek(position)
    assert opened.progress()[1] == finished["size"] + Path(unfinished["path"]).stat().st_size


def test_a_position_that_no_source_has_written_is_an_error(halfway, tmp_path):
    finished, unfinished = halfway["files"]
    changes = [{"path": path} for path in (7, "", "a\0b", "\ud800")] + [{"offset": at} for at in (-1, 1.5, True)]
    changes += [{"head_bytes": 1 << 62}, {"head_sha256": None}, {"inode": "1"}, {"done": 1}, {"size": -1}]
    wrong = [{**unfinished, **change} for change in (*changes, {"rotation": 1 << 63}, {"more": 1})]
    needed = ("path", "inode", "head_bytes", "head_sha256", "offset", "done")
    wrong += [{name: value for name, value in unfinished.items() if name != missing} for missing in needed]
    for position in ({"kind": "kafka"}, *({**halfway, "files": [finished, entry]} for entry in wrong)):
        with pytest.raises(SourceError):
            source(tmp_path / "*.csv").seek(position)


NAMED = [
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
]


def test_what_a_pattern_stands_for():
    assert [is_named(pattern, path) for pattern, path, _ in NAMED] == [named for *_, named in NAMED]


def test_growth_of_a_finished_file_is_reported(halfway, tmp_path, caplog):
    with (tmp_path / "a.csv").open("ab") as stream:
        stream.write(b"more\n")
    source(tmp_path / "*.csv").seek(halfway)
    assert len(warnings(caplog)) == 1


# --- trouble on the way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"x\n1\n", b"y\n" + b"2\n" * 9500, b"y\n" + b"2\n" * 9000])
def test_a_file_that_is_overwritten_while_it_is_read_is_an_error(write, content):
    path = write("a.csv", b"x\n" + b"1\n" * 9000)
    opened = source(path, block_bytes=4096)
    opened.seek(None)
    opened.poll(0)
    path.write_bytes(content)  # the same file
    with pytest.raises(SourceError):
        opened.poll(0)
    opened.close()


def test_a_file_that_is_removed_or_replaced_while_it_is_read_is_read_to_its_end_as_it_was(write):
    for replaced in (False, True):
        path = write("a.csv", b"x\n" + b"1\n" * 9000)
        opened = source(path, block_bytes=4096)
        opened.seek(None)
        first = opened.poll(0)
        path.unlink()
        if replaced:
            write("other", b"y\n2\n").rename(path)
        batches = drain(opened, [first])
        assert records(batches) == [b"1"] * 9000
        assert batches[-1].end["files"][0]["done"]
        opened.close()
    with pytest.raises(SourceError):
        source(path).seek(through_json(batches[-1].end))


def test_a_file_replaced_before_its_turn_is_an_error(write, tmp_path):
    write("a.csv", b"x\n1\n")
    write("b.csv", b"x\n2\n")
    opened = source(tmp_path / "*.csv")
    opened.seek(None)
    opened.poll(0)
    write("b.csv", b"y\n2\n")
    with pytest.raises(SourceError):
        opened.poll(0)
    opened.close()


def test_a_read_error_becomes_a_source_error(write, monkeypatch):
    opened = source(write("a.csv", b"x\n1\n"))
    opened.seek(None)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fstat", fail)
    with pytest.raises(SourceError):
        opened.poll(0)
    monkeypatch.undo()
    opened.close()


def no_descriptor(*arguments, **named):
    raise OSError(errno.EMFILE, "Too many open files")


def test_too_few_descriptors_are_waited_out_but_an_error_at_the_start(write, tmp_path, monkeypatch, caplog):
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
        with pytest.raises(SourceError):
            source(tmp_path / "a.csv").seek(None)
    assert len(warnings(caplog)) == 1
    assert records(drain(opened, [first])) == [b"1", b"2"]
    assert opened.status().connected
    opened.close()


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    for number, retriable in ((errno.EMFILE, True), (errno.EACCES, False)):

        def fail(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "scandir", fail)
        for pattern in ("*.csv", "**/*.csv", "*/a.csv"):
            with pytest.raises(SourceError) as failed:
                expand(str(tmp_path / pattern))
            assert failed.value.retriable == retriable


def test_a_folder_that_does_not_exist_is_an_empty_one(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for pattern in ("*.csv", "no/*.csv", "a.csv/*", "no.csv"):
        assert expand(pattern) == (["a.csv"] if pattern == "*.csv" else [])
