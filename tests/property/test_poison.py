"""Whatever comes in: it is learned and all numbers stay finite, or it is refused and nothing has changed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe import InvalidEvent, MoERegressor, schedules

names = st.sampled_from(["a", "b", "c"])


def no_dust(number):
    """Below 1e-25 the fourth power, which a Gram matrix of squares holds, vanishes; the last test is about those."""
    return 0.0 if abs(number) < 1e-25 else number


sound = st.floats(-100, 100).map(no_dust)
poison = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 1e51, 1.7e308, None, "7", b"7", [], 10**400]),
    st.complex_numbers(),
)
of_any_size = st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(-15, 15))
value = st.one_of(sound, sound, sound, of_any_size, of_any_size, st.floats().map(no_dust), poison)
arguments = st.fixed_dictionaries(
    {
        "n_experts": st.integers(1, 3),
        "degree": st.integers(1, 2),
        "gate_degree": st.integers(1, 2),
        "warmup": st.sampled_from([0, 3, 15]),
        "warmup_restarts": st.just(1),
        "standardize": st.booleans(),
        "range_factor": st.sampled_from([0.0, 1e6]),
        "schedule": st.sampled_from([None, schedules.power(0.5), schedules.power(1.0), schedules.constant(0.3)]),
    }
).map(lambda drawn: drawn | {"standardize": drawn["standardize"] and drawn["warmup"] > 0})


def event(of):
    # Never without a feature: columns are those of the first event.
    return st.tuples(st.dictionaries(names, of, min_size=1), of)


@settings(max_examples=100, deadline=None)
@given(arguments=arguments, stream=st.lists(event(value), min_size=20, max_size=60))
def test_an_event_is_learned_whole_or_leaves_no_trace(arguments, stream):
    model = MoERegressor(**arguments)
    clean = MoERegressor(**arguments)
    for x, y in stream:
        before, n = model.state_digest(), model.n
        try:
            model.learn_one(x, y)
            learned = 1
        except InvalidEvent:
            learned = 0
        assert model.n == n + learned
        assert (model.state_digest() != before) == bool(learned)
        assert model.is_finite()
        if learned:
            clean.learn_one(x, y)
    # What was refused is as if it had never come.
    assert model.state_digest() == clean.state_digest()
    assert math.isfinite(model.predict_one({"a": 1.0, "b": -1.0}))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 30),
    bad=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 3), st.sampled_from([math.nan, math.inf, 1e300]))),
    start=st.sampled_from([0, 10, 40]),
)
def test_an_array_is_learned_whole_or_leaves_no_trace(rows, bad, start):
    rng = np.random.default_rng(rows)
    model = MoERegressor(2, warmup=20, warmup_restarts=1)
    if start:
        model.learn_array(rng.normal(size=(start, 3)), rng.normal(size=start))
    before = model.state_digest()
    table = rng.normal(size=(rows, 4))
    hit = [(row, column, number) for row, column, number in bad if row < rows]
    for row, column, number in hit:
        table[row, column] = number
    if hit:
        with pytest.raises(InvalidEvent) as refused:
            model.learn_array(table[:, :3], table[:, 3])
        assert refused.value.row in {row for row, _, _ in hit}
        assert model.state_digest() == before
    else:
        assert model.learn_array(table[:, :3], table[:, 3]).shape == (rows,)
        assert model.is_finite()


@pytest.mark.parametrize(("degree", "tiny"), [(2, 1e-78), (1, 1e-155), (2, 1e-155)])
def test_values_whose_squares_vanish_do_no_harm(tiny, degree):
    model = MoERegressor(1, degree=degree, warmup=3)
    for value in (0.0, 0.0, tiny, 1.0, 2.0, 1000.0):
        model.learn_one({"a": value}, value)
        assert model.is_finite()
