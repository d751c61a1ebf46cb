"""The mixture is fitted again to more events while that helps."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor, schedules
from tests.unit.estimators.models import NAMES, STREAMS, WARM, trained

N = 2_600
NOISY = {"schedule": schedules.constant(0.05)}
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


def test_a_late_column_ends_the_fit_in_progress_and_joins():
    X, y = STREAMS[MoERegressor](1_300)
    late = 2 * WARM + 5
    model, _ = learned(late, **NOISY)
    assert rows_of(model).began
    wide = np.column_stack([X, 0.1 * X[:, 0] ** 2])
    model.learn_array(wide[late : late + 1], y[late : late + 1], feature_names=[*NAMES, "late"])
    assert not rows_of(model).began
    model.learn_array(wide[late + 1 :], y[late + 1 :], feature_names=[*NAMES, "late"])
    assert model.member_weights["refitted"] > 0.5


def test_a_class_that_comes_late_ends_the_fits():
    X, y = STREAMS[MoEClassifier](900)
    y = np.where(np.arange(len(y)) < 500, y, np.where(y == "no", "new", y)).astype(object)
    model = started(MoEClassifier, **NOISY)
    model.learn_array(X[:500], y[:500])
    assert rows_of(model) is not None
    assert "refitted" in model.member_weights
    model.learn_array(X[500:], y[500:])
    assert rows_of(model) is None
    assert sum(model.member_weights.values()) == pytest.approx(1.0)
