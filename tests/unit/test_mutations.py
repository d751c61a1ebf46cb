"""The table of faults keeps up with the code: a fault whose line has changed would no longer be put in."""

import pytest

from tests.mutations.__main__ import check
from tests.mutations.faults import FAULTS, Fault


def test_every_fault_has_exactly_one_place_in_the_code():
    check([fault for faults in FAULTS.values() for fault in faults])


def test_a_fault_that_no_longer_applies_is_named():
    with pytest.raises(SystemExit, match="fault lost no longer applies: its snippet occurs nowhere"):
        check([Fault("lost", "a line that " + "nobody wrote", "")])
