"""A daemon whose predictions are seen in transactions: where it goes on after a crash, and when it refuses to."""

import itertools
import random
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from streammoe import assembly, configuration
from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore
from streammoe.ports import PredictionSink, Recovered
from streammoe.testing import ListSource

RECORDS = [b'{"a": %d, "b": %d, "y": %d}' % (i % 7, i % 5, i % 3) for i in range(600)]


class Crash(BaseException):
    """The process is gone."""


class Asked:
    requested = False


class Broker:
    """What is left when a daemon is gone: rows that are seen, and the generation that was committed with them."""

    def __init__(self):
        self.seen = []
        self.generation = None
        self.down = 0
        self.steps = itertools.count()
        self.crash_at = None
        self.crash_before = None
        self.told = []

    def step(self):
        if next(self.steps) == self.crash_at:
            raise Crash


class Steady(ListSource):
    """Knows where it begins, as topics do."""

    class Settings(BaseModel):
        kind: Literal["steady"]

    def __init__(self, settings):
        super().__init__(RECORDS, sizes=(30,))
        self._begun_anew = False

    def seek(self, position):
        super().seek(position)
        self._begun_anew = position is None

    @property
    def position(self):
        return {"kind": "list", "next": 0} if self._begun_anew else None

    def poll(self, timeout):
        self._begun_anew = False
        return super().poll(timeout)

    def commit(self, position, generation):
        raise AssertionError("positions are committed by the sink")


class Transactions(PredictionSink):
    class Settings(BaseModel):
        kind: Literal["transactions"]
        transactional: bool = True

    broker = None

    def __init__(self, settings, sources):
        self.transactional_setting = settings.transactional
        self._open = []

    @property
    def transactional(self):
        return self.transactional_setting

    def recover(self, timeout, position):
        if self.broker.down:
            self.broker.down -= 1
            return None
        self.broker.told.append(position)
        return Recovered(self.broker.generation)

    def write(self, rows):
        self.broker.step()
        self._open += [place["index"] for place in rows.places]
        if not self.transactional:
            self.broker.seen += self._open
            self._open.clear()

    def flush(self):
        self.broker.step()

    def commit(self, position, generation):
        self.broker.step()
        if generation == self.broker.crash_before:  # the checkpoint is there, and nobody has seen its predictions
            raise Crash
        self.broker.seen += self._open
        self.broker.generation = generation
        self._open.clear()
        self.broker.step()

    def close(self):
        pass


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    known = {configuration.CONNECTORS: {"steady": Steady}, configuration.PREDICTIONS: {"transactions": Transactions}}
    for module in (assembly, configuration):
        monkeypatch.setattr(module, "connectors", lambda group=configuration.CONNECTORS: known.get(group, {}))
    (tmp_path / "config.toml").write_text("""
        source = { kind = "steady" }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50, warmup_restarts = 1 }
        metrics.enabled = false
        checkpoint.every_events = 60
        predictions = { kind = "transactions" }
    """)
    broker = Broker()
    monkeypatch.setattr(Transactions, "broker", broker)
    return broker


def run(*flags, fresh=False):
    settings = load_settings("config.toml", overrides=flags, environment={})
    with open_daemon(settings, fresh=fresh) as running:
        return running.daemon.run(Asked())


def crash(broker, at, *flags, **options):
    """A run that ends at this step from now on."""
    broker.crash_at = next(broker.steps) + at + 1
    with pytest.raises(Crash):
        run(*flags, **options)
    broker.crash_at = None


def newest():
    return CheckpointStore("state", keep=3).latest()[0]


def test_a_crash_between_checkpoint_and_transaction_goes_back_one_generation(broker):
    broker.crash_before = 4
    with pytest.raises(Crash):
        run()
    broker.crash_before = None
    assert (newest(), broker.generation, broker.seen) == (4, 3, list(range(120)))
    run()
    assert broker.seen == list(range(600))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 12))])
def test_each_prediction_is_seen_once_over_random_crashes(broker, seed):
    chance = random.Random(seed)
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
    assert broker.seen == list(range(600))
    assert summary.events == 600


def test_the_digest_is_that_of_a_run_without_crashes(broker):
    broker.down = 3  # which is waited for
    calm = run("checkpoint.dir=calm")
    assert (broker.seen, broker.down, calm.events) == (list(range(600)), 0, 600)
    digest = calm.state_digest
    broker.seen.clear()
    broker.generation = None
    crash(broker, 9)
    crash(broker, 11)
    assert run().state_digest == digest
    assert broker.seen == list(range(600))


def test_the_sink_is_told_which_checkpoints_would_go_on(broker):
    crash(broker, 9)
    run()
    assert broker.told[0] is None
    assert broker.told[1]["kind"] == "list"
    run(fresh=True)
    assert broker.told[2] is None


@pytest.fixture
def torn(broker):
    """A daemon has ended between its fourth checkpoint and the transaction of that."""
    broker.crash_before = 4
    with pytest.raises(Crash):
        run()
    broker.crash_before = None
    assert (newest(), CheckpointStore("state").confirmed) == (4, 3)
    return broker


def test_a_group_that_has_forgotten_is_not_guessed_at(torn):
    torn.generation = None
    with pytest.raises(CheckpointError):
        run()
    Path("state/confirmed").write_text("4\n")
    assert run().events == 600


def test_after_a_good_end_nobody_need_be_asked(broker):
    run()
    broker.generation = None
    assert run().events == 600
    assert broker.seen == list(range(600))


@pytest.mark.parametrize("flag", ["predictions.transactional=false", "predictions.kind=none"])
def test_transactions_are_not_turned_off_while_one_is_missing(torn, monkeypatch, flag):
    monkeypatch.setattr(Steady, "commit", lambda self, position, generation: None)
    with pytest.raises(CheckpointError):
        run(flag)
    run()
    assert torn.seen == list(range(600))
    assert run(flag).events == 600


def test_a_generation_that_is_gone_is_not_guessed_at(torn):
    torn.generation = 1
    Path("state/confirmed").write_text("1\n")
    CheckpointStore("state").path(1).unlink(missing_ok=True)
    with pytest.raises(CheckpointError):
        run()


def test_numbers_that_are_given_anew_are_not_taken_for_confirmed(broker):
    run()
    broker.crash_before = 3
    with pytest.raises(Crash):
        run(fresh=True)
    broker.crash_before = None
    assert (newest(), CheckpointStore("state").confirmed) == (3, 2)


def test_going_on_from_before_what_was_seen_is_told(broker, caplog):
    run()
    broker.generation += 1
    run()
    assert any(record.levelname == "WARNING" for record in caplog.records)


def test_checkpoints_from_before_transactions_are_taken(broker, monkeypatch):
    monkeypatch.setattr(Steady, "commit", lambda self, position, generation: None)
    crash(broker, 15, "predictions.transactional=false")
    was = newest()
    seen = set(broker.seen)
    broker.seen.clear()
    run()
    assert was > 1
    assert seen | set(broker.seen) == set(range(600))
    assert broker.seen == list(range(broker.seen[0], 600))
