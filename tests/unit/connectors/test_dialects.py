"""What every source of bytes makes of csv with other delimiters, decimals and headers, and of files without records."""

import contextlib

import pytest
from pydantic import ValidationError

from streammoe.errors import SourceError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import WAYS, read, records, source, through_json, warnings

CONTENT = b'a;b;y\n1,5;"x;z";2\n2,5;;3\n'
NAMES = ["a", "b", "y"]
SEMICOLON = {"delimiter": ";", "decimal": ","}


def followed(write, content, format, **settings):
    with contextlib.closing(source(write(f"a.{format}", content), follow=True, **settings)) as opened:
        opened.seek(None)
        return [opened.poll(5)]


@pytest.mark.parametrize("way", [*WAYS.values(), followed], ids=[*WAYS, "followed"])
def test_every_way_of_reading_knows_delimiter_decimal_and_header(write, way):
    for header, content in ((True, CONTENT), (NAMES, CONTENT.partition(b"\n")[2])):
        (batch,) = way(write, content, "csv", header=header, **SEMICOLON)
        assert (batch.columns, batch.delimiter, batch.decimal) == (tuple(NAMES), ";", ",")
        assert records([batch]) == [b'1,5;"x;z";2', b"2,5;;3"]


def test_names_do_not_affect_other_formats(write):
    (batch,) = read(write("a.jsonl", b"{}\n"), header=NAMES)
    assert batch.columns is None


def test_reading_resumes_in_a_file_without_a_header(write):
    path = write("a.csv", b"".join(b"%d;1\n" % i for i in range(3000)))
    settings = {"block_bytes": 4096, "delimiter": ";", "header": ["a", "y"]}
    first, *rest = read(path, **settings)
    assert records([first])[0] == b"0;1"
    assert records(read(path, through_json(first.end), **settings)) == records(rest)


def test_settings_of_dialects_are_checked():
    assert FileSource.Settings(kind="file", path="a.csv", delimiter="\\t").delimiter == "\t"  # as a shell writes it
    wrong = [{"delimiter": ""}, {"delimiter": ";;"}, {"delimiter": "."}, {"decimal": ";"}, {"decimal": ","}]
    wrong += [{"header": False}, {"header": []}, {"header": ["a", "a"]}, {"header": ["a", " "]}, {"header": "a"}]
    for settings in wrong:
        with pytest.raises(ValidationError):
            FileSource.Settings(**({"kind": "file", "path": "a.csv"} | settings))
        with pytest.raises(ValidationError):
            StdinSource.Settings(**({"kind": "stdin", "format": "csv"} | settings))


def test_a_header_is_divided_as_the_settings_say(write):
    with pytest.raises(SourceError):
        read(write("a.csv", b"a;a;y\n1;2;3\n"), delimiter=";")
    (batch,) = read(write("b.csv", b'"a;b";y\n1;2\n'), delimiter=";")
    assert batch.columns == ("a;b", "y")


# --- no records -----------------------------------------------------------------------------------------------------

HOLLOW = [
    ("csv", b"", None),
    ("csv", b"a,y\n", ("a", "y")),
    ("csv", b"a,y", ("a", "y")),
    ("csv", b"a,y\n\n \n", ("a", "y")),
    ("jsonl", b"", None),
    ("jsonl", b"\n\n", None),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_without_records_ends_well_with_a_warning_and_its_header(write, caplog, way):
    for form, content, columns in HOLLOW:
        caplog.clear()
        batches = WAYS[way](write, content, form)
        assert records(batches) == []
        found = [batch.columns for batch in batches if batch.columns is not None]
        assert found == ([columns] if columns else [])
        assert sum(batch.skipped for batch in batches) == max(content.count(b"\n") - (columns is not None), 0)
        assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_header_that_is_no_text_is_an_error(write, way):
    for content in (bytes(100_000), b"a\0b\n1\n", "a,y\n1,2\n".encode("utf-16-le")):
        with pytest.raises(SourceError):
            WAYS[way](write, content, "csv")


def test_records_of_nuls_are_records(write, caplog):
    """They are rejected one by one: a crash may leave a hole in a sound file."""
    assert len(records(read(write("a.jsonl", b"\0\0\0\n{}\n")))) == 2
    assert not warnings(caplog)
