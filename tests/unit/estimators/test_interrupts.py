"""Ctrl-C during a call leaves the model as it was before the call."""

import os
import signal
from types import SimpleNamespace

import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch
from streammoe.engine.em import Em
from streammoe.experts.linear import Linear
from streammoe.options import Auto
from tests.unit.estimators.models import NAMES, STREAMS, pairs

pytestmark = pytest.mark.usefixtures("brief_fits")

SMALL = {"n_experts": 2, "warmup": 200}
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
    model, whole = (kind(n_experts, warmup=200) for _ in range(2))
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


@pytest.mark.parametrize("learned", [130, 240], ids=["warm-up", "settled"])
def test_an_array_is_interrupted_between_two_calls_of_the_kernel(learned, monkeypatch):
    calls, compiled = [], Linear.compiled
    is_pressed = False

    def with_ctrl_c(family, experts):
        module, shape = compiled(family, experts)

        def learn(*arguments):
            nonlocal is_pressed
            found = module.learn(*arguments)
            if is_pressed:
                is_pressed = False
                calls.append(len(arguments[1]))
                os.kill(os.getpid(), signal.SIGINT)
            return found

        return SimpleNamespace(learn=learn, score_rows=module.score_rows), shape

    monkeypatch.setattr("streammoe.engine.bound_mixture.ROWS_AT_ONCE", 50)
    monkeypatch.setattr(Linear, "compiled", with_ctrl_c)
    model, whole = MoERegressor(**SMALL), MoERegressor(**SMALL)
    for each in (model, whole):
        each.learn_array(X[:learned], Y[:learned])
    digest, is_pressed = model.state_digest(), True
    with pytest.raises(KeyboardInterrupt):
        model.learn_array(X[:60], Y[:60])
    assert calls == [50]
    assert (model.n, model.state_digest()) == (learned, digest)
    for each in (model, whole):
        each.learn_array(X[:60], Y[:60])
    assert model.state_digest() == whole.state_digest()
