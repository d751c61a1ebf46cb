"""Broken records at random, through reader and pipeline: all count, and the model is that of the accepted ones."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammoe.errors import REASONS
from streammoe_connectors.formats.records import RecordReader
from streammoe_connectors.formats.texts import TextSettings
from tests.batches import csv_line
from tests.unit.pipeline.streams import TARGETS, event, pipeline

EVENTS = {kind: [event(kind, i) for i in range(60)] for kind in TARGETS}
NUMBERS = [
    *b"0 -0 1 -1.5 1e5 -1e7 1e50 1e51 1e300 1e309 1e-400 nan NaN inf -Infinity 2**63 9223372036854775808 1,5".split(),
    *b'1_000 0x10 007 +1 .5 1. 1e -- true FALSE null None NA "" "1.5" [1] [] {} {"is":[1]} 1.8e12 2026-02-30'.split(),
    *(b"", b"9" * 400, b"0." + b"0" * 330 + b"1", "１２".encode(), b" 1 ", b"1\t", b"2026-03-01 10:00"),
]
PIECES = [
    *b"""" "" ' , ,, ; : { } [ ] \\ \\" \\u0000 \\ud800 a,b,c,t "a":1, "late":1, "":1, "w":0, "y":null, // #""".split(),
    *(bytes([octet]) for octet in b"\n\r \t\0\x0b\x1a\x7f\x80\xff\xc3"),
    *(b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", "é".encode(), "\u2028".encode(), "\U0001f600".encode()),
]
TOKEN = re.compile(rb'[^,:"{}\[\]\s]+')


def sound(held, form):
    """A record without its line end; JSON as other programs write it, with blanks."""
    if form == "csv":
        return csv_line(held.values()).rstrip(b"\n")
    texts = (f'"{name}": ' + (f'"{value}"' if isinstance(value, str) else repr(value)) for name, value in held.items())
    return ("{" + ", ".join(texts) + "}").encode()


def broken(record, pick, others):
    """A record to which something happens, once or a few times; now and then that is nothing."""
    for _ in range(pick.choice((1, 1, 2, 4))):
        start, stop = pick.choice([match.span() for match in TOKEN.finditer(record)] or [(0, len(record))])
        at, end = sorted(pick.randrange(len(record) + 1) for _ in range(2))
        depth, (before, after) = pick.choice((1, 50, 99, 101, 500)), pick.choice(((b"[", b"]"), (b'{"a":', b"}")))
        record = pick.choice(
            [
                record[:at]
                + bytes(octet ^ (1 << pick.randrange(8)) for octet in record[at : at + 1])
                + record[at + 1 :],
                record[:at] + pick.choice(PIECES) + record[at:],
                *2 * [record[:start] + pick.choice(NUMBERS) + record[stop:]],
                record[:at] + record[end:],
                record[:at] + pick.choice(others)[end:],
                record[:at] + record[at : at + 1] * pick.choice((10, 300, 5000)) + record[at:],
                record[:start] + before * depth + record[start:stop] + after * depth + record[stop:],
                record + pick.choice((b"", b" ", b",", b"\r", b"\0")) + pick.choice(others),
            ]
        )
    return record


class Dripping:
    """Bytes that come in pieces of any size."""

    def __init__(self, content, pick, most):
        self._content, self._pick, self._most, self._at = content, pick, most, 0

    @property
    def at_eof(self):
        return self._at == len(self._content)

    def read(self, count):
        data = self._content[self._at : self._at + min(count, self._pick.randint(1, self._most))]
        self._at += len(data)
        return data

    def skip(self, count):
        return len(self.read(count))

    def close(self):
        pass


def play(pick):
    """Play a stream with broken records; return what became of them, and check that no sound one was lost."""
    form, kind = pick.choice(("csv", "jsonl")), pick.choice(tuple(TARGETS))
    size, limit = pick.choice(((64, 300), (9_000, 4096), (1 << 16, 4096), (1 << 20, 1 << 20)))
    names = tuple(name for name in EVENTS[kind][0] if name not in {"w", *TARGETS[kind]})
    columns = pick.choice(({"features": names}, {"max_columns": 9}, {"late_columns": True, "max_columns": 9}))
    limits = {"max_levels": 5, **({"max_classes": 8} if kind == "classifier" else {})}
    usual, share = [sound(held, form) for held in EVENTS[kind]], pick.choice((0.02, 0.2, 0.8))
    lines = [(line, True) for line in usual[:12]]  # they hold every class
    for _ in range(pick.choice((40, 400))):
        line, is_broken = pick.choice(usual), pick.random() < share
        lines.append((broken(line, pick, usual), False) if is_broken else (line, True))
    header = [",".join(EVENTS[kind][0]).encode()] if form == "csv" else []
    content = b"\n".join([*header, *(line for line, _ in lines), b""])
    source = Dripping(content, pick, size)
    sizes = TextSettings.model_construct(block_bytes=size, max_record_bytes=limit)
    reader = RecordReader(source, sizes, name="fuzz", format=form, start=0, location={"path": "fuzz"})
    line, twin = (pipeline(kind, schema=columns, **limits) for _ in range(2))
    outcomes, again, accepted = Counter(), Counter(), Counter()
    while not reader.exhausted:
        if (batch := reader.next()) is None:
            continue
        done = line.process(batch)
        assert done.outcomes.total() == len(batch) + batch.skipped
        assert done.outcomes["rejected"] == len(done.letters) == int(done.bad.sum())
        assert set(done.reasons) <= set(REASONS)
        assert line.model.is_finite()
        outcomes.update(done.outcomes)
        spans = zip(pairwise([0, *batch.ends]), done.bad, strict=True)
        kept = [batch.block[start:stop] for (start, stop), is_bad in spans if not is_bad]
        accepted.update(record.rstrip(b"\r\n") for record in kept)
        ends = np.cumsum([len(record) for record in kept], dtype=np.int64)
        done = twin.process(replace(batch, block=b"".join(kept), ends=ends, too_long=False))
        assert not done.letters, "accepted among others, rejected alone"
        again.update(done.outcomes)
    assert reader.offset == len(content)
    assert [again[name] for name in ("learned", "predicted_only")] == [
        outcomes[name] for name in ("learned", "predicted_only")
    ]
    assert line.model.state_digest() == twin.model.state_digest(), "a trace of what was rejected"
    if format == "jsonl" or not any(
        b'"' in each for each, is_sound in lines if not is_sound
    ):  # which may take up others
        lost = Counter(each for each, is_sound in lines if is_sound) - accepted
        assert not lost, "rejected or lost although it is sound"
    return outcomes


randoms = st.randoms(use_true_random=False)
few, many = (settings(max_examples=count, suppress_health_check=list(HealthCheck)) for count in (6, 2_000))


@pytest.mark.slow
@few
@given(pick=randoms)
def test_no_broken_record_breaks_anything(pick):
    play(pick)


@pytest.mark.exhaustive
@many
@given(pick=randoms)
def test_no_broken_record_among_very_many_does(pick):
    play(pick)
