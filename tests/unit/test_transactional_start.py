"""A daemon with transactional predictions: where it resumes after a crash, and when it cannot."""

import itertools
import json
import random
import signal
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from streammoe import MoERegressor, assembly, configuration
from streammoe.commands import main
from streammoe.commands.promote import promote
from streammoe.daemon.server import MetricsServer
from streammoe.errors import CheckpointError, RetriableSinkError
from streammoe.ports import PredictionSink
from tests.list_source import ListSource
from tests.unit import daemons
from tests.unit.daemons import run, store

N = 180
RECORDS = [b'{"a": %d, "b": %d, "y": %d}' % (i % 7, i % 5, i % 3) for i in range(N)]
ALL = list(range(N))


class Crash(BaseException):
    """The process is gone."""


class Broker:
    """What is left when a daemon is gone: rows that are seen, and the generation that was committed with them."""

    def __init__(self):
        self.seen = []
        self.generation = None
        self.down = 0
        self.steps = itertools.count()
        self.crash_at = None
        self.crash_before = None
        self.silent_before = {}
        """By generation, whether its transaction takes place, of which the sink is not told in either case."""

    def step(self):
        if next(self.steps) == self.crash_at:
            raise Crash


class Steady(ListSource):
    """Knows where it begins, as topics do."""

    class Settings(BaseModel):
        kind: Literal["steady"]

    def __init__(self, settings):
        super().__init__(RECORDS, sizes=(15,))
        self._is_new = False

    def seek(self, position):
        super().seek(position)
        self._is_new = position is None

    @property
    def position(self):
        return {"kind": "list", "next": 0} if self._is_new else None

    def poll(self, timeout):
        self._is_new = False
        return super().poll(timeout)

    def commit(self, position, generation):
        raise AssertionError("positions are committed by the sink")


class Transactions(PredictionSink):
    class Settings(BaseModel):
        kind: Literal["transactions"]
        transactional: bool = True

    broker = None

    def __init__(self, settings, source):
        self.is_transactional = settings.transactional
        self._open = []

    @property
    def transactional(self):
        return self.is_transactional

    def recover(self, timeout, position):
        if self.broker.down:
            self.broker.down -= 1
            return None
        return self.broker.generation or 0

    def write(self, rows):
        self.broker.step()
        self._open += [place["index"] for place in rows.locations]
        if not self.transactional:
            self.broker.seen += self._open
            self._open.clear()

    def flush(self):
        self.broker.step()

    def commit(self, position, generation):
        self.broker.step()
        if generation == self.broker.crash_before:  # the checkpoint exists, but its predictions are not visible
            raise Crash
        takes_place = self.broker.silent_before.pop(generation, None)
        if takes_place is False:
            raise RetriableSinkError("no answer")
        self.broker.seen += self._open
        self.broker.generation = generation
        self._open.clear()
        if takes_place:
            raise RetriableSinkError("no answer")
        self.broker.step()

    def close(self):
        pass


@pytest.fixture
def broker(tmp_path, monkeypatch):
    known = {configuration.CONNECTORS: {"steady": Steady}, configuration.PREDICTIONS: {"transactions": Transactions}}
    for module in (assembly, configuration):
        monkeypatch.setattr(module, "connectors", lambda group=configuration.CONNECTORS: known.get(group, {}))
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "steady" }
        schema.target = "y"
        model = { n_experts = 2, warmup = 25 }
        metrics.enabled = false
        checkpoint.every_events = 30
        predictions = { kind = "transactions" }
        """,
    )
    broker = Broker()
    monkeypatch.setattr(Transactions, "broker", broker)
    return broker


def crash(broker, *, before=None, after=None, flags=(), **options):
    """Run until this generation's transaction, or for so many steps; then the process is gone."""
    broker.crash_before = before
    broker.crash_at = None if after is None else next(broker.steps) + after + 1
    with pytest.raises(Crash):
        run(*flags, **options)
    broker.crash_before = broker.crash_at = None


@pytest.fixture
def torn(broker):
    """A daemon has ended between its fourth checkpoint and the transaction of that."""
    crash(broker, before=4)
    assert (store().latest()[0], store().confirmed, broker.generation) == (4, 3, 3)
    assert broker.seen == ALL[:60]
    return broker


def test_a_crash_between_checkpoint_and_transaction_goes_back_one_generation(torn):
    run()
    assert torn.seen == ALL


