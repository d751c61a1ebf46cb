"""The option `reservoir`: a sample of what was learned, which changes nothing, and outlasts restarts."""

import numpy as np
import pytest

from streammoe import MoERegressor, load
from streammoe.daemon.checkpoints import learned_digest
from streammoe.errors import ConfigError
from tests.unit.estimators.models import ESTIMATORS, NAMES, QUICK, WARM, pairs

N, SIZE = 200, 25
ARRAYS = {"reservoir.X", "reservoir.Y", "reservoir.weights", "reservoir.seen"}


def learned(kind, n=N, **arguments):
    model = kind(**{**QUICK, "reservoir": SIZE, **arguments})
    for x, y in pairs(kind, n):
        model.learn_one(x, y)
    return model


def rows_of(model):
    """The sample as events: inputs by name and targets, in order."""
    X, Y, weights = model.learner.reservoir_rows()
    return {(*map(tuple, (x, y)), w) for x, y, w in zip(X.tolist(), Y.tolist(), weights.tolist(), strict=True)}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_sample_is_of_events_as_they_came_and_changes_nothing(kind):
    for n in (WARM // 2, N):
        model, plain = learned(kind, n), learned(kind, n, reservoir=0)
        assert model.state_digest() == plain.state_digest() == learned_digest(model.arrays())
        assert set(model.arrays()) - set(plain.arrays()) == ARRAYS
        found = rows_of(model)
        assert list(model.learner.encoder.fields) == NAMES
        known = {label: index for index, label in enumerate(model.output_names)}
        asked = [
            (tuple(x.values()), tuple(y.values()) if isinstance(y, dict) else (float(known.get(y, y)),), 1.0)
            for x, y in pairs(kind, n)
        ]
        assert len(found) == SIZE
        assert found < set(asked)
        assert plain.learner.reservoir_rows().X.shape == (0, len(NAMES))


def test_rows_hold_codes_missing_values_and_late_columns():
    model = MoERegressor(**QUICK, categorical=("c",), lags=1, reservoir=100)
    for at in range(100):
        x = {"a": float(at), "c": "odd" if at % 2 else "even"}
        x |= {"late": 1.0} if at >= 50 else {}
        if at % 5 == 0:
            del x["a"]
        model.learn_one(x, 0.5 * at, w=2.0)
    X, Y, weights = model.learner.reservoir_rows()
    assert list(model.learner.encoder.fields) == ["y:lag1", "c", "a", "late"]
    n = np.arange(100.0)
    np.testing.assert_array_equal(X[:, 0], np.where(n == 0, np.nan, 0.5 * (n - 1)))
    np.testing.assert_array_equal(X[:, 2], np.where(n % 5 == 0, np.nan, n))
    assert model.learner.encoder.levels["c"] == {"even": 0, "odd": 1}
    np.testing.assert_array_equal(X[:, 1], n % 2)
    np.testing.assert_array_equal(X[:, 3], np.where(n < 50, np.nan, 1.0))
    np.testing.assert_array_equal(Y[:, 0], 0.5 * n)
    assert set(weights.tolist()) == {2.0}


def test_its_size_may_change_over_a_checkpoint(tmp_path):
    model = learned(MoERegressor)
    found = rows_of(model)
    model.change("reservoir", 10)
    assert rows_of(model) < found
    assert len(rows_of(model)) == 10
    model.save(tmp_path / "model")
    model = load(tmp_path / "model")
    model.change("reservoir", 0)
    assert not rows_of(model)
    assert not [name for name in model.arrays() if name.startswith("reservoir.")]
    model.change("reservoir", 50)
    x, y = pairs(MoERegressor, 1)[0]
    model.learn_one(x, y)
    assert rows_of(model) == {((*x.values(),), (y,), 1.0)}
    with pytest.raises(ConfigError, match="reservoir"):
        model.change("reservoir", -1)
