"""A wait for a sink is logged once, and so is its end, while the loop is blocked."""

import logging
from contextlib import suppress

import pytest

from streammoe.daemon import health as module
from streammoe.daemon.health import Health, waits_logged
from streammoe.errors import RetriableSinkError
from tests.kafka_lab.lab import wait_until


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.05)


@pytest.mark.usefixtures("soon")
def test_a_wait_and_its_end_are_logged_once_each_over_all_attempts(caplog):
    caplog.set_level(logging.INFO)
    health = Health(60.0)
    wait = health.waits["predictions"]

    def attempt(*, fails):
        with suppress(RetriableSinkError), wait.call():
            if fails:
                raise RetriableSinkError("no answer")

    with waits_logged(health, 0.005):
        for _ in range(2):
            before = len(caplog.records)
            attempt(fails=True)
            wait_until(lambda before=before: len(caplog.records) > before, "it is logged")
            for _ in range(3):
                attempt(fails=True)
            lasted = wait.seconds
            wait_until(lambda lasted=lasted: wait.seconds > lasted + 0.1, "some more looks")
            assert len(caplog.records) == before + 1
            attempt(fails=False)
            wait_until(lambda before=before: len(caplog.records) == before + 2, "its end is logged")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all(message.startswith("[predictions]") for message in said)
    assert said[0] == said[2] != said[1] == said[3]
