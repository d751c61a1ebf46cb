"""The process that answers the requests of a daemon."""

import json
import signal
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from streammoe import answering
from streammoe.serving.snapshot import Published
from streammoe.settings import ServeSettings
from tests.kafka_lab.lab import wait_until
from tests.unit.serving.served import events, regressor, schema_of

pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture
def of():
    with closing(answering.Answering(ServeSettings(port=0), 0.9, lambda: {"problem": ""})) as found:
        yield found


def version(of):
    """The model that answers; None while none does."""
    try:
        with urllib.request.urlopen(f"{of.url}/predict", b'{"size": 1.0}', timeout=60) as answer:
            return json.loads(answer.read())["model_version"]
    except (urllib.error.URLError, ConnectionError):
        return None


def offered(of, model, count):
    """Let a model learn so many events, and offer it after each."""
    for x, y in events(count, seed=1):
        model.learn_one(x, y)
        of.published.is_wanted = True
        of.published.offer(model, schema_of(model), model.n, None)


def test_a_process_that_follows_another_one_hears_of_what_is_learned_after_that(of, caplog):
    model = regressor(30)
    offered(of, model, 1)
    wait_until(lambda: version(of) == 31, "it answers")
    of._process.kill()
    of._process.join()
    offered(of, model, 1)
    wait_until(lambda: "starting another" in caplog.text, "its end is noticed")
    wait_until(lambda: version(of) == 32, "another one answers")
    offered(of, model, 1)
    wait_until(lambda: version(of) == 33, "it hears of the model", seconds=answering.LONGEST_PAUSE)


def test_a_model_that_was_saved_where_it_stood_has_the_digest_of_that():
    published, model = Published(), regressor(30)
    for digest in (None, "saved"):
        published.is_wanted = True
        published.offer(model, schema_of(model), model.n, digest)
    assert published.latest.digest == "saved"


def test_a_process_whose_daemon_is_gone_before_it_has_begun_ends_without_a_word():
    ours_end, its_end = answering._CONTEXT.Pipe()
    ours_end.close()
    handlers = {number: signal.getsignal(number) for number in answering._IGNORED}
    try:
        answering._serve(its_end, ServeSettings(port=0), 0.9, "INFO", "text")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.slow
def test_after_a_pause_that_took_long_it_goes_by_the_latest_soon_and_is_ready_meanwhile(of, monkeypatch):
    monkeypatch.setattr(answering, "SHARE", 1e-9)
    monkeypatch.setattr(answering, "LONGEST_PAUSE", 3.0)
    shown = []
    monkeypatch.setattr(of, "_status", lambda: shown.append(of.published.is_wanted) or {"problem": ""})
    model = regressor(30)
    for n in (31, 32):
        offered(of, model, 1)
        wait_until(lambda n=n: version(of) == n, "it answers")
    assert False in shown
