"""Steps: their formulas, restarts, and settings."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.options import CHOICES
from streammoe.schedules import SCHEDULES, Constant, Power, Restarted

SAMPLES = [Power(0.5), Power(1.0), Power(0.6, gamma0=0.7, offset=2), Constant(0.01)]
schedules = pytest.mark.parametrize("schedule", SAMPLES, ids=str)


@schedules
def test_steps_never_grow_but_where_they_restart(schedule):
    steps = np.array([schedule(n) for n in range(1, 1001)])
    assert ((steps > 0) & (steps < 1)).all()
    assert (np.diff(steps) <= 0).all()
    assert schedule.forgets == isinstance(schedule, Constant)
    again = Power() if schedule.forgets else schedule
    restarted = Restarted(schedule, again, 1000, 50)
    assert [restarted(n) for n in (1001, 1900)] == [again(51), max(schedule(1900), again(950))]


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
    n=st.integers(1, 10**15),
)
@settings(max_examples=50)
def test_power_is_its_formula_and_never_one(alpha, gamma0, offset, n):
    assert Power(alpha, gamma0, offset)(n) == min(gamma0 * math.pow(n + offset, -alpha), 1 - 1e-12)
    assert Power(1.0)(1) == Constant(math.nextafter(1, 0))(1) == 1 - 1e-12
