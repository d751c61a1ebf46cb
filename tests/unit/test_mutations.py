"""The table of faults keeps up with the code: a fault whose line has changed would no longer be put in."""

from tests.mutations.__main__ import check
from tests.mutations.faults import FAULTS


def test_every_fault_has_exactly_one_place_in_the_code():
    check([fault for faults in FAULTS.values() for fault in faults])
