"""Csv files with other delimiters, decimals and without a header, from all sources of bytes."""

import gzip
import tempfile

import pytest
from pydantic import ValidationError

from streammoe.errors import SourceError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import drain, read, records, source, through_json

CONTENT = b'a;b;y\n1,5;"x;z";2\n2,5;;3\n'
NAMES = ["a", "b", "y"]
SEMICOLON = {"delimiter": ";", "decimal": ","}


def followed(path, **settings):
    opened = source(path, follow=True, **settings)
    opened.seek(None)
    try:
        return [opened.poll(5)]
    finally:
        opened.close()


def from_stdin(content, **settings):
    with tempfile.TemporaryFile() as stream:
        stream.write(content)
        stream.seek(0)
        opened = StdinSource(StdinSource.Settings(kind="stdin", format="csv", **settings), descriptor=stream.fileno())
        opened.seek(None)
        return drain(opened)


WAYS = {
    "plain": lambda write, content, **more: read(write("a.csv", content), **more),
    "gzip": lambda write, content, **more: read(write("a.csv.gz", gzip.compress(content)), **more),
    "followed": lambda write, content, **more: followed(write("a.csv", content), **more),
    "stdin": lambda _, content, **more: from_stdin(content, **more),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("header", [True, NAMES])
def test_every_way_of_reading_knows_them(write, way, header):
    content = CONTENT if header is True else CONTENT.partition(b"\n")[2]
    (batch,) = WAYS[way](write, content, header=header, **SEMICOLON)
    assert (batch.columns, batch.delimiter, batch.decimal) == (tuple(NAMES), ";", ",")
    assert records([batch]) == [b'1,5;"x;z";2', b"2,5;;3"]


def test_names_do_not_touch_other_formats(write):
    (batch,) = read(write("a.jsonl", b"{}\n"), header=NAMES)
    assert batch.columns is None


def test_reading_goes_on_amid_a_file_without_a_header(write):
    path = write("a.csv", b"".join(b"%d;1\n" % i for i in range(3000)))
    first, *rest = read(path, block_bytes=4096, delimiter=";", header=["a", "y"])
    assert records([first])[0] == b"0;1"
    again = read(path, through_json(first.end), block_bytes=4096, delimiter=";", header=["a", "y"])
    assert records(again) == records(rest)


def test_a_tab_may_be_written_as_a_shell_hands_it_on():
    settings = FileSource.Settings(kind="file", path="a.csv", delimiter="\\t")
    assert settings.delimiter == "\t"


@pytest.mark.parametrize(
    "wrong",
    [
        {"delimiter": ""},
        {"delimiter": ";;"},
        {"delimiter": "."},
        {"decimal": ";"},
        {"decimal": ","},
        {"header": False},
        {"header": []},
        {"header": ["a", "a"]},
        {"header": ["a", " "]},
        {"header": "a"},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValidationError):
        FileSource.Settings(**({"kind": "file", "path": "a.csv"} | wrong))
    with pytest.raises(ValidationError):
        StdinSource.Settings(**({"kind": "stdin", "format": "csv"} | wrong))


def test_a_header_is_divided_as_the_settings_say(write):
    with pytest.raises(SourceError):
        read(write("a.csv", b"a;a;y\n1;2;3\n"), delimiter=";")
    (batch,) = read(write("b.csv", b'"a;b";y\n1;2\n'), delimiter=";")
    assert batch.columns == ("a;b", "y")
