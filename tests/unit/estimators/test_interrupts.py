"""Ctrl-C during a call leaves the model as it was before the call."""

import os
import signal
import threading

import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch
from streammoe.engine.em import Em
from streammoe.experts.gaussian import Gaussian
from streammoe.model.bound import Bound
from streammoe.options import Auto, WarmUp
from tests.unit.estimators.models import NAMES, STREAMS, pairs

pytestmark = pytest.mark.usefixtures("brief_fits")

SMALL = {"n_experts": 2, "warmup": WarmUp(200, restarts=1)}
X, Y = STREAMS[MoERegressor](240)


@pytest.fixture(autouse=True)
def obeying_ctrl_c():
    """As in a shell: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(function, at):
    """The function, but that its call of that number is interrupted."""
    calls = []

    def call(*arguments, **more):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return function(*arguments, **more)

    return call


@pytest.mark.parametrize(
    ("kind", "n_experts", "way"),
    [(MoERegressor, Auto(2), "one"), (MoEMultiTargetRegressor, 2, "array"), (MoEClassifier, 2, "fit")],
)
def test_an_interrupted_fit_leaves_the_model_as_it_was(kind, n_experts, way, monkeypatch):
    rows, targets = STREAMS[kind](240)
    before = 0 if way == "fit" else 199
    model, whole = (kind(n_experts, warmup=WarmUp(200, restarts=1)) for _ in range(2))
    for each in (model, whole):
        each.learn_array(rows[:before], targets[:before], feature_names=NAMES)
    digest = model.state_digest()

    def learn(each):
        if way == "one":
            for event in pairs(kind, 240)[before:]:
                each.learn_one(*event)
        elif way == "array":
            each.learn_array(rows[before:], targets[before:], feature_names=NAMES)
        else:
            batch.fit(each, rows, targets, feature_names=NAMES)

    with monkeypatch.context() as patch:
        patch.setattr(Em, "m_step", interrupting(Em.m_step, 3))  # the third round
        with pytest.raises(KeyboardInterrupt):
            learn(model)
    assert (model.n, model.state_digest()) == (before, digest)
    for each in (model, whole):
        learn(each)
    assert model.state_digest() == whole.state_digest()


def test_a_long_array_is_not_waited_for_in_the_warm_up(monkeypatch):
    learned = 100
    model, whole = MoERegressor(**SMALL), MoERegressor(**SMALL)
    for each in (model, whole):
        each.learn_array(X[:learned], Y[:learned])
        each.learner.undo.forget()  # else these would be learned again, with the interrupt
    digest, release = model.state_digest(), threading.Event()

    def learn_and_interrupt(family, *arguments, learn_rows=Gaussian.learn_rows):
        learn_rows(family, *arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return release.wait(60.0)

    with monkeypatch.context() as patch:
        patch.setattr("streammoe.engine.interruption.LONG", 0.0)
        patch.setattr("streammoe.engine.mixture.LONG", 0.0)
        patch.setattr(Gaussian, "learn_rows", learn_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.learn_array(X[:90], Y[:90])
    release.set()
    assert (model.n, model.state_digest()) == (learned, digest)
    for each in (model, whole):
        each.learn_array(X[:90], Y[:90])
    assert model.state_digest() == whole.state_digest()


def test_an_array_is_interrupted_between_two_calls_of_the_kernel(monkeypatch):
    model, whole = MoERegressor(**SMALL), MoERegressor(**SMALL)
    for each in (model, whole):
        each.learn_array(X, Y)
    digest, calls, learn = model.state_digest(), [], Bound.learn

    def learn_and_interrupt(*arguments, **more):
        calls.append(len(arguments[1]))
        found = learn(*arguments, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("streammoe.model.bound.ROWS_AT_ONCE", 50)
        patch.setattr(Bound, "learn", learn_and_interrupt)
        model.learner.phase._bound = None
        with pytest.raises(KeyboardInterrupt):
            model.learn_array(X[:90], Y[:90])
    assert calls[:1] == [50]
    assert (model.n, model.state_digest()) == (240, digest)
    for each in (model, whole):
        each.learn_array(X[:90], Y[:90])
    assert model.state_digest() == whole.state_digest()
