import pytest

from streammoe.commands.produce.pace import Pace


class Clock:
    """Time that passes only while somebody sleeps, or works."""

    def __init__(self):
        self.now = 100.0
        self.naps = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds


def turns(rate, work):
    """When each turn began, where each took so long."""
    clock = Clock()
    pace = Pace(rate, clock=clock, sleep=clock.sleep)
    found = []
    for seconds in work:
        pace.wait(lambda: False)
        found.append(clock.now - 100.0)
        clock.now += seconds
    return found, clock.naps


def test_turns_are_evenly_spaced_whatever_each_takes():
    found, _ = turns(10, [0.0, 0.03, 0.08, 0.0, 0.09, 0.0])
    assert found == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_high_rate_is_kept_on_average_and_never_left_by_more_than_a_millisecond():
    found, naps = turns(20_000, [0.0] * 10_000)
    assert all(abs(at - i / 20_000) <= 0.001 + 1e-9 for i, at in enumerate(found))
    assert len(naps) < 600


def test_a_little_lateness_is_made_up_for():
    found, _ = turns(100, [0.05, *[0.0] * 19])
    assert found[-1] == pytest.approx(0.19)


def test_a_long_pause_ends_in_no_burst():
    found, _ = turns(100, [10.0, *[0.0] * 9])
    assert found[1:] == pytest.approx([10.0 + 0.01 * i for i in range(9)])


def test_without_a_rate_nobody_waits():
    found, naps = turns(0, [0.0] * 5)
    assert found == [0.0] * 5
    assert naps == []


def test_a_stop_is_heard_within_a_tenth_of_a_second():
    clock = Clock()
    pace = Pace(0.01, clock=clock, sleep=clock.sleep)
    pace.wait(lambda: False)
    pace.wait(lambda: clock.now > 105.0)
    assert 105.0 < clock.now <= 105.0 + 0.2
