"""What tests of estimators share."""

import pytest


@pytest.fixture
def brief_fits(monkeypatch):
    """Let fits have few starts and rounds, where it is not asked how good they are."""
    monkeypatch.setattr("streammoe.engine.search.WORK_LIMIT", 0.0)
    monkeypatch.setattr("streammoe.engine.search.STREAM_WORK", 0.0)
