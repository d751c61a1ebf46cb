"""Broken records at random, and whether the harness sees what it looks for."""

from collections import Counter
from dataclasses import replace

import pytest

from streammoe.pipeline.decoders.jsonl import JsonlDecoder
from streammoe.pipeline.pipeline import Pipeline
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz import records
from tests.fuzz.records import Line, Plan, Round, fuzz

PLAN = Plan("jsonl stream", "regressor", "listed", "cuts", 9_000, 4096, classes=False)
SOUND = [Line(b'{"a": %d, "b": 0.5, "c": "red", "t": "2026-01-01", "w": 1.0, "y": 0.5}\n' % i, True) for i in range(60)]
BAD = Line(b"{}}\n", False)


def test_no_broken_record_breaks_anything(monkeypatch):
    monkeypatch.setattr(records, "MOST_RECORDS", 500)
    # What fails for a change is due to that change: the seed is always the same.
    read, failures = fuzz(100, rounds=8)  # all ways, kinds and limits
    assert not failures
    assert read > 2_000


@pytest.mark.exhaustive
def test_no_broken_record_breaks_anything_in_two_minutes():
    _, failures = fuzz(20261122, seconds=120.0)
    assert not failures


NEXT, DECODE, PROCESS = RecordReader.next, JsonlDecoder.decode, Pipeline.process


def losing_the_last(reader):
    batch = NEXT(reader)
    return batch and replace(batch, block=batch.block[: batch.ends[-2]], ends=batch.ends[:-1])


def leaving_a_trace(self, batch, wanted, ignore=None):
    decoded = DECODE(self, batch, wanted, ignore)
    return decoded._replace(X=decoded.X + len(decoded.rejected))


def miscounting(line, batch):
    done = PROCESS(line, batch)
    return done._replace(outcomes=done.outcomes - Counter(rejected=1))


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (RecordReader, "next", losing_the_last),
        (JsonlDecoder, "decode", leaving_a_trace),
        (Pipeline, "process", miscounting),
    ],
)
def test_the_harness_notices_records_that_are_lost_uncounted_or_leave_a_trace(monkeypatch, owner, name, fault):
    lines = [*SOUND, BAD, *SOUND]
    assert Round(PLAN).play(lines).outcomes["learned"] == 120
    with pytest.raises(AssertionError):
        Round(PLAN).play([*SOUND, BAD._replace(sound=True)])
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        Round(PLAN).play(lines)
