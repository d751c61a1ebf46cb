"""Whatever comes in: it is learned and all numbers stay finite, or it is rejected and nothing has changed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian
from streammoe.options import WarmUp


def no_dust(number):
    """Below 1e-25 the fourth power, which a Gram matrix of squares holds, vanishes; the last test is about those."""
    return 0.0 if abs(number) < 1e-25 else number


def consistent(drawn):
    """Arguments that go together."""
    return drawn | {"standardize": drawn["standardize"] and drawn["warmup"].size > 0}


sound = st.floats(-100, 100).map(no_dust)
poison = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 1e51, 1.7e308, None, "7", b"7", [], 10**400]),
    st.complex_numbers(),
)
of_any_size = st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(-15, 15))
value = st.one_of(sound, sound, sound, of_any_size, of_any_size, st.floats().map(no_dust), poison)
# Never without a feature: columns are those of the first event.
numbers = st.dictionaries(st.sampled_from(["a", "b"]), value, min_size=1)
others = st.fixed_dictionaries(
    {},
    optional={
        "c": st.one_of(st.text(max_size=3), st.sampled_from("de"), st.booleans(), st.integers(), poison),
        "t": st.one_of(st.datetimes(), st.dates(), st.floats(-1e9, 1e10), st.just("yesterday"), poison),
    },
)
features = st.builds(lambda some, more: {**some, **more}, numbers, others)
arguments = st.fixed_dictionaries(
    {
        "n_experts": st.integers(1, 3),
        "degree": st.integers(1, 2),
        "gate_degree": st.integers(1, 2),
        "warmup": st.sampled_from([WarmUp(size, restarts=1) for size in (0, 3, 15)]),
        "standardize": st.booleans(),
        "range_factor": st.sampled_from([0.0, 1e6]),
        "top_k": st.sampled_from([None, None, 1]),
        "batch_size": st.sampled_from([1, 1, 2, 7]),
        "schedule": st.sampled_from([None, schedules.power(0.5), schedules.power(1.0), schedules.constant(0.3)]),
        "categorical": st.just(("c",)),
        "timestamps": st.just(("t",)),
        "max_levels": st.just(4),
    }
).map(consistent)
bounds = st.sampled_from(["sharp", "tight", "adaptive", "paper"])
label = st.one_of(st.sampled_from(["a", "b", 1, True, 2.5, np.int64(3), np.bool_(False)]), st.text(max_size=2), poison)
several = st.dictionaries(st.sampled_from(["u", "v"]), value, min_size=1)
# Without a fixed set of outputs nearly every event would be rejected.
pair = st.one_of(st.fixed_dictionaries({"u": value, "v": value}), several)
KINDS = {
    MoERegressor: (
        value,
        st.fixed_dictionaries({"bound": bounds, "expert": st.sampled_from(["gaussian", "student_t", "laplace"])}),
    ),
    MoEMultiTargetRegressor: (
        pair,
        st.sampled_from([{"expert": "gaussian"}, {"expert": Gaussian("full")}, {"expert": "student_t"}]),
    ),
    MoEClassifier: (
        label,
        st.fixed_dictionaries(
            {
                "bound": bounds,
                "max_classes": st.sampled_from([3, 5]),
                "classes": st.sampled_from([None, None, ("a", "b"), (True, False, "a")]),
            }
        ),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data(), arguments=arguments)
def test_an_event_is_learned_whole_or_leaves_no_trace(kind, data, arguments):
    target, more = KINDS[kind]
    event = st.tuples(features, target, st.sampled_from([1.0, 1.0, 2, 0.25, 1e6]))
    stream = data.draw(st.lists(event, min_size=15, max_size=30))
    given_arguments = arguments | data.draw(more)
    model, clean = kind(**given_arguments), kind(**given_arguments)
    for x, y, w in stream:
        before, names, n = model.state_digest(), model.feature_names, model.n
        try:
            model.learn_one(x, y, w=w)
        except InvalidEvent:
            assert (model.state_digest(), model.feature_names, model.n) == (before, names, n)
        else:
            assert model.n == n + 1
            assert model.state_digest() != before
            clean.learn_one(x, y, w=w)
        assert model.is_finite()
    # What was rejected is as if it had never come.
    assert model.state_digest() == clean.state_digest()
    predicted = model.predict_one({"a": 1.0, "b": -1.0})
    if kind is MoEClassifier:
        assert predicted in [*model.class_labels, None]
        probabilities = model.predict_proba_one({"a": 1.0, "b": -1.0})
        assert not probabilities or math.isclose(sum(probabilities.values()), 1.0)
    else:
        assert np.isfinite([*predicted.values()] if isinstance(predicted, dict) else predicted).all()


def test_values_whose_squares_vanish_do_no_harm():
    for degree, tiny in ((2, 1e-78), (1, 1e-155), (2, 1e-155)):
        model = MoERegressor(1, degree=degree, warmup=3, standardize=False)
        for value in (0.0, 0.0, tiny, 1.0, 2.0, 1000.0):
            model.learn_one({"a": value}, value)
            assert model.is_finite()
