"""Ctrl-C during a call leaves the model as it was before the call."""

import os
import signal
import threading

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch
from streammoe.engine.em import Em
from streammoe.experts.gaussian import Gaussian

rng = np.random.default_rng(0)
X = rng.normal(size=(240, 3))
SMALL = {"n_experts": 2, "warmup": 200, "warmup_restarts": 1}
KINDS = {
    "regressor": (lambda: MoERegressor(**SMALL), X[:, 0], float),
    "auto": (lambda: MoERegressor(**{**SMALL, "n_experts": "auto", "max_experts": 2}), X[:, 0], float),
    "multitarget": (lambda: MoEMultiTargetRegressor(**SMALL), X[:, :2], lambda y: {"y0": y[0], "y1": y[1]}),
    "classifier": (lambda: MoEClassifier(**SMALL), (X[:, 0] > 0).astype(int), int),
}


@pytest.fixture
def interrupted(monkeypatch):
    """From when it is called, the third round of EM is interrupted."""

    def begin():
        left = [3]
        maximise = Em.maximise

        def maximise_or_interrupt(*arguments):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return maximise(*arguments)

        monkeypatch.setattr(Em, "maximise", maximise_or_interrupt)

    yield begin
    monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["one", "array", "fit"])
def test_an_interrupted_fit_leaves_the_model_as_it_was(kind, way, interrupted, monkeypatch):
    make, y, target = KINDS[kind]
    names = ["a", "b", "c"]
    model, whole = make(), make()
    before = 0 if way == "fit" else 199
    for each in (model, whole):
        if before:
            each.learn_array(X[:before], y[:before], feature_names=names)
    digest = model.state_digest()

    def learn(each, last):
        if way == "one":
            for row in range(before, last):
                each.learn_one(dict(zip(names, X[row], strict=True)), target(y[row]))
        elif way == "array":
            each.learn_array(X[before:last], y[before:last], feature_names=names)
        else:
            batch.fit(each, X[:last], y[:last], feature_names=names)

    interrupted()
    with pytest.raises(KeyboardInterrupt):
        learn(model, 240)
    monkeypatch.undo()
    assert (model.n, model.state_digest()) == (before, digest)
    learn(model, 240)
    learn(whole, 240)
    assert model.state_digest() == whole.state_digest()


def test_a_fit_is_not_repeated_to_take_back_a_later_event(monkeypatch):
    """Else Ctrl-C after a long fit would last as long as the fit."""
    model = MoERegressor(**SMALL)
    model.learn_array(X[:199], X[:199, 0])
    for row in X[199:210]:
        model.learn_one({"x0": row[0], "x1": row[1], "x2": row[2]}, row[0])
    digest = model.state_digest()

    step_on, left = MoERegressor._step_on, [1]

    def interrupt_once(*arguments, **more):
        if left:
            left.clear()
            raise KeyboardInterrupt
        return step_on(*arguments, **more)

    fits = []
    monkeypatch.setattr(MoERegressor, "_step_on", interrupt_once)
    monkeypatch.setattr("streammoe.engine.warmup.fit", lambda *_arguments, **_more: fits.append(1))
    with pytest.raises(KeyboardInterrupt):
        model.learn_one({"x0": 0.0, "x1": 0.0, "x2": 0.0}, 0.0)
    assert not fits
    assert (model.n, model.state_digest()) == (210, digest)


@pytest.mark.parametrize("learned", [100, 240], ids=["in the warm-up", "by steps"])
def test_a_long_array_is_not_waited_for(learned, monkeypatch):
    model = MoERegressor(**SMALL)
    model.learn_array(X[:learned], X[:learned, 0])
    digest, release = model.state_digest(), threading.Event()
    learn_rows = Gaussian.learn_rows

    def learn_and_interrupt(*arguments):
        learn_rows(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return release.wait(60.0)

    monkeypatch.setattr("streammoe.engine.interruption.LONG", 0.0)
    monkeypatch.setattr(Gaussian, "learn_rows", staticmethod(learn_and_interrupt))
    with pytest.raises(KeyboardInterrupt):
        model.learn_array(X[:90], X[:90, 0])
    release.set()
    assert (model.n, model.state_digest()) == (learned, digest)
    monkeypatch.setattr(Gaussian, "learn_rows", staticmethod(learn_rows))
    whole = MoERegressor(**SMALL)
    whole.learn_array(X[:learned], X[:learned, 0])
    for each in (model, whole):
        each.learn_array(X[:90], X[:90, 0])
    assert model.state_digest() == whole.state_digest()
