import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from streammoe.schedules import (
    SCHEDULES,
    Constant,
    Power,
    Restarted,
    Schedule,
    constant,
    from_settings,
    power,
    to_settings,
)

SAMPLES = [power(), power(0.5), power(1.0), power(0.6, gamma0=0.7, offset=2), power(0.83, offset=0.5), constant(0.01)]


def test_every_schedule_is_sampled() -> None:
    assert {type(schedule) for schedule in SAMPLES} == set(SCHEDULES.values())


@pytest.mark.parametrize("schedule", SAMPLES, ids=str)
class TestEverySchedule:
    def test_is_a_step(self, schedule: Schedule) -> None:
        steps = schedule.steps(1, 1000)
        assert ((steps > 0) & (steps < 1)).all()
        assert (np.diff(steps) <= 0).all()

    def test_vector_equals_scalar_bit_for_bit(self, schedule: Schedule) -> None:
        expected = [schedule(n) for n in range(1, 5001)]
        assert schedule.steps(1, 5000).tolist() == expected

    def test_steps_do_not_depend_on_where_they_are_cut(self, schedule: Schedule) -> None:
        whole = schedule.steps(1, 40)
        for cut in range(41):
            parts = np.concatenate([schedule.steps(1, cut), schedule.steps(cut + 1, 40 - cut)])
            assert parts.tobytes() == whole.tobytes()

    def test_survives_settings_pickle_and_repr(self, schedule: Schedule) -> None:
        assert from_settings(to_settings(schedule)) == schedule
        assert pickle.loads(pickle.dumps(schedule)) == schedule
        assert eval(repr(schedule)) == schedule

    def test_says_whether_it_forgets(self, schedule: Schedule) -> None:
        assert schedule.forgets == isinstance(schedule, Constant)


@given(
    alpha=st.floats(0.5, 1),
    gamma0=st.floats(1e-6, 1e6),
    offset=st.floats(0, 1e6),
    first=st.integers(1, 10**15),
    count=st.integers(0, 40),
)
def test_power_is_its_formula(alpha: float, gamma0: float, offset: float, first: int, count: int) -> None:
    expected = [min(gamma0 * math.pow(n + offset, -alpha), 1 - 1e-12) for n in range(first, first + count)]
    assert power(alpha, gamma0, offset).steps(first, count).tolist() == expected


@pytest.mark.parametrize("schedule", SAMPLES, ids=str)
class TestStepsThatBeginAnew:
    AT, SEEN = 1000, 50

    def restarted(self, schedule: Schedule) -> Restarted:
        return Restarted(schedule, power() if schedule.forgets else schedule, self.AT, self.SEEN)

    def test_they_are_wider_and_shrink_to_what_they_would_have_been(self, schedule: Schedule) -> None:
        steps = self.restarted(schedule).steps(self.AT + 1, 5000)
        assert steps[0] == max(schedule(self.AT + 1), (power() if schedule.forgets else schedule)(self.SEEN + 1))
        assert steps[0] > schedule(self.AT + 1)
        assert (np.diff(steps) <= 0).all()
        assert (steps >= schedule.steps(self.AT + 1, 5000)).all()
        assert not schedule.forgets or steps[-1] == schedule(1)

    def test_vector_equals_scalar_bit_for_bit_wherever_it_is_cut(self, schedule: Schedule) -> None:
        steps = self.restarted(schedule)
        expected = [steps(n) for n in range(self.AT + 1, self.AT + 41)]
        for cut in range(41):
            parts = [*steps.steps(self.AT + 1, cut), *steps.steps(self.AT + 1 + cut, 40 - cut)]
            assert parts == expected

    def test_events_that_were_not_there_make_no_step_smaller(self, schedule: Schedule) -> None:
        late = Restarted(schedule, schedule, 10, 1000)
        assert late.steps(11, 100).tolist() == schedule.steps(11, 100).tolist()


def test_a_step_is_never_one() -> None:
    assert power(1.0)(1) == power(1.0).steps(1, 1)[0] == 1 - 1e-12
    assert constant(math.nextafter(1, 0))(1) == 1 - 1e-12


@pytest.mark.parametrize("alpha", [0.5, 1, np.float64(0.7), np.int64(1)])
def test_ends_of_closed_ranges_and_numpy_numbers_are_fine(alpha: float) -> None:
    assert power(alpha, offset=0) == Power(float(alpha), 1.0, 0.0)
    assert type(power(alpha).alpha) is float


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "power", "alpha": 0.49}, "alpha must be a number in [0.5, 1], got 0.49"),
        ({"kind": "power", "alpha": 1.01}, "alpha must be a number in [0.5, 1], got 1.01"),
        ({"kind": "power", "alpha": math.nan}, "alpha must be a number in [0.5, 1], got nan"),
        ({"kind": "power", "alpha": "0.6"}, "alpha must be a number in [0.5, 1], got '0.6'"),
        ({"kind": "power", "alpha": True}, "alpha must be a number in [0.5, 1], got True"),
        ({"kind": "power", "gamma0": 0}, "gamma0 must be a number in (0, inf), got 0"),
        ({"kind": "power", "gamma0": math.inf}, "gamma0 must be a number in (0, inf), got inf"),
        ({"kind": "power", "offset": -1}, "offset must be a number in [0, inf), got -1"),
        ({"kind": "constant", "gamma": 0}, "gamma must be a number in (0, 1), got 0"),
        ({"kind": "constant", "gamma": 1}, "gamma must be a number in (0, 1), got 1"),
        ({"kind": "constant"}, "a constant schedule takes gamma, got nothing"),
        ({"kind": "power", "alfa": 1}, "a power schedule takes alpha, gamma0, offset, got alfa"),
        ({"kind": "cosine"}, "schedule kind must be one of power, constant, got 'cosine'"),
        ({}, "schedule kind must be one of power, constant, got None"),
    ],
)
def test_refuses_and_says_why(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_settings(settings)
    assert str(refused.value) == sentence


def test_every_wrong_number_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        power(2, gamma0=-1)
    assert len(refused.value.problems) == 2
