"""What a regressor learns, and of which rows, columns and weights."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor
from tests.unit.estimators.models import NAMES, QUICK, crossing, dicts, numbers, same, trained


@pytest.mark.parametrize("late", [30, 100])
def test_a_late_feature_is_learned(late):
    X, _ = numbers(800)
    model = MoERegressor(1, warmup=60, averaging=None, standardize=False)
    for i, (x, y) in enumerate(zip(dicts(X), X @ [1.0, -1.0, 2.0], strict=True)):
        model.learn_one(x if i >= late else {"a": x["a"], "b": x["b"]}, y)
    assert model.feature_names == NAMES
    assert model.parameters()["experts"][0, 0] == pytest.approx([0.0, 1.0, -1.0, 2.0], abs=0.02)


def test_columns_without_names_are_numbered_unless_they_can_only_be_the_models_own():
    X, _, rng = crossing(100, 12, seed=0)
    y = rng.normal(size=100)
    arrays, rows = MoERegressor(**QUICK), dicts(X, [f"x{j}" for j in range(12)])
    arrays.learn_array(X, y)
    one_by_one = MoERegressor(**QUICK)
    for x, target in zip(rows, y, strict=True):
        one_by_one.learn_one(x, target)
    assert same(arrays, one_by_one)
    assert arrays.feature_names == sorted(rows[0])  # x10 comes before x2
    assert arrays.predict_array(X[:1])[0] == one_by_one.predict_one(rows[0])
    named, other_order = trained(), trained()
    named.learn_array(X[:5, :3], y[:5])
    other_order.learn_array(X[:5, [2, 0, 1]], y[:5], feature_names=["c", "a", "b"])
    assert named.feature_names == NAMES
    assert same(named, other_order)
    named.learn_array(X[:5, :2], y[:5])
    assert named.feature_names == [*NAMES, "x0", "x1"]


def test_numbers_of_any_type_and_memory_order_are_taken_as_floats():
    X, y = (np.round(numbers(80)[0]) > 0).astype(float), np.round(numbers(80)[1])
    plain = MoERegressor(**QUICK)
    plain.learn_array(X, y)
    others = [(X.astype(dtype), y) for dtype in (np.float32, np.int64, bool)]
    for rows, targets in (*others, (X.tolist(), y.tolist()), (np.asfortranarray(X), y)):
        other = MoERegressor(**QUICK)
        other.learn_array(rows, targets)
        assert same(plain, other)
    exact = [Decimal(str(target)) for target in y.tolist()]
    for column in (y.astype(object), exact, pd.array(y, dtype="Float64"), pd.Series(exact, dtype=object)):
        other = MoERegressor(**QUICK)
        other.learn_many(pd.DataFrame(X, columns=plain.fields), pd.Series(column))
        assert same(plain, other)
    several = [MoEMultiTargetRegressor(**QUICK) for _ in range(2)]
    for model, column in zip(several, (y, exact), strict=True):
        model.learn_many(pd.DataFrame(X, columns=plain.fields), pd.DataFrame({"u": y, "v": column}))
    assert same(*several)
