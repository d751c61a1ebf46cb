"""Broken records at random, and whether the harness sees what it looks for."""

import pytest

from tests.fuzz import records
from tests.fuzz.records import Line, fuzz

SOUND = [Line(b'{"a": %d, "b": 0.5, "c": "red", "t": "2026-01-01", "w": 1.0, "y": 0.5}\n' % i, True) for i in range(60)]
BAD = Line(b"{}}\n", False)


@pytest.mark.slow
def test_no_broken_record_breaks_anything(monkeypatch):
    monkeypatch.setattr(records, "MOST_RECORDS", 500)
    # What fails for a change is due to that change: the seed is always the same.
    outcomes, failures = fuzz(100, rounds=8)  # both formats, all kinds and limits
    assert not failures
    assert min(outcomes["learned"], outcomes["rejected"]) > 300
