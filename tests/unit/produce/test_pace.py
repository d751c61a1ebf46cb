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


def test_turns_are_evenly_spaced_whatever_each_takes_and_a_pause_ends_in_no_burst():
    for work, expected in [
        ([0.0, 0.03, 0.08, 0.0, 0.09, 0.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        ([0.15, *[0.0] * 3], [0.0, 0.15, 0.2, 0.3]),  # a little lateness is made up for
        ([10.0, *[0.0] * 3], [0.0, 10.0, 10.1, 10.2]),
    ]:
        assert turns(10, work)[0] == pytest.approx(expected)
    assert turns(0, [0.0] * 5) == ([0.0] * 5, [])  # without a rate nobody waits


def test_a_high_rate_is_kept_on_average_and_never_left_by_more_than_a_millisecond():
    found, naps = turns(20_000, [0.0] * 10_000)
    assert all(abs(at - i / 20_000) <= 0.001 + 1e-9 for i, at in enumerate(found))
    assert len(naps) < 600


def test_a_stop_is_noticed_within_a_tenth_of_a_second():
    clock = Clock()
    pace = Pace(0.01, clock=clock, sleep=clock.sleep)
    pace.wait(lambda: False)
    pace.wait(lambda: clock.now > 105.0)
    assert 105.0 < clock.now <= 105.0 + 0.2
