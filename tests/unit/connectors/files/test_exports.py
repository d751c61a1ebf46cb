"""Text as others export it: what surrounds records, how it is encoded, and rows of other lengths than the header."""

import codecs
import encodings.aliases
import json
import re

import pytest

from streammoe.errors import SourceError
from streammoe.pipeline.decoders import decoder
from streammoe_connectors.formats.texts import LIKE_ASCII
from tests.batches import roles_of
from tests.unit.connectors.reading import read, records

ROWS = [(1.5, "red", 2.0), (None, 'a "b", #c\n#d', 3.0), (4.0, "größe", 5.0)]
PLAIN = 'x,c,y\n1.5,red,2\n,"a ""b"", #c\n#d",3\n4,größe,5\n'
LINES = PLAIN.split("\n")


def with_lines(*before, **after):
    """The table with lines before its header, and others before the n-th of its lines."""
    lines = [text for n, line in enumerate(LINES) for text in (*after.get(f"_{n}", ()), line)]
    return "\n".join([*before, *lines])


EXPORTS = {
    "plain": (PLAIN, {}),
    "Windows": (PLAIN.replace("\n", "\r\n").replace("#c\r", "#c"), {}),
    "a byte order mark and a preamble": ("\ufeff" + with_lines('of "me', "", "1,2"), {"skip_lines": 3}),
    "a preamble without end": (with_lines("z" * 9000), {"skip_lines": 1}),
    "all at once": ("\ufeff" + with_lines("by me", "", _2=[""]), {"skip_lines": 1}),
    "blank lines first": (with_lines("", "  ", ""), {}),
    "concatenated": (with_lines(_2=["x,c,y", "x,c,y\r"]), {}),
    "blanks around names": (PLAIN.replace("x,c,y", ' x, "c",y '), {}),
    "trailing separators": (PLAIN.replace("y\n", "y,,\n").replace("2\n", "2,, \n").replace("5\n", "5,,\n"), {}),
    "separators of records alone": (PLAIN.replace("2\n", "2,,\n").replace("3\n", "3,,\n"), {}),
    "a column without a name": (PLAIN.replace("x,", "x,,").replace("1.5,", "1.5, ,").replace("\n,", "\n,,")
                                .replace("4,", "4,,"), {}),
    "Latin": (PLAIN.replace(",", ";").replace(".", ","), {"encoding": "latin-1", "delimiter": ";", "decimal": ","}),
    "Japanese": (PLAIN.replace("größe", "表ポ").replace(",", "|"), {"encoding": "shift_jis", "delimiter": "|"}),
}  # fmt: skip


def rows(batches):
    """What is learned of the records, and how many are left out."""
    found, rejected = [], []
    roles = roles_of(("x", "c"), ("y",), categorical=frozenset("c"))
    for batch in batches:
        done = decoder(batch.format).decode(batch, roles)
        rejected += [each.detail for each in done.rejected]
        x = [None if value != value else value for value in done.X[:, 0].tolist()]  # noqa: PLR0124 - NaN
        found += zip(x, done.texts[1], done.Y[:, 0].tolist(), strict=True)
    return found, rejected


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_holds_the_rows_of_its_plain_twin_in_whatever_pieces_it_is_read(name, write):
    text, settings = EXPORTS[name]
    expected = [(x, {"größe": "表ポ"}.get(c, c) if name == "Japanese" else c, y) for x, c, y in ROWS]
    if "delimiter" in settings:
        expected = [(x, c.replace(",", settings["delimiter"]), y) for x, c, y in expected]
    path = write("a.csv", text.encode(settings.get("encoding", "utf-8")))
    for sizes in ({}, {"block_bytes": 7}):
        assert rows(read(path, **sizes, **settings)) == (expected, [])


def test_columns_of_numbers_alone_are_judged_in_the_same_way(write):
    roles = roles_of(("x",), ("y",))
    for content, rejected, y in (
        (b"x,,y\n1,,2\n3,7,4\n5,,6\n", [1], [2.0, 6.0]),
        (b"x,y\n5\n6\n1,2\n", [0, 1], [2.0]),
        (b"x,y,z\n1,2\n3,4,5\n6,7\n", [], [2.0, 4.0, 7.0]),
        (b"x,y\n1,2,\n3,4\n5,6,7\n", [2], [2.0, 4.0]),
    ):
        (batch,) = read(write("a.csv", content))
        done = decoder("csv").decode(batch, roles)
        assert ([each.index for each in done.rejected], done.Y[:, 0].tolist()) == (rejected, y), content
    assert rows(read(write("a.csv", b"x,c,y\n5\n6\n")))[0] == []


def test_columns_with_the_same_name_are_an_error_that_names_them_apart(write):
    path = write("a.csv", b'z\ny,"a,b",x,x,x2,,y\n1,2,3,4,5,6,7\n')
    with pytest.raises(SourceError) as failure:
        read(path, skip_lines=1)
    said = r"source.header to (\[.+\]) and source.skip_lines to ([0-9]+)"
    (header, skipped) = re.findall(said, str(failure.value))[0]
    assert (json.loads(header), skipped) == (["y", "a,b", "x", "x_4", "x2", "column_6", "y_7"], "2")
    (batch,) = read(path, skip_lines=2, header=json.loads(header))
    assert decoder("csv").names(batch, 0)["x_4"] == "4"


def test_what_is_not_in_the_encoding_is_rejected_by_record(write):
    # No byte 0x81 in cp1252; what is left is read.
    path = write("a.csv", b"x,c,y\n1,\x81,2\n3,\xe4,4\n")
    found, rejected = rows(read(path, encoding="cp1252"))
    assert (found, len(rejected)) == ([(3.0, "ä", 4.0)], 1)
    assert "cp1252" in rejected[0]
    found, rejected = rows(read(path))
    assert (found, ["source.encoding" in detail for detail in rejected]) == ([], [True, True])
    (batch,) = read(write("a.jsonl", b'{"c":"\xe4"}\n'), encoding="latin-1")
    assert records([batch]) == ['{"c":"ä"}'.encode()]


def test_texts_in_known_encodings_can_be_cut_as_if_they_were_ascii():
    known = set()
    for alias in set(encodings.aliases.aliases.values()) - {"mbcs", "oem"}:  # which Windows alone has
        name = codecs.lookup(alias).name
        known |= {name} if LIKE_ASCII.fullmatch(name) else set()
    assert len(known) > 60
    plain = "\\x41\x1b$B\x1b$)C" + "".join(chr(code) for code in range(128) if chr(code) != "\\")
    pairs = [(bytes([lead]) + mark.encode(), mark) for lead in range(128, 256) for mark in '\r\n"']
    for each in known:
        assert plain.encode().decode(each) == plain
        assert all(pair.decode(each, "ignore")[-1:] in {"", mark} for pair, mark in pairs)
