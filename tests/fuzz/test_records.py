"""Broken records: those that once went wrong, and new ones for as long as there is time."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from streammoe.pipeline.decoders import jsonl
from streammoe.pipeline.pipeline import Pipeline
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz.records import fuzz
from tests.fuzz.rounds import BrokenError, Line, Plan, breaks, kept, play, restored, shrunk

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))
SECONDS = float(os.environ.get("STREAMMOE_FUZZ_SECONDS", "30"))
PLAN = Plan("jsonl stream", "regressor", "listed", "cuts", 9_000, 4096, classes=False)
SOUND = [Line(b'{"a": %d, "b": 0.5, "c": "red", "t": "2026-01-01", "w": 1.0, "y": 0.5}\n' % i, True) for i in range(60)]


@pytest.mark.sampled(one_in=1)
@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_what_once_went_wrong_is_right(file):
    plan, lines = restored(file.read_text(encoding="utf-8"))
    assert breaks(plan, lines) is None


@pytest.mark.slow
def test_nothing_that_comes_breaks_anything(tmp_path, capsys):
    seed = int(os.environ.get("STREAMMOE_FUZZ_SEED", "20261121"))  # what fails for a change is due to that change
    records, failures = fuzz(seed, SECONDS, tmp_path)
    with capsys.disabled():
        print(f"\n{records:,} broken records, python -m tests.fuzz.records --seed {seed}")
    assert not failures
    assert records > 1_000


# --- the harness itself: each check fails where it should ----------------------------------------------------------


def test_sound_records_pass():
    found = play(PLAN, SOUND)
    assert (found.records, found.outcomes["learned"]) == (60, 60)


def test_a_refused_sound_record_is_noticed():
    with pytest.raises(BrokenError, match="refused although it is sound"):
        play(PLAN, [*SOUND, Line(b"{}}\n", True)])


def test_a_lost_record_is_noticed(monkeypatch):
    whole = RecordReader.next

    def forgetful(reader):
        batch = whole(reader)
        return batch and replace(batch, block=batch.block[: batch.ends[-2]], ends=batch.ends[:-1])

    monkeypatch.setattr(RecordReader, "next", forgetful)
    with pytest.raises(BrokenError, match="lost although it is sound"):
        play(PLAN, SOUND)


def test_a_record_that_nobody_counts_is_noticed(monkeypatch):
    process = Pipeline.process

    def careless(line, batch):
        done = process(line, batch)
        return done._replace(outcomes=done.outcomes - Counter(rejected=1))

    monkeypatch.setattr(Pipeline, "process", careless)
    with pytest.raises(BrokenError, match="became of them"):
        play(PLAN, [*SOUND, Line(b"{}}\n", False)])


def test_a_trace_of_a_refused_record_is_noticed(monkeypatch):
    """Of a decoder that gives it on, doubled, although it refuses it."""
    decode = jsonl.JsonlDecoder.decode

    def leaky(self, batch, wanted, ignore=None):
        decoded = decode(self, batch, wanted, ignore)
        return decoded._replace(X=decoded.X + len(decoded.rejected))

    monkeypatch.setattr(jsonl.JsonlDecoder, "decode", leaky)
    with pytest.raises(BrokenError, match="trace in the model"):
        play(PLAN, [*SOUND, Line(b"{}}\n", False), *SOUND])


def test_what_breaks_is_shrunk_and_comes_back_from_its_file():
    lines = shrunk(PLAN, [*SOUND, Line(b"{}}\n", True), *SOUND])
    assert lines == [Line(b"{}}\n", True)]
    assert restored(kept(PLAN, lines, "why")) == (PLAN, lines)
