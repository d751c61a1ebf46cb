"""River's own checks of an estimator, on one configuration of each for every run; none is skipped."""

from collections import defaultdict

import pytest
from river import checks

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian
from streammoe.options import Exponential
from tests.unit.estimators.models import ESTIMATORS

pytestmark = pytest.mark.usefixtures("brief_fits")
CHECKED = [
    MoERegressor(2, warmup=50, standardize=True, degree=2, averaging="decay"),
    # Over within the first half of River's shortest stream, of 20 events, from which on memory must not grow.
    MoEMultiTargetRegressor(2, warmup=8, standardize=True, expert=Gaussian("full")),
    MoEClassifier(2, warmup=50, bound="tight", drift="page_hinkley", averaging="exponential"),
]
OTHERS = [
    *(kind() for kind in ESTIMATORS),
    MoERegressor(2, warmup=60),
    MoERegressor(3, warmup=0),
    MoERegressor(2, warmup=60, expert="student_t"),
    MoERegressor(2, warmup=0, expert="laplace"),
    MoERegressor(2, warmup=60, lags=2),
    MoEMultiTargetRegressor(2, warmup=15),
    MoEMultiTargetRegressor(3, warmup=0, expert=Gaussian("full")),
    MoEMultiTargetRegressor(2, warmup=15, expert="student_t"),
    MoEClassifier(2, warmup=60),
    MoEClassifier(3, warmup=0),
    MoEMultiTargetRegressor(1, warmup=0, averaging=None, bound="paper", schedule=schedules.Constant(0.05)),
    MoERegressor(2, warmup=50, drift="page_hinkley", averaging=Exponential(0.1)),
    MoEClassifier(1, warmup=0, averaging=None, bound="paper", schedule=schedules.Constant(0.05)),
]


def cases():
    """Each check of a model, on all of River's data sets for it."""
    for at, model in enumerate([*CHECKED, *OTHERS]):
        named = defaultdict(list)
        for check in checks.yield_checks(model):
            named[check.__name__].append(check)
        for name, found in named.items():
            # Memory is watched over ten streams.
            marks = [pytest.mark.slow] if "memory_growth" in name else []
            marks += [pytest.mark.exhaustive] if at >= len(CHECKED) else []
            yield pytest.param(model, found, id=f"{type(model).__name__}-{at}-{name}", marks=marks)


@pytest.mark.filterwarnings("ignore:X. lacks:UserWarning")  # some checks leave out columns
@pytest.mark.parametrize(("model", "found"), list(cases()))
def test_estimator_checks(model, found):
    for check in found:
        check(model.clone())


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_check_is_skipped_and_repr_is_a_constructor_call(kind):
    assert kind()._unit_test_skips() == set()
    assert "schedule=Power(alpha=0.7" in repr(kind(2, schedule=schedules.Power(0.7)))
