"""How events come, what else comes with them, and where a run is cut leaves no trace: not in one bit."""

import pytest

from streammoe.engine.cost import row_cost
from tests.invariants.configurations import CONFIGURATIONS, USUAL
from tests.invariants.machine import check, script, twin_of


@pytest.fixture(scope="module", autouse=True)
def small_counts():
    """What is due after thousands of events is due after some dozens."""
    with pytest.MonkeyPatch.context() as patch:
        for place, value in {
            "model.phases.streaming.FIRST_LOOK": 32,
            "model.phases.streaming.KEEP_EVERY": 32,
            "model.phases.provisional.FIRST_FIT": 40,
            "engine.portfolio.REVIEW_EVERY": 32,
            # The curved member leaves whatever it is worth, and comes back.
            "engine.members.curved.NEGLIGIBLE": 1.0,
            "engine.members.curved.GROWTH": 1,
            "engine.portfolio.TRUSTED": 1.1,
            "engine.warmup.RARENESS": 0.0,
            "engine.drift.BLOCK": 8,
            "engine.drift.CALIBRATION": 3,
            "engine.drift.TOLERANCE": 0.1,
            "engine.drift.THRESHOLD": 1.0,
        }.items():
            patch.setattr(f"streammoe.{place}", value)
        # A fit and a new scale are spread over some dozens of events.
        patch.setattr("streammoe.engine.warmup.pace", lambda family, shape, n: 30.0 * n * row_cost(family, shape))
        patch.setattr("streammoe.engine.warmup.relearned_rows", lambda *_: 4)
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
