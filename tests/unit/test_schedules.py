"""Steps: their formulas, the bits of arrays and single numbers, restarts, and settings."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from streammoe.schedules import SCHEDULES, Constant, Power, Restarted, constant, from_settings, power, to_settings

SAMPLES = [power(0.5), power(1.0), power(0.6, gamma0=0.7, offset=2), constant(0.01)]
AT, SEEN = 1000, 50
WRONG = [
    {"kind": "power", "alpha": 0.49},
    {"kind": "power", "alpha": 1.01},
    {"kind": "power", "alpha": math.nan},
    {"kind": "power", "alpha": "0.6"},
    {"kind": "power", "alpha": True},
    {"kind": "power", "gamma0": 0},
    {"kind": "power", "gamma0": math.inf},
    {"kind": "power", "offset": -1},
    {"kind": "constant", "gamma": 0},
    {"kind": "constant", "gamma": 1},
    {"kind": "constant"},
    {"kind": "power", "alfa": 1},
    {"kind": "cosine"},
    {},
]


def restarted(schedule):
    return Restarted(schedule, power() if schedule.forgets else schedule, AT, SEEN)


@pytest.mark.parametrize("schedule", SAMPLES, ids=str)
class TestEverySchedule:
    def test_steps_lie_between_0_and_1_and_never_grow(self, schedule):
        steps = schedule.steps(1, 1000)
        assert ((steps > 0) & (steps < 1)).all()
        assert (np.diff(steps) <= 0).all()
        assert schedule.forgets == isinstance(schedule, Constant)

    def test_arrays_have_the_bits_of_single_steps_wherever_they_are_cut(self, schedule):
        assert schedule.steps(1, 5000).tolist() == [schedule(n) for n in range(1, 5001)]
        for each, first in ((schedule, 1), (restarted(schedule), AT + 1)):
            expected = [each(n) for n in range(first, first + 40)]
            for cut in range(41):
                assert [*each.steps(first, cut), *each.steps(first + cut, 40 - cut)] == expected

    def test_survives_settings_pickle_and_repr(self, schedule):
        assert from_settings(to_settings(schedule)) == schedule
        assert pickle.loads(pickle.dumps(schedule)) == schedule
        assert eval(repr(schedule)) == schedule

    def test_restarted_steps_are_wider_and_shrink_to_what_they_would_have_been(self, schedule):
        steps = restarted(schedule).steps(AT + 1, 5000)
        assert steps[0] == max(schedule(AT + 1), (power() if schedule.forgets else schedule)(SEEN + 1))
        assert steps[0] > schedule(AT + 1)
        assert (np.diff(steps) <= 0).all()
        assert (steps >= schedule.steps(AT + 1, 5000)).all()
        assert not schedule.forgets or steps[-1] == schedule(1)
        # Events that were not there make no step smaller.
        late = Restarted(schedule, schedule, 10, 1000)
        assert late.steps(11, 100).tolist() == schedule.steps(11, 100).tolist()


def test_every_schedule_is_sampled():
    assert {type(schedule) for schedule in SAMPLES} == set(SCHEDULES.values())


@given(
    alpha=st.floats(0.5, 1),
    gamma0=st.floats(1e-6, 1e6),
    offset=st.floats(0, 1e6),
    first=st.integers(1, 10**15),
    count=st.integers(0, 40),
)
def test_power_is_its_formula(alpha, gamma0, offset, first, count):
    expected = [min(gamma0 * math.pow(n + offset, -alpha), 1 - 1e-12) for n in range(first, first + count)]
    assert power(alpha, gamma0, offset).steps(first, count).tolist() == expected


def test_a_step_is_never_one():
    assert power(1.0)(1) == power(1.0).steps(1, 1)[0] == 1 - 1e-12
    assert constant(math.nextafter(1, 0))(1) == 1 - 1e-12


def test_ends_of_closed_ranges_and_numpy_numbers_are_fine():
    for alpha in (0.5, 1, np.float64(0.7), np.int64(1)):
        assert power(alpha, offset=0) == Power(float(alpha), 1.0, 0.0)
        assert type(power(alpha).alpha) is float


def test_wrong_settings_are_rejected_all_at_once():
    for settings in WRONG:
        with pytest.raises(ConfigError):
            from_settings(settings)
    with pytest.raises(ConfigError) as rejected:
        power(2, gamma0=-1)
    assert len(rejected.value.problems) == 2
