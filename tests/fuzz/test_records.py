"""Broken records: those that once went wrong, and new ones for as long as there is time."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from streammoe.pipeline.decoders import jsonl
from streammoe.pipeline.pipeline import Pipeline
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz import rounds
from tests.fuzz.records import fuzz
from tests.fuzz.rounds import BrokenError, Line, Plan, breaks, kept, play, restored, shrunk

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))
PLAN = Plan("jsonl stream", "regressor", "listed", "cuts", 9_000, 4096, classes=False)
SOUND = [Line(b'{"a": %d, "b": 0.5, "c": "red", "t": "2026-01-01", "w": 1.0, "y": 0.5}\n' % i, True) for i in range(60)]


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_what_once_went_wrong_is_right(file):
    plan, lines = restored(file.read_text(encoding="utf-8"))
    assert breaks(plan, lines) is None


def test_nothing_that_comes_breaks_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "MOST_RECORDS", 1_000)
    # What fails for a change is due to that change: the seed is always the same.
    records, failures = fuzz(20261121, tmp_path, rounds=12)
    assert not failures
    assert records > 4_000


@pytest.mark.exhaustive
def test_nothing_that_comes_for_two_minutes_breaks_anything(tmp_path):
    _, failures = fuzz(20261122, tmp_path, seconds=120.0)
    assert not failures


# --- the harness itself: each check fails where it should ----------------------------------------------------------


def test_sound_records_pass():
    found = play(PLAN, SOUND)
    assert (found.records, found.outcomes["learned"]) == (60, 60)


def test_a_rejected_sound_record_is_noticed():
    with pytest.raises(BrokenError):
        play(PLAN, [*SOUND, Line(b"{}}\n", True)])


def test_a_lost_record_is_noticed(monkeypatch):
    whole = RecordReader.next

    def forgetful(reader):
        batch = whole(reader)
        return batch and replace(batch, block=batch.block[: batch.ends[-2]], ends=batch.ends[:-1])

    monkeypatch.setattr(RecordReader, "next", forgetful)
    with pytest.raises(BrokenError):
        play(PLAN, SOUND)


def test_a_record_that_nobody_counts_is_noticed(monkeypatch):
    process = Pipeline.process

    def careless(line, batch):
        done = process(line, batch)
        return done._replace(outcomes=done.outcomes - Counter(rejected=1))

    monkeypatch.setattr(Pipeline, "process", careless)
    with pytest.raises(BrokenError):
        play(PLAN, [*SOUND, Line(b"{}}\n", False)])


def test_a_trace_of_a_refused_record_is_noticed(monkeypatch):
    """Of a decoder that gives it on, doubled, although it refuses it."""
    decode = jsonl.JsonlDecoder.decode

    def leaky(self, batch, wanted, ignore=None):
        decoded = decode(self, batch, wanted, ignore)
        return decoded._replace(X=decoded.X + len(decoded.rejected))

    monkeypatch.setattr(jsonl.JsonlDecoder, "decode", leaky)
    with pytest.raises(BrokenError):
        play(PLAN, [*SOUND, Line(b"{}}\n", False), *SOUND])


def test_what_breaks_is_shrunk_and_comes_back_from_its_file():
    lines = shrunk(PLAN, [*SOUND, Line(b"{}}\n", True), *SOUND])
    assert lines == [Line(b"{}}\n", True)]
    assert restored(kept(PLAN, lines, "why")) == (PLAN, lines)
