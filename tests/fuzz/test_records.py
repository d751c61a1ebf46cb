"""Broken records at random, and whether the harness sees what it looks for."""

from dataclasses import replace

import pytest

from streammoe.pipeline.decoders.jsonl import JsonlDecoder
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz import records
from tests.fuzz.records import Line, Plan, Round, fuzz

PLAN = Plan("jsonl", "regressor", "listed", "cuts", 9_000, 4096, classes=False)
SOUND = [Line(b'{"a": %d, "b": 0.5, "c": "red", "t": "2026-01-01", "w": 1.0, "y": 0.5}\n' % i, True) for i in range(60)]
BAD = Line(b"{}}\n", False)


@pytest.mark.slow
def test_no_broken_record_breaks_anything(monkeypatch):
    monkeypatch.setattr(records, "MOST_RECORDS", 500)
    # What fails for a change is due to that change: the seed is always the same.
    outcomes, failures = fuzz(100, rounds=8)  # both formats, all kinds and limits
    assert not failures
    assert min(outcomes["learned"], outcomes["rejected"]) > 300


NEXT, DECODE = RecordReader.next, JsonlDecoder.decode


def losing_the_last(reader):
    batch = NEXT(reader)
    return batch and replace(batch, block=batch.block[: batch.ends[-2]], ends=batch.ends[:-1])


def leaving_a_trace(self, batch, wanted, *names):
    decoded = DECODE(self, batch, wanted, *names)
    return decoded._replace(X=decoded.X + len(decoded.rejected))


def test_the_harness_notices_records_that_are_lost_rejected_or_leave_a_trace(monkeypatch):
    lines = [*SOUND, BAD, *SOUND]
    assert Round(PLAN).play(lines).outcomes["learned"] == 120
    with pytest.raises(AssertionError):
        Round(PLAN).play([*SOUND, BAD._replace(sound=True)])
    for owner, name, fault in ((RecordReader, "next", losing_the_last), (JsonlDecoder, "decode", leaving_a_trace)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault)
            with pytest.raises(AssertionError):
                Round(PLAN).play(lines)
