"""Groups of events that make one step. Tests of the contract hold their iterates to the oracle."""

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.options import WarmUp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Y = np.abs(X[:, 0]) + 0.1 * RNG.normal(size=300)
QUICK = {"warmup": WarmUp(100, restarts=1)}


def regressor(n_experts=2, **arguments):
    model = MoERegressor(n_experts, **{**QUICK, "batch_size": 8, **arguments})
    model.learn_array(X[:100], Y[:100])
    return model


def test_nothing_moves_before_the_group_is_full():
    model = regressor(serve="polyak", hold=False)
    before, predictions = model.parameters(), model.predict_array(X)
    model.learn_array(X[100:107], Y[100:107])
    assert (model.n, model.parameters()["n"]) == (107, 100)
    assert (model.parameters()["experts"] == before["experts"]).all()
    assert (model.predict_array(X) == predictions).all()
    model.learn_array(X[107:108], Y[107:108])
    assert model.n == model.parameters()["n"] == 108
    assert (model.parameters()["experts"] != before["experts"]).all()


def test_a_group_counts_as_many_iterates_as_it_has_events():
    one, eight = regressor(batch_size=1), regressor()
    before = eight.parameters(averaged=True)["experts"]
    for model in (one, eight):
        model.learn_array(X[100:108], Y[100:108])
    assert one.learner.state.n_average == eight.learner.state.n_average > 8
    raw, served = (eight.parameters(averaged=averaged)["experts"] for averaged in (False, True))
    np.testing.assert_allclose(served, before + 8 / eight.learner.state.n_average * (raw - before), rtol=1e-9)
    assert one.learner.state.decay == pytest.approx(eight.learner.state.decay, rel=1e-12)
    assert one.learner.state.prior_weight == pytest.approx(eight.learner.state.prior_weight, rel=1e-12)


def test_a_heavy_event_far_out_does_no_more_harm_than_without_groups():
    rng = np.random.default_rng(1)
    inputs, fresh = rng.normal(size=(1_500, 3)), rng.normal(size=(200, 3))
    slopes = np.array([1.0, 2.0, 3.0])
    y = inputs @ slopes + 0.1 * rng.normal(size=1_500)
    inputs[500, 0], y[500] = 9e3, 1.0
    weights = np.where(np.arange(1_500) == 500, 1e6, 1.0)
    errors = []
    for batch_size in (1, 8):
        model = MoERegressor(2, expert="laplace", batch_size=batch_size, **QUICK, degree=2, range_factor=0.0)
        model.learn_array(inputs, y, w=weights)
        errors.append(float(np.sqrt(np.mean((model.predict_array(fresh) - fresh @ slopes) ** 2))))
    assert errors[1] < 1.5 * errors[0] + 0.02, errors


@pytest.mark.parametrize(("scale", "weight"), [(1e6, 1.0), (1e5, 1e6)])
def test_an_event_far_out_or_of_great_weight_ends_the_group_before_it(scale, weight):
    whole, cut = regressor(range_factor=0.0), regressor(range_factor=0.0)
    rows, weights = np.concatenate([X[100:103], X[103:104] * scale, X[104:140]]), np.ones(40)
    weights[3] = weight
    whole.learn_array(rows, Y[100:140], w=weights)
    for i, row in enumerate(rows):
        cut.learn_array(row[None], Y[100 + i : 101 + i], w=weights[i : i + 1])
        assert cut.n == 101 + i
        assert cut.parameters()["n"] == (100 if i < 3 else 104 + 8 * ((i - 3) // 8))
    assert cut.state_digest() == whole.state_digest()
