"""What tests of estimators share."""

import pytest


@pytest.fixture
def brief_fits(monkeypatch):
    """Let warm-ups end with few starts and rounds, where it is not asked how good their fits are."""
    monkeypatch.setattr("streammoe.engine.warmup.WORK_LIMIT", 0.0)
