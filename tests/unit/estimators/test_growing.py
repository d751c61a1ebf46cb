"""The mixture is fitted again to more events while that helps."""

import pytest

from streammoe import MoERegressor, schedules
from tests.unit.estimators.models import NAMES, STREAMS, WARM, trained

N = 2_600
NOISY = {"schedule": schedules.Constant(0.05)}
"""Steps so long that a fit is always better."""


def started(kind, **more):
    model = trained(kind, 0, **more)
    model.set_columns(NAMES)
    return model


def rows_of(model):
    return model.learner.phase.portfolio.growing


def learned(n, **more):
    X, y = STREAMS[MoERegressor](n)
    model = started(MoERegressor, **more)
    return model, model.learn_array(X, y)


def test_where_steps_are_noisy_the_fits_predict():
    with_fits, losses = learned(N, **NOISY)
    _, without = learned(N, **NOISY, refits=False)
    assert with_fits.member_weights["refitted"] > 0.9
    assert losses[16 * WARM :].mean() < without[16 * WARM :].mean() - 0.02


def test_fits_are_to_2_4_8_and_16_times_the_rows_of_the_first():
    sizes = []
    model = started(MoERegressor, **NOISY)
    X, y = STREAMS[MoERegressor](N)
    for i in range(N):
        model.learn_array(X[[i]], y[[i]])
        rows = rows_of(model) if not model.is_warming_up else None
        if rows is not None and rows.began and (not sizes or sizes[-1] != rows.fitted):
            sizes.append(rows.fitted)
    assert sizes == [2 * WARM, 4 * WARM, 8 * WARM, 16 * WARM]
    assert rows_of(model) is None


@pytest.mark.parametrize(("n", "goes_on"), [(200, True), (300, False)], ids=["2 x the rows", "4 x the rows"])
def test_after_a_fit_that_no_longer_gains_another_follows_only_if_the_rows_were_few(n, goes_on):
    model, _ = learned(n, **NOISY)
    assert "refitted" in model.member_weights
    portfolio = model.learner.phase.portfolio
    for _ in range(3):  # without events between them, nothing is gained
        portfolio.review(n)
    assert "refitted" not in model.member_weights
    assert (rows_of(model) is not None) == goes_on