@pytest.mark.parametrize(
    ("start", "silent"),
    [
        ("as it was", {4: False}),
        ("as it was", {1: True, 2: True, 3: False}),
        ("fresh", {1: False}),
        ("fresh", {4: True}),
        ("given", {1: False}),
        ("given", {4: True}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("logging_as_before")
def test_a_sink_without_answer_is_replaced_and_learning_goes_on_from_what_is_visible(broker, silent, start):
    given = Path("given.model") if start == "given" else None
    if given:
        model = MoERegressor(2, warmup=25)
        model.learn_many(pd.DataFrame([{"a": i % 3, "b": i % 7} for i in range(40)]), pd.Series(range(40)))
        model.save(given)
    calm = run("checkpoint.dir=calm", from_model=given)
    if start == "fresh":
        broker.seen, broker.generation = [], None
        run()
    flags = {"as it was": [], "fresh": ["--fresh"], "given": ["--from-model", str(given)]}[start]
    broker.seen, broker.generation, broker.silent_before = [], None, dict(silent)
    done = CliRunner().invoke(main, ["run", "config.toml", "--json", *flags])
    assert done.exit_code == 0, done.output
    assert (broker.seen, broker.silent_before) == (ALL, {})
    assert json.loads(done.stdout)["state_digest"] == calm.state_digest
    assert done.stderr.count("no answer; going back") == len(silent)


@pytest.mark.usefixtures("logging_as_before")
def test_a_stop_waits_for_no_new_sink_and_says_that_nothing_was_lost(broker, monkeypatch):
    commit = Transactions.commit

    def committed(sink, position, generation):
        if generation in broker.silent_before:
            signal.raise_signal(signal.SIGTERM)
        commit(sink, position, generation)

    monkeypatch.setattr(Transactions, "commit", committed)
    broker.silent_before = {4: False}
    done = CliRunner().invoke(main, ["run", "config.toml"])
    assert (done.exit_code, broker.seen) == (6, ALL[:60])
    assert "no answer; nothing was lost: the next start learns again" in done.stderr
    run()
    assert broker.seen == ALL


@pytest.mark.usefixtures("logging_as_before")
def test_while_a_new_sink_waits_for_an_answer_probes_and_ages_count_from_when_the_old_one_failed(broker, monkeypatch):
    seen = []

    class Server(MetricsServer):
        def __init__(self, settings, health):
            super().__init__(settings, health)
            seen.append((health, health.waits["predictions"].seconds > 0, health.saved_at))

    monkeypatch.setattr(assembly, "MetricsServer", Server)
    broker.silent_before = {3: False}
    done = CliRunner().invoke(main, ["run", "config.toml", "--set", "metrics.enabled=true", "--set", "metrics.port=0"])
    assert done.exit_code == 0, done.output
    (first, waited_before, started), (second, waits, saved_at) = seen
    assert first is second
    assert (waited_before, waits, saved_at > started) == (False, True, True)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_promotion_shows_each_prediction_once_or_waits_for_a_clean_end(broker, crashed):
    flags = ["challenger.n_experts=1"]
    if crashed:
        crash(broker, before=4, flags=flags)
        with pytest.raises(CheckpointError):
            promote(Path("state"))
    else:
        crash(broker, after=9, flags=flags)
        assert store().latest()[0] == store().confirmed == broker.generation
        assert broker.seen != ALL
        promote(Path("state"))
    model = run(*flags).state_digest
    assert broker.seen == ALL
    calm = run("checkpoint.dir=calm", *([] if crashed else ["model.n_experts=1"]))
    assert model == calm.state_digest


def test_each_prediction_is_seen_once_over_random_crashes(broker):
    chance = random.Random(0)
    crashes = 0
    for _ in range(25):
        broker.crash_at = next(broker.steps) + chance.randrange(2, 14)
        try:
            run()
        except Crash:
            crashes += 1
        else:
            break
    broker.crash_at = None
    summary = run()
    assert crashes > 2
    assert broker.seen == ALL
    assert summary.events == N
    broker.seen, broker.generation, broker.down = [], None, 3  # which is waited for
    calm = run("checkpoint.dir=calm")
    assert (broker.seen, broker.down, calm.state_digest) == (ALL, 0, summary.state_digest)


def test_a_group_that_has_forgotten_is_not_guessed_at(torn):
    torn.generation = None
    with pytest.raises(CheckpointError):
        run()
    Path("state/confirmed").write_text("4\n")
    assert run().events == N


def test_a_generation_that_is_gone_is_not_guessed_at(torn):
    torn.generation = 1
    Path("state/confirmed").write_text("1\n")
    store().path(1).unlink(missing_ok=True)
    with pytest.raises(CheckpointError):
        run()


def test_after_a_good_end_the_group_need_not_remember_and_an_older_copy_asks_for_a_flag(broker, caplog):
    run()
    broker.generation = None
    assert run().events == N
    assert broker.seen == ALL
    assert not any(record.levelname == "WARNING" for record in caplog.records)
    broker.generation = store().latest()[0] + 1
    with pytest.raises(CheckpointError, match="--repeat-predictions"):
        run()
    run(repeat_predictions=True)
    assert any(record.levelname == "WARNING" for record in caplog.records), "the daemon resumes before what was seen"


@pytest.mark.parametrize("flag", ["predictions.transactional=false", "predictions.kind=none"])
def test_transactions_are_not_turned_off_while_one_is_missing(torn, monkeypatch, flag):
    monkeypatch.setattr(Steady, "commit", lambda self, position, generation: None)
    with pytest.raises(CheckpointError):
        run(flag)
    run()
    assert torn.seen == ALL
    assert run(flag).events == N


def test_numbers_that_are_used_again_are_not_taken_for_confirmed(broker):
    run()
    crash(broker, before=3, fresh=True)
    assert (store().latest()[0], store().confirmed) == (3, 2)


def test_checkpoints_from_before_transactions_are_taken(broker, monkeypatch):
    monkeypatch.setattr(Steady, "commit", lambda self, position, generation: None)
    crash(broker, after=9, flags=["predictions.transactional=false"])
    assert store().latest() is not None
    before, broker.seen = set(broker.seen), []
    run()
    assert before | set(broker.seen) == set(ALL)
    assert broker.seen == ALL[broker.seen[0] :]
