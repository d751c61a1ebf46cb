"""Fits: when they begin and are taken, that nothing is lost meanwhile, and what they leave as it is."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.distributions import Gaussian
from streammoe.engine import mixture, schedule
from streammoe.engine.members import KINDS
from streammoe.model import fits, streaming
from tests.unit.estimators.models import NAMES, STREAMS, WARM, same, trained

N = 4 * WARM + 60


@pytest.fixture
def spread(monkeypatch):
    """Let fits take as many events as they may."""
    monkeypatch.setattr(fits, "AT_ONCE", 1.0)


def begins(model, n):
    """Event counts until n at which fits begin, with those at which they are taken; none begins amid another."""
    found, end, first = {}, 0, model.learner.context.first_fit
    while (at := min(schedule.next_fit(end, first), schedule.next_scaling(end, first))) <= n:
        end = found[at] = at + max(at // fits.PART, 1)
    return found


def test_fits_begin_and_are_taken_at_fixed_counts(spread, monkeypatch):
    X, y = STREAMS[MoERegressor](N)
    model, found, take = trained(n=0), {}, streaming.Streaming._take

    def taken(phase, context, plan, result):
        found[plan.n] = phase.n
        assert plan.n_rows == plan.n
        return take(phase, context, plan, result)

    monkeypatch.setattr(streaming.Streaming, "_take", taken)
    for start in range(0, N, 7):
        model.learn_array(X[start : start + 7], y[start : start + 7], feature_names=NAMES)
    assert found == {at: end for at, end in begins(model, N).items() if end <= N}
    assert {WARM, 2 * WARM, 4 * WARM} <= found.keys()


OWN = ("state.", "encoder.", *(f"portfolio.{kind.name}." for kind in KINDS))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(MoERegressor, {}), (MoEMultiTargetRegressor, {"expert": Gaussian("full")}), (MoEClassifier, {"degree": 2})],
)
def test_events_that_come_during_a_fit_are_learned_as_if_it_had_taken_no_time(kind, arguments, monkeypatch):
    """All but trust, which is in what predicted them."""
    X, y = STREAMS[kind](N)
    models = []
    for at_once in (1e18, 1.0):
        monkeypatch.setattr(fits, "AT_ONCE", at_once)
        model = trained(kind, n=0, drift=None, **arguments)
        model.learn_array(X, y, feature_names=NAMES)
        assert model.learner.phase.fit is None
        models.append({name: array for name, array in model.arrays().items() if name.startswith(OWN)})
    assert models[0].keys() == models[1].keys()
    for name, array in models[0].items():
        assert models[1][name].tobytes() == array.tobytes(), name


@pytest.fixture
def few_rows(monkeypatch):
    """Let at most so many rows be kept."""
    for name in ("LEAST_CAPACITY", "MOST_ROWS"):
        monkeypatch.setattr(f"streammoe.engine.recent.{name}", 5 * WARM)


def test_restarts_amid_fits_go_on_bit_for_bit(few_rows, spread, tmp_path):
    """Inputs leave their range meanwhile, and rows are dropped that are not needed any more."""
    X, y = STREAMS[MoERegressor](7 * WARM)
    X[4 * WARM :] *= 3.0
    whole, model = trained(n=0), trained(n=0)
    whole.learn_array(X, y, feature_names=NAMES)
    for at in range(len(X)):
        model.learn_array(X[[at]], y[[at]], feature_names=NAMES)
        if at % 3 == 0:
            model.save(tmp_path / "model")
            model = load(tmp_path / "model")
    assert same(model, whole)


@pytest.mark.parametrize("kind", STREAMS)
def test_parameters_on_other_scales_predict_the_same(kind):
    arguments = {"expert": Gaussian("full")} if kind is MoEMultiTargetRegressor else {}
    model = trained(kind, **arguments)
    context, rng = model.learner.context, np.random.default_rng(0)
    encoder, other = context.encoder, context.encoder.copy()
    X, y = STREAMS[kind](20, seed=3)
    moved = (array + rng.uniform(0.1, 2.0, size=array.shape) for array in encoder.scaler)
    other.scaler = encoder.scaler._replace(**dict(zip(encoder.scaler._fields, moved, strict=True)))
    if kind is MoEClassifier:
        other.scaler = other.scaler._replace(target_center=np.zeros(1), target_scale=np.ones(1))
    theta = mixture.served_parameters(model.learner.state)
    said = []
    for each, own in ((theta, encoder), (fits.rescaled(theta, encoder.scaler, other.scaler, context), other)):
        scaler = own.scaler
        Y = np.zeros((20, 1)) if kind is MoEClassifier else y.reshape(20, -1)
        W, R = own.design(X)
        n_outputs = context.targets.n_outputs
        Z = (Y - scaler.target_center) / scaler.target_scale
        scores, _ = mixture.score(context.family, each, W, R, Z, n_outputs=n_outputs)
        unit = np.log(scaler.target_scale).sum()
        means = scores.predictions * scaler.target_scale + scaler.target_center
        said.append((scores.losses + unit, scores.predictions if kind is MoEClassifier else means))
    for found, expected in zip(*said, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
