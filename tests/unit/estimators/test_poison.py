"""One bad event among sound ones, given in every way: the model is to the last bit as if it had not come."""

import pytest

from benchmarks.poison import CASES, KINDS, NONE, WAYS, ours

PLACES = [pytest.param(kind, way, case, id=f"{kind} {way} {case}") for kind in KINDS for way in WAYS for case in CASES]


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize(("kind", "way", "case"), PLACES)
def test_a_bad_event_leaves_not_one_bit(kind, way, case):
    assert ours(kind, way, case) in {"ok", NONE}
