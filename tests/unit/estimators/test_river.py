"""River's own checks of an estimator, on one configuration of each for every run; none is skipped."""

from collections import defaultdict

import numpy as np
import pytest
from river import checks, compose, datasets, linear_model, metrics, model_selection, proba

from streammoe import ConfigError, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian, Mixture
from streammoe.estimators.river_mixture import RiverMixture
from streammoe.options import Exponential
from tests.unit.estimators.models import ESTIMATORS

pytestmark = pytest.mark.usefixtures("brief_fits")
CHECKED = [
    MoERegressor(2, warmup=50, standardize=True, degree=2, averaging="decay"),
    # Over within the first half of River's shortest stream, of 20 events, from which on memory must not grow.
    MoEMultiTargetRegressor(2, warmup=8, standardize=True, expert=Gaussian("full")),
    MoEClassifier(2, warmup=50, bound="tight", drift="page_hinkley", averaging="exponential"),
    model_selection.GreedyRegressor([MoERegressor(1, warmup=20), MoERegressor(2, warmup=20)], metrics.MAE()),
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


def test_pipelines_pass_on_the_options_by_which_river_asks_for_distributions_and_intervals():
    model = compose.Discard("ordinal_date") | MoERegressor(2, warmup=50)
    for x, y in datasets.TrumpApproval().take(100):
        model.learn_one(x, y)
    own, inputs = model["MoERegressor"], model.transform_one(x)
    found, expected = model.predict_one(x, with_dist=True), own.predict_distribution_one(inputs)
    assert isinstance(found, proba.base.ContinuousDistribution)
    assert (found.n_samples, found.mu, found.sigma**2) == (100, expected.mean(), pytest.approx(expected.variance()))
    assert (found(y), found.cdf(y)) == (expected.pdf(y), expected.cdf(y))
    theirs = linear_model.BayesianLinearRegression().predict_one(inputs, with_dist=True)
    assert all(hasattr(found, name) for name in dir(theirs) if not name.startswith("_") and name != "log_pdf")
    interval = model.predict_one(x, with_interval=True)
    assert (interval.lower, interval.upper) == own.predict_interval_one(inputs, level=0.9)


def test_a_distribution_as_river_has_them_is_drawn_from_by_its_seed_and_knows_where_it_is_densest():
    mixture = Mixture(np.array([0.55, 0.3, 0.15]), np.array([-4.0, 1.0, 1.6]), np.array([9.0, 0.2, 0.3]), Gaussian())
    found = RiverMixture(mixture, seed=3)
    grid = np.linspace(-10.0, 10.0, 200_001)
    assert found.mode == pytest.approx(grid[np.argmax(mixture.pdf(grid))], abs=0.05 * np.sqrt(0.2))
    drawn = [found.sample() for _ in range(2_000)]
    assert np.mean(drawn) == pytest.approx(found.mu, abs=5 * found.sigma / np.sqrt(len(drawn)))
    assert drawn[:5] == [again.sample() for again in [found.clone()] for _ in range(5)] != drawn[5:10]
    for change in (found.update, found.revert):
        with pytest.raises(ConfigError):
            change(1.0)
