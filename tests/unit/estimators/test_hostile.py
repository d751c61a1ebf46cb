"""What hostile users have found; each of these once went wrong."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor


def test_one_categorical_expert_starts_with_its_first_class():
    model = MoEClassifier(n_experts=1)
    for i in range(30):
        model.learn_one({"a": float(i)}, "p" if i % 3 else "q")
    assert sum(model.predict_proba_one({"a": 2.0}).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("absurd", "standardize"), [(999.0, True), (-99999.0, False)])
def test_one_absurd_value_within_the_warm_up_is_forgotten(absurd, standardize):
    """It shapes neither the prior nor the scales, which never fade."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 2))
    y = X[:, 0] + 0.3 * rng.normal(size=5000)
    spoilt, far_target = X.copy(), y.copy()
    spoilt[100, 0] = absurd
    far_target[100] = absurd
    labels = np.where(y > 0.0, "p", "q")
    arguments = {"n_experts": 2, "warmup_restarts": 1, "standardize": standardize, "averaging": None}

    def late(estimator, X, y):
        return estimator(**arguments).learn_array(X, y)[-1500:].mean()

    assert late(MoERegressor, spoilt, y) < late(MoERegressor, X, y) + 0.05
    assert late(MoERegressor, X, far_target) < late(MoERegressor, X, y) + 0.05
    assert late(MoEClassifier, spoilt, labels) < late(MoEClassifier, X, labels) + 0.05


def test_probabilities_are_at_most_one():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    model = MoEClassifier(n_experts=3, warmup=300, warmup_restarts=1)
    model.learn_array(X, (X[:, 0] > 0.0).astype(int))
    assert model.predict_proba_array(30.0 * X).max() <= 1.0
