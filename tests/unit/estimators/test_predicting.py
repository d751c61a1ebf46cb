"""What models say of an event: the mixture of the experts that they serve, in the units of the target."""

import copy
import math

import numpy as np
import pandas as pd
import pytest

from streammoe import ConfigError, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.columns.layout import Additions
from streammoe.distributions import Gaussian
from tests.oracle.literal import ALGORITHMS
from tests.unit.estimators.models import LABELS, NAMES, STREAMS, dicts, trained

FAMILIES = {
    "gaussian": (MoERegressor, {}),
    "student_t": (MoERegressor, {"expert": "student_t"}),
    "laplace": (MoERegressor, {"expert": "laplace"}),
    "gaussian of several outputs": (MoEMultiTargetRegressor, {}),
    "gaussian_full": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "student_t of several outputs": (MoEMultiTargetRegressor, {"expert": "student_t"}),
    "categorical": (MoEClassifier, {}),
}
METRIC = [name for name in FAMILIES if name != "categorical"]


def predictions(model, X):
    """What the model says of rows as an array; a frame and single events get the same answer."""
    way = "predict_proba" if isinstance(model, MoEClassifier) else "predict"
    found = getattr(model, f"{way}_array")(X)
    frame = getattr(model, f"{way}_many")(pd.DataFrame(X, columns=NAMES, index=np.arange(100, 100 + len(X))))
    each = [getattr(model, f"{way}_one")(x) for x in dicts(X)]
    assert found.tolist() == [list(one.values()) if isinstance(one, dict) else one for one in each]
    assert (frame.to_numpy().tolist(), frame.index[0]) == (found.tolist(), 100)
    assert getattr(model, f"{way}_array")(X[:, ::-1], feature_names=NAMES[::-1]).tolist() == found.tolist()
    assert found.ndim == 1 or frame.columns.tolist() == list(each[0]) == model.output_names
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_models_say_what_the_literal_mixture_of_the_served_experts_says(name):
    kind, arguments = FAMILIES[name]
    model = trained(kind, serve="polyak", standardize=False, **arguments)
    theta = model.parameters(averaged=True)
    literal = ALGORITHMS[name.split()[0]](theta)
    X, y = STREAMS[kind](10, seed=9)
    given = zip(dicts(X), X, y, model.log_likelihood_array(X, y), predictions(model, X), strict=True)
    for x, values, target, likelihood, prediction in given:
        row = np.append(1.0, values)
        logits = np.append(theta["gate"] @ row, 0.0)
        shares = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(model.gate_one(x), shares, rtol=1e-9)
        number = model.output_names.index(target) if kind is MoEClassifier else np.atleast_1d(target)
        joint = literal.log_joint(row, row, number)
        total = np.logaddexp.reduce(joint)
        assert likelihood == pytest.approx(total, rel=1e-9)
        if kind is MoEClassifier:
            expected = np.exp([literal.log_joint(row, row, m) for m in range(len(LABELS))]).sum(axis=1)
        else:
            expected = shares @ (theta["experts"] @ row)
        np.testing.assert_allclose(prediction, expected, rtol=1e-9)


@pytest.mark.parametrize("name", METRIC)
def test_the_distribution_has_the_likelihood_and_the_mean_of_the_model(name):
    kind, arguments = FAMILIES[name]
    X, y = STREAMS[kind](5, seed=9)
    model = trained(kind, **arguments, hold=False, serve="polyak")
    given = zip(dicts(X), y, predictions(model, X), model.log_likelihood_array(X, y), strict=True)
    for x, target, prediction, likelihood in given:
        found = model.predict_distribution_one(x)
        np.testing.assert_allclose(found.mean(), prediction, rtol=1e-9, atol=1e-12)
        assert math.log(found.pdf(target)) == pytest.approx(likelihood, rel=1e-8, abs=1e-9)
        if kind is MoERegressor:
            low, high = found.interval(0.9)
            assert found.cdf(high) - found.cdf(low) == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "arguments", "scale", "shift"),
    [
        (MoERegressor, {"expert": "student_t"}, 1000.0, -7.0),
        (MoEMultiTargetRegressor, {"expert": Gaussian("full")}, 1e-9, 0.0),
    ],
    ids=["one output", "full"],
)
def test_losses_and_divergences_are_in_the_units_of_the_target(kind, arguments, scale, shift):
    X, y = STREAMS[kind](400)
    plain, scaled = (trained(kind, 0, standardize=True, range_factor=0, **arguments) for _ in range(2))
    losses = plain.learn_array(X, y)[60:]
    unit = y[0].size * math.log(scale)
    np.testing.assert_allclose(scaled.learn_array(X, scale * y + shift)[60:], losses + unit, atol=1e-4)
    by_loss = (sorted(model.experts(), key=lambda expert: expert["loss"]) for model in (plain, scaled))
    for one, other in zip(*by_loss, strict=True):
        assert other["loss"] == pytest.approx(one["loss"] + unit, abs=1e-4)
        assert other["divergence"] == pytest.approx(one["divergence"], rel=1e-4)


def test_before_it_learns_a_model_says_that_it_knows_nothing():
    event, rows = {"a": 1.0}, np.ones((2, 1))
    regressor, classifier, outputs = MoERegressor(), MoEClassifier(), MoEMultiTargetRegressor()
    assert (regressor.predict_one(event), regressor.predict_array(rows).tolist()) == (0.0, [0.0, 0.0])
    assert (regressor.n, regressor.feature_names, regressor.is_warming_up) == (0, [], True)
    assert (classifier.predict_one(event), classifier.predict_proba_one(event)) == (None, {})
    assert classifier.predict_array(rows).tolist() == [None, None]
    assert (outputs.output_names, outputs.predict_one(event)) == ([], {})
    with pytest.raises(ConfigError):
        outputs.predict_distribution_one(event)


def test_a_column_left_out_is_missing_an_unknown_one_ignored_and_a_far_value_answered():
    model = trained()
    X, _ = STREAMS[MoERegressor](5, seed=9)
    found = model.predict_array(X, feature_names=["a", "other", "c"])
    assert found.tolist() == [model.predict_one({"a": a, "c": c}) for a, _, c in X.tolist()]
    for value in (1e49, -1e51, 1e300):
        assert math.isfinite(model.predict_one({"a": value}))
        assert np.isfinite(model.predict_array(np.array([[value, 0.0, 0.0]]))).all()


def test_a_model_that_was_read_while_it_grew_is_no_read_past_the_ends_of_arrays():
    """As a copy would be that another thread makes between two steps of learning a new column."""
    model = MoERegressor(2)
    model.learn_array(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0))
    encoder = model.learner.encoder
    encoder.use(encoder.columns.extended(Additions(tuple("abcdefghi"))))
    x = dict.fromkeys(encoder.fields, 0.0)
    for torn in (
        lambda: model.predict_one(x),
        lambda: model.predict_array(np.zeros((1, len(x)))),
        lambda: model.learn_one(x, 0.0),
    ):
        with pytest.raises(RuntimeError, match="another thread"):
            torn()


def test_a_copy_of_a_model_whose_outputs_are_not_known_finds_its_own():
    model = MoEMultiTargetRegressor()
    other = copy.copy(model)
    other.learn_one({"x": 1.0}, {"a": 1.0})
    assert (model.output_names, other.output_names) == ([], ["a"])
