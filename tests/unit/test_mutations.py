"""The table of faults keeps up with the code: a fault whose line has changed would no longer be put in."""

from tests.mutations.__main__ import problems


def test_every_fault_has_exactly_one_place_in_the_code():
    assert not problems()
