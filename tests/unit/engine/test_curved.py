"""The curved member of a portfolio: when it takes part and leaves, and that neither depends on how events were fed."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.options import WarmUp

RNG = np.random.default_rng(2)
X = RNG.normal(size=(3_600, 3))
DISTANCE = (X**2).sum(axis=1)
RING = (DISTANCE > 2.4).astype(int)
PLANE = X[:, 0] - X[:, 1] + 0.1 * RNG.normal(size=len(X))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("streammoe.engine.warmup.pace", lambda *_: np.inf)


def model_of(kind, **more):
    return kind(**{"n_experts": 2, "warmup": WarmUp(400, restarts=1), "standardize": True, **more})


def learned(kind, y, **more):
    model = model_of(kind, **more)
    return model, model.learn_array(X[: len(y)], y)


def test_it_is_trusted_where_regions_are_curved():
    with_it, losses = learned(MoEClassifier, RING)
    _, without = learned(MoEClassifier, RING, curved="off")
    assert with_it.member_weights["curved"] > 0.9
    assert losses[400:].mean() < 0.8 * without[400:].mean()


def test_it_leaves_where_it_does_not_help_unless_it_was_asked_for():
    assert "curved" not in learned(MoERegressor, PLANE)[0].member_weights
    stays, losses = learned(MoERegressor, PLANE, curved="on", refits=False)
    assert 0.0 < stays.member_weights["curved"] < 1e-3
    never, expected = learned(MoERegressor, PLANE, curved="off", refits=False)
    assert losses[2_500:].mean() == pytest.approx(expected[2_500:].mean(), abs=1e-3)
    assert not {"refitted", "curved"} & never.member_weights.keys()


def test_it_comes_back_where_the_average_is_no_longer_trusted():
    model, _ = learned(MoERegressor, np.where(X[:, 0] > 0.0, PLANE, X[:, 2])[:2_048], drift=None)
    assert "curved" not in model.member_weights
    for start in range(0, 2_560, 512):
        rows = slice(start, start + 512)
        model.learn_array(X[rows], DISTANCE[rows])
        assert ("curved" in model.member_weights) == (model.n >= 2 * 2_048)
    assert model.member_weights["curved"] > 0.9


def test_asked_for_before_ranges_are_known_it_joins_as_soon_as_they_are():
    model, plain = (model_of(MoERegressor, warmup=WarmUp(60, restarts=1), curved=each) for each in ("on", "off"))
    losses = [each.learn_array(X, DISTANCE) for each in (model, plain)]
    assert model.member_weights["curved"] > 0.5
    assert losses[0][1_500:].mean() < losses[1][1_500:].mean() - 0.1
    without_scale = model_of(MoERegressor, warmup=0, curved="on")  # inputs might be anything
    without_scale.learn_array(X, DISTANCE)
    assert "curved" not in without_scale.member_weights
