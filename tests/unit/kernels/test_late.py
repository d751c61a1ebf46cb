"""Updates of wide matrices wait for a good moment, which must not show in one bit."""

import numpy as np
import pytest

from streammoe import Gaussian, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.kernels.late import MANY, TOGETHER, WIDE, Late, grow_now
from streammoe.kernels.linalg import add_outer

P, K, N = WIDE + 3, 3, 3 * TOGETHER
KINDS = {
    "one output": (MoERegressor, 1, {}),
    "few experts for each event": (MoERegressor, 1, {"top_k": 1}),
    "steps that forget fast": (MoERegressor, 1, {"schedule": schedules.Constant(0.05)}),
    "full covariance": (MoEMultiTargetRegressor, 2, {"expert": Gaussian("full")}),
    "classes": (MoEClassifier, 2, {}),
    "groups": (MoERegressor, 1, {"batch_size": 5}),
}


def model(kind):
    estimator, rows, options = KINDS[kind]
    rng = np.random.default_rng(0)
    parameters = {
        "n": 1000,
        "gate": rng.normal(size=(K - 1, P)) / np.sqrt(P),
        "experts": rng.normal(size=(K, rows, P)) / np.sqrt(P),
        "masses": np.full(K, 1.0 / K),
        "gate_gram": np.eye(P),
        "expert_grams": np.stack([np.eye(P) / K] * K),
    }
    if estimator is not MoEClassifier:
        parameters["variances"] = np.stack([np.eye(rows)] * K) if "full" in kind else np.ones((K, rows))
    names = [f"x{j:02}" for j in range(P - 1)]
    return estimator.from_parameters(parameters, feature_names=names, **options)


def events(kind):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, P - 1))
    Y = np.abs(X[:, :2]) + X[:, 2:3]
    if kind == "classes":
        return X, np.digitize(Y[:, 0], [0.0, 1.0])
    return X, Y if "full" in kind else Y[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_any_length_leave_the_same_state(kind):
    X, Y = events(kind)
    at_once, in_parts = model(kind), model(kind)
    at_once.learn_array(X, Y)
    at = 0
    for count in [1, 2, TOGETHER - 1, TOGETHER + 1, N]:
        in_parts.learn_array(X[at : at + count], Y[at : at + count])
        at += count
    assert in_parts.state_digest() == at_once.state_digest()


@pytest.mark.parametrize("n", [MANY - 1, TOGETHER])
def test_a_matrix_stays_symmetric_to_the_last_bit_and_is_below_the_diagonal_what_single_updates_make(n):
    rng = np.random.default_rng(2)
    rows, weights = rng.normal(size=(n, P)), rng.random(n)
    late = Late(np.array([n]), np.arange(n)[None], weights[None])
    gram, expected = np.eye(P), np.eye(P)
    grow_now(late, 0, gram, rows)
    for row, weight in zip(rows, weights, strict=True):
        add_outer(expected, row, weight)
    np.testing.assert_array_equal(np.tril(gram), np.tril(expected))
    np.testing.assert_array_equal(gram, gram.T)
    assert late.counts.tolist() == [0]
