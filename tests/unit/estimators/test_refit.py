"""After a drift the mixture is fitted again to the events since."""

import logging

import numpy as np
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor
from streammoe.model import fits, streaming
from tests.unit.estimators.models import NAMES, STREAMS, trained

CHANGE, N = 2000, 2600
WATCHED = {"drift": "page_hinkley", "warmup": 100}


def started(kind, **more):
    model = trained(kind, 0, **WATCHED, **more)
    model.set_columns(NAMES)
    return model


def test_a_shift_by_ten_deviations_is_followed_within_400_events():
    """Without a refit, one expert takes all events that the others no longer explain, and they never come back."""
    X, y = STREAMS[MoERegressor](N + 400)
    model, calm = started(MoERegressor), started(MoERegressor)
    steady = calm.learn_array(X, y)
    losses = model.learn_array(X, np.where(np.arange(len(y)) < CHANGE, y, y + 10.0 * y.std()))
    assert (losses - steady)[CHANGE + 400 :].mean() < np.log(1.15)
    assert (model.drifts, calm.drifts) == (1, 0)


@pytest.mark.parametrize("amid", [False, True])
def test_fits_after_a_drift_are_to_events_since_the_change(amid, monkeypatch, caplog):
    """One in progress is given up."""
    due = 1_600
    change = due - 30 if amid else due - 300
    monkeypatch.setattr("streammoe.engine.drift.THRESHOLD", 16.0)  # so that it is found at once
    if amid:
        monkeypatch.setattr(fits, "AT_ONCE", 1.0)
    X, y = STREAMS[MoERegressor](due + 500)
    plans, new_fit = [], fits.new_fit

    def begin(*given, **more):
        fit = new_fit(*given, **more)
        plans.append(fit.plan)
        return fit

    monkeypatch.setattr(streaming, "new_fit", begin)
    model, calm, calm_y = started(MoERegressor), started(MoERegressor), y
    y = np.where(np.arange(len(y)) < change, y, y + 10.0 * y.std())
    model.learn_array(X[: due + 1], y[: due + 1])
    assert not amid or model.learner.phase.fit is not None
    with caplog.at_level(logging.INFO, "streammoe.estimators"):
        losses = model.learn_array(X[due + 1 :], y[due + 1 :])
    assert model.drifts == 1
    assert plans[-1].n == due
    assert plans[-1].n_rows == due if amid else plans[-1].n_rows <= due - change + 3
    monkeypatch.undo()
    assert losses[250:].mean() < calm.learn_array(X, calm_y)[due + 251 :].mean() + 0.3


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor])
def test_another_unit_of_the_target_is_followed_within_600_events(kind):
    """Losses fall, so the detector finds nothing; priors alone would keep predictions off by many deviations."""
    X, y = STREAMS[kind](N + 400)
    y[CHANGE:] /= 1000.0
    whole, calm = started(kind), started(kind)
    calm.learn_array(X, STREAMS[kind](N + 400)[1])
    whole.learn_array(X[:N], y[:N])
    found = whole.last_drift.n
    assert CHANGE + 2 * streaming.JUDGE_EVERY <= found <= CHANGE + 3 * streaming.JUDGE_EVERY
    errors = whole.learn_rows(X[N:], y[N:].reshape(400, -1)).predictions - y[N:].reshape(400, -1)
    assert (errors.std(axis=0) < 0.6 * y[N:].reshape(400, -1).std(axis=0)).all()
    assert (whole.drifts, calm.drifts) == (1, 0)
