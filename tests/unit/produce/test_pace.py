"""The rate of `streammoe produce`, by a clock that moves only while somebody sleeps or works."""

from types import SimpleNamespace

import pytest

from streammoe.commands.produce.pace import Pace


def turns(rate, work):
    """When each turn began, where each took so long."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds):
        clock.now += seconds

    pace, found = Pace(rate, clock=lambda: clock.now, sleep=sleep), []
    for seconds in work:
        pace.wait(lambda: False)
        found.append(clock.now)
        clock.now += seconds
    return found


def test_turns_are_evenly_spaced_whatever_each_takes_and_a_pause_ends_in_no_burst():
    for work, expected in [
        ([0.0, 0.03, 0.08, 0.0, 0.09, 0.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        ([0.15, *[0.0] * 3], [0.0, 0.15, 0.2, 0.3]),  # a little lateness is made up for
        ([10.0, *[0.0] * 3], [0.0, 10.0, 10.1, 10.2]),
    ]:
        assert turns(10, work) == pytest.approx(expected)
    assert turns(0, [0.0] * 5) == [0.0] * 5  # without a rate there is no waiting
    assert all(abs(at - i / 20_000) <= 0.001 + 1e-9 for i, at in enumerate(turns(20_000, [0.0] * 1_000)))
