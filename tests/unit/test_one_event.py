"""Single events: values of any type, what must not be learned, and whoever disturbs one."""

from __future__ import annotations

import copy
import math
import operator
import threading
from fractions import Fraction

import numpy as np
import pytest

from streammoe import InvalidEvent, MoERegressor
from streammoe.model.bound import Bound

N, WARMUP = 900, 150


def stream():
    """Return events with a change of what is true, targets far out, and missing values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    y = np.where(X[:, 0] > 0.0, X @ rng.normal(size=4), X @ rng.normal(size=4)) + 0.1 * rng.normal(size=N)
    y[N // 2 :] += 6.0 * X[N // 2 :, 1]
    y[700:703] = 300.0
    events = [{f"x{j}": float(v) for j, v in enumerate(row)} for row in X]
    for i in range(0, N, 17):
        del events[i]["x2"]
    for i in range(5, N, 19):
        events[i]["x3"] = int(events[i]["x3"])
    return events, y.tolist()


def learned(model, events, targets):
    """Predict and learn each event, some with a weight; return the predictions."""
    found = []
    for i, (x, y) in enumerate(zip(events, targets, strict=True)):
        found.append(model.predict_one(x))
        model.learn_one(x, y, 0.5 if i % 23 == 0 else 1.0)
    return found


def settled_model():
    events, targets = stream()
    model = MoERegressor(2, warmup=WARMUP)
    learned(model, events[:400], targets[:400])
    return model, events, targets


def test_a_bad_event_changes_nothing():
    model, events, _ = settled_model()
    before = model.state_digest()
    for x0, y, reason in (
        (math.inf, 0.0, "not_finite"),
        (1e60, 0.0, "out_of_range"),
        (1e9, 0.0, "out_of_range"),
        (0.0, 1e60, "out_of_range"),
        *((value, 0.0, "wrong_type") for value in ("1.0", 1.0 + 0.0j, Fraction(1), np.array(1.0))),
        (0.0, math.nan, "not_finite"),
        (0.0, None, "wrong_type"),
        (0.0, Fraction(1), "wrong_type"),
    ):
        with pytest.raises(InvalidEvent) as caught:
            model.learn_one({**events[1], "x0": x0}, y)
        assert (caught.value.reason, caught.value.row) == (reason, None)
        if reason == "wrong_type" and y == 0.0:
            with pytest.raises(InvalidEvent):
                model.predict_one({**events[1], "x0": x0})
    assert model.state_digest() == before


def test_a_target_that_is_taken_for_an_error_hardly_counts():
    model, events, _ = settled_model()
    before = model.learner.state.experts.copy()
    model.learn_one(events[400], 300.0)
    np.testing.assert_allclose(model.learner.state.experts, before, rtol=1e-6, atol=1e-6)


REPLACED = ["context", "phase", *(f"context.{name}" for name in ("options", "detector", "encoder", "recent"))]
REPLACED += [f"context.encoder.{name}" for name in ("plan", "scaler", "scales", "target_scales", "bounds", "doubts")]
REPLACED += ["context.encoder.target_bounds", "phase.leader", "phase.portfolio", "phase.portfolio.singles"]
REPLACED += ["phase.portfolio.trust"]


def spoilt(thing):
    """Write nonsense to all arrays of an object, and return how many there are."""
    if isinstance(thing, np.ndarray):
        thing[...] = -1
        return 1
    if isinstance(thing, Bound):  # it refers to what it was bound to
        return 0
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, tuple | list) else None
    if parts is None:
        parts = vars(thing).values() if hasattr(thing, "__dict__") and not callable(thing) else ()
    return sum(map(spoilt, parts))


def test_whatever_is_replaced_is_noticed():
    base, events, targets = settled_model()
    twin = copy.deepcopy(base)
    learned(twin, events[400:410], targets[400:410])
    expected = learned(twin, events[410:450], targets[410:450])
    for path in REPLACED:
        model = copy.deepcopy(base)
        learned(model, events[400:410], targets[400:410])
        place, _, name = f"learner.{path}".rpartition(".")
        owner = operator.attrgetter(place)(model)
        before = getattr(owner, name)
        setattr(owner, name, copy.deepcopy(before))
        assert spoilt(before) or name == "options"
        assert learned(model, events[410:450], targets[410:450]) == expected, path
        assert model.state_digest() == twin.state_digest(), path


@pytest.mark.parametrize("where", ["detector.declare", "reservoir.add_one", "undo.notes"])
def test_an_interrupted_event_is_not_learned(where, monkeypatch):
    for name, value in {"BLOCK": 8, "CALIBRATION": 3, "TOLERANCE": 0.1, "THRESHOLD": 1.0}.items():
        monkeypatch.setattr(f"streammoe.engine.drift.{name}", value)  # so that there is a drift
    monkeypatch.setattr("streammoe.engine.schedule.SETTLED", 100)  # from which on losses are watched
    events, targets = stream()
    model = MoERegressor(2, warmup=WARMUP, reservoir=20)
    learned(model, events[:320], targets[:320])
    twin = copy.deepcopy(model)

    def interrupt(*_):
        raise KeyboardInterrupt

    done = []

    def learn_on():
        for i in range(320, 600):
            model.learn_one(events[i], targets[i])
            done.append(i)

    with monkeypatch.context() as patch:
        owner = model.learner if where.startswith("undo") else model.learner.context
        patch.setattr(operator.attrgetter(where.partition(".")[0])(owner), where.partition(".")[2], interrupt)
        with pytest.raises(KeyboardInterrupt):
            learn_on()
    at = 320 + len(done)
    assert model.n == at
    learned(model, events[at:700], targets[at:700])
    for i in range(320, at):
        twin.learn_one(events[i], targets[i])
    learned(twin, events[at:700], targets[at:700])
    assert model.state_digest() == twin.state_digest()


def test_threads_that_predict_do_not_disturb_each_other():
    model, events, _ = settled_model()
    expected = [model.predict_one(x) for x in events[:50]]
    wrong = []

    def ask():
        for _ in range(40):
            wrong.extend(i for i, x in enumerate(events[:50]) if model.predict_one(x) != expected[i])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
