"""Steps: their formulas, the bits of arrays and single numbers, restarts, and settings."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.options import CHOICES
from streammoe.schedules import SCHEDULES, Constant, Power, Restarted

SAMPLES = [Power(0.5), Power(1.0), Power(0.6, gamma0=0.7, offset=2), Constant(0.01)]
AT, SEEN = 1000, 50
schedules = pytest.mark.parametrize("schedule", SAMPLES, ids=str)


def restarted(schedule):
    return Restarted(schedule, Power() if schedule.forgets else schedule, AT, SEEN)


@schedules
def test_steps_are_those_of_single_numbers_wherever_they_are_cut_and_never_grow(schedule):
    steps = schedule.steps(1, 1000)
    assert ((steps > 0) & (steps < 1)).all()
    assert (np.diff(steps) <= 0).all()
    assert schedule.forgets == isinstance(schedule, Constant)
    assert steps.tolist() == [schedule(n) for n in range(1, 1001)]
    for each, first in ((schedule, 1), (restarted(schedule), AT + 1)):
        expected = [each(n) for n in range(first, first + 40)]
        for cut in range(41):
            assert [*each.steps(first, cut), *each.steps(first + cut, 40 - cut)] == expected


@schedules
def test_a_schedule_survives_settings_pickle_and_repr(schedule):
    assert {type(each) for each in SAMPLES} == set(SCHEDULES.values())
    assert CHOICES["schedule"].read(CHOICES["schedule"].table(schedule), None) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert eval(repr(schedule), {kind.__name__: kind for kind in SCHEDULES.values()}) == schedule


@given(
    alpha=st.floats(0.5, 1),
    gamma0=st.floats(1e-6, 1e6),
    offset=st.floats(0, 1e6),
    first=st.integers(1, 10**15),
    count=st.integers(0, 40),
)
@settings(max_examples=50)
def test_power_is_its_formula_and_never_one(alpha, gamma0, offset, first, count):
    expected = [min(gamma0 * math.pow(n + offset, -alpha), 1 - 1e-12) for n in range(first, first + count)]
    assert Power(alpha, gamma0, offset).steps(first, count).tolist() == expected
    assert Power(1.0)(1) == Power(1.0).steps(1, 1)[0] == Constant(math.nextafter(1, 0))(1) == 1 - 1e-12
