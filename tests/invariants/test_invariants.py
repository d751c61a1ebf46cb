"""How events come, what else comes with them, and where a run is cut leaves no trace: not in one bit."""

import pytest

from tests.invariants.configurations import CONFIGURATIONS, USUAL
from tests.invariants.machine import check, script, twin_of


@pytest.fixture(scope="module", autouse=True)
def small_counts():
    """What is due after thousands of events is due after some dozens."""
    with pytest.MonkeyPatch.context() as patch:
        for place, value in {
            "model.streaming.FIRST_LOOK": 32,
            "model.streaming.KEEP_EVERY": 32,
            "engine.portfolio.REVIEW_EVERY": 32,
            # The member of products rests whatever it is worth, and comes back.
            "engine.members.NEGLIGIBLE": 1.0,
            "engine.members.GROWTH": 1,
            "engine.portfolio.TRUSTED": 1.1,
            "engine.drift.BLOCK": 8,
            "engine.drift.CALIBRATION": 3,
            "engine.drift.TOLERANCE": 0.1,
            "engine.drift.THRESHOLD": 1.0,
            # Scales stay as they are from the third fit on, and each fit is spread over as many events as it may be.
            "engine.schedule.SETTLED": 100,
            "model.fits.RANGED_AT": 100,
            "model.fits.AT_ONCE": 1e3,
            "model.fits.PART": 2,
        }.items():
            patch.setattr(f"streammoe.{place}", value)
        yield
    twin_of.cache_clear()


def cases():
    for at, configuration in enumerate(CONFIGURATIONS):
        # The first of a pairwise list hold most of its pairs.
        is_spare = at > len(USUAL) + 7 and not configuration.is_fragile
        mark = pytest.mark.exhaustive if is_spare else pytest.mark.slow if at > 2 else ()
        yield pytest.param(at, id=f"{at}-{configuration.kind.__name__}", marks=mark)


@pytest.mark.filterwarnings("ignore:X. lacks:UserWarning")  # its streams have columns that come late
@pytest.mark.parametrize("at", list(cases()))
def test_no_way_disturbance_or_restart_leaves_a_trace(at, tmp_path):
    check(at, script(at, seed=0), tmp_path)
    assert CONFIGURATIONS[at].reaches <= twin_of(at).reached


@pytest.mark.filterwarnings("ignore:X. lacks:UserWarning")
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_script_at_all_leaves_a_trace(seed, tmp_path):
    for at in range(len(CONFIGURATIONS)):
        check(at, script(at, seed), tmp_path)
