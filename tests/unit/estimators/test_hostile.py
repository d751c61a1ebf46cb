"""What hostile users have found; each of these once went wrong."""

import numpy as np
import pandas as pd
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor


def repr_of_type(value):
    """To name a case by, where Python cannot write the value."""
    return type(value).__name__


ESTIMATORS = [MoERegressor, MoEClassifier, MoEMultiTargetRegressor]


def test_one_categorical_expert_starts_with_its_first_class():
    model = MoEClassifier(n_experts=1)
    for i in range(30):
        model.learn_one({"a": float(i)}, "p" if i % 3 else "q")
    assert sum(model.predict_proba_one({"a": 2.0}).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("warmup", [0, 1, 50])
def test_a_frame_may_begin_with_a_new_label_and_a_new_level(warmup):
    X = pd.DataFrame({"a": [1.0, 2.0, 0.5, 0.1], "c": ["x", "y", "x", "z"]})
    y = pd.Series(["p", "q", "p", "r"])
    whole, loop = (MoEClassifier(n_experts=2, warmup=warmup, categorical=("c",), seed=1) for _ in range(2))
    for rows in (slice(0, 2), slice(2, 3), slice(3, 4)):
        whole.learn_many(X[rows], y[rows])
    for x, label in zip(X.to_dict("records"), y, strict=True):
        loop.learn_one(x, label)
    assert whole.state_digest() == loop.state_digest()


@pytest.mark.parametrize("weights", [[0.0, 1.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]])
def test_rows_of_weight_zero_leave_a_frame_as_they_leave_a_loop(weights):
    X = pd.DataFrame({"a": [0.1, 0.2, 0.3], "c": ["u", "u", "v"]})
    y = pd.Series([1.0, 2.0, 3.0])
    frame, loop = (MoERegressor(n_experts=2, warmup=0, categorical=("c",)) for _ in range(2))
    for x, target, w in zip(X.to_dict("records"), y, weights, strict=True):
        loop.learn_one(x, target, w)
    frame.learn_many(X, y, weights)
    assert frame.state_digest() == loop.state_digest()


def test_the_row_of_an_error_counts_those_of_weight_zero():
    X = np.array([[1.0], [2.0], [1e60]])
    with pytest.raises(InvalidEvent) as refused:
        MoERegressor().learn_array(X, np.ones(3), weights=np.array([0.0, 1.0, 1.0]))
    assert refused.value.row == 2


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("absurd", [999.0, -99999.0])
def test_one_absurd_value_within_the_warm_up_is_forgotten(absurd, standardize):
    """It shapes neither the prior nor the scales, which never fade."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8000, 2))
    y = X[:, 0] + 0.3 * rng.normal(size=8000)
    spoilt, far_target = X.copy(), y.copy()
    spoilt[100, 0] = absurd
    far_target[100] = absurd
    labels = np.where(y > 0.0, "p", "q")
    arguments = {"n_experts": 2, "warmup_restarts": 1, "standardize": standardize, "averaging": None}

    def late(estimator, X, y):
        return estimator(**arguments).learn_array(X, y)[-2000:].mean()

    assert late(MoERegressor, spoilt, y) < late(MoERegressor, X, y) + 0.05
    assert late(MoERegressor, X, far_target) < late(MoERegressor, X, y) + 0.05
    assert late(MoEClassifier, spoilt, labels) < late(MoEClassifier, X, labels) + 0.05


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("x", [None, [("a", 1.0)], "a"])
def test_an_event_is_a_mapping(estimator, x):
    model = estimator()
    before = model.state_digest()
    target = {"u": 1.0} if estimator is MoEMultiTargetRegressor else 1
    with pytest.raises(InvalidEvent, match="mapping"):
        model.learn_one(x, target)
    assert model.state_digest() == before


@pytest.mark.parametrize("target", [1.0, None, "u", [1.0]])
def test_several_outputs_come_in_a_mapping(target):
    with pytest.raises(InvalidEvent, match="mapping"):
        MoEMultiTargetRegressor().learn_one({"a": 1.0}, target)


@pytest.mark.parametrize("value", [np.timedelta64(1, "s"), np.datetime64("2020-01-01")])
@pytest.mark.parametrize("categorical", [(), ("a",)])
def test_spans_and_dates_are_no_numbers(value, categorical):
    with pytest.raises(InvalidEvent) as refused:
        MoERegressor(categorical=categorical).learn_one({"a": value}, 1.0)
    assert refused.value.reason == "wrong_type"
    with pytest.raises(InvalidEvent):
        MoEClassifier().learn_one({"a": 1.0}, value)


def test_arrays_that_hide_values_are_refused():
    X = np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2))
    with pytest.raises(InvalidEvent, match="masked"):
        MoERegressor().learn_array(X, np.ones(2))


def test_columns_of_dates_are_no_labels():
    dates = pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"]))
    with pytest.raises(InvalidEvent, match="label"):
        MoEClassifier().learn_many(pd.DataFrame({"a": [1.0, 2.0]}), dates)


def test_columns_of_a_frame_have_names_of_their_own():
    X = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    with pytest.raises(InvalidEvent, match="more than once"):
        MoERegressor().learn_many(X, pd.Series([1.0]))


def test_probabilities_are_at_most_one():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    model = MoEClassifier(n_experts=3, warmup=300, warmup_restarts=1)
    model.learn_array(X, (X[:, 0] > 0.0).astype(int))
    assert model.predict_proba_array(30.0 * X).max() <= 1.0


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (float("nan"), "not_finite"),
        (np.float32("inf"), "not_finite"),
        ("1", "wrong_type"),
        (None, "wrong_type"),
        (-1, "out_of_range"),
        (10**5000, "out_of_range"),  # Python itself cannot write this number
    ],
    ids=repr_of_type,
)
def test_weights_are_refused_for_the_reasons_of_other_numbers(weight, reason):
    with pytest.raises(InvalidEvent, match=r"^w: got") as refused:
        MoERegressor().learn_one({"a": 1.0}, 1.0, w=weight)
    assert refused.value.reason == reason


@pytest.mark.parametrize("label", [10**5000, -(2**1024)], ids=["5,000 digits", "309 digits"])
def test_a_label_that_could_never_be_saved_is_refused(label):
    model = MoEClassifier()
    model.learn_one({"a": 1.0}, 2**1023)
    before = model.state_digest()
    with pytest.raises(InvalidEvent) as refused:
        model.learn_one({"a": 1.0}, label)
    assert refused.value.reason == "out_of_range"
    with pytest.raises(InvalidEvent):
        model.learn_array([[1.0]], [label])
    assert model.state_digest() == before


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("x", [None, [("a", 1.0)], "a", 10**5000], ids=repr_of_type)
def test_what_is_no_mapping_is_refused_when_predicting_too(estimator, x):
    with pytest.raises(InvalidEvent, match="mapping"):
        estimator().predict_one(x)


def test_rows_of_unequal_length_are_refused():
    with pytest.raises(InvalidEvent, match="not all of one length") as refused:
        MoERegressor().learn_array([[1.0], [1.0, 2.0]], [1.0, 2.0])
    assert refused.value.reason == "wrong_shape"
