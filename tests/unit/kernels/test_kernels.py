"""Kernels by themselves; that their steps are those of a literal algorithm is in tests/oracle."""

import numpy as np
import pytest
from scipy.special import softmax as reference_softmax

from streammoe.engine.mixture import blank_trace
from streammoe.kernels import categorical
from streammoe.kernels.batch import NEWTON_LIMIT, adaptive_weights, fit_softmax, softmax_gradient, softmax_objective
from streammoe.kernels.linalg import invert_spd
from streammoe.kernels.softmax import adaptive_weight
from streammoe.kernels.soundness import LARGEST_LOSS, LARGEST_PREDICTION, are_small
from tests.oracle.literal import curvature_weight
from tests.unit.cases import log_classes, log_gate

# --- softmax in log space, and the weights of the adaptive bound ------------------------------------------------------


def weight_of(probabilities):
    return adaptive_weight(np.array(probabilities, dtype=np.float64))


def test_the_adaptive_weight_is_the_literal_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.normal(size=rng.integers(2, 7)) * 10 ** rng.uniform(-2, 1.1)
        weight = weight_of(reference_softmax(logits))
        assert weight == pytest.approx(curvature_weight("adaptive", logits), rel=1e-6)
    rows = rng.dirichlet(np.full(4, 0.3), size=50)
    found = np.empty(50)
    adaptive_weights(rows, found)
    assert found.tolist() == [weight_of(row) for row in rows]


# --- events that a model holds for next to impossible -----------------------------------------------------------------

NOTHING = blank_trace(0)


def classes_of(size, K, M, p=3):
    rng = np.random.default_rng(0)
    return size * rng.normal(size=(K - 1, p)), size * rng.normal(size=(K, M - 1, p)), rng.normal(size=(40, p))


def reference(gate, experts, R, labels):
    joint = log_gate(gate, R) + np.stack([log_classes(expert, R)[np.arange(len(R)), labels] for expert in experts], 1)
    total = np.logaddexp.reduce(joint, axis=1)
    return -total, np.exp(joint - total[:, None])


@pytest.mark.parametrize("size", [1.0, 1e3, 1e8])
def test_scores_never_vanish(size):
    gate, experts, R = classes_of(size, 3, 4)
    labels = np.random.default_rng(1).integers(4, size=40)
    losses, predictions, tau = np.empty(40), np.empty((40, 4)), np.empty((40, 3))
    given = gate, experts, np.empty((3, 0)), R, R, labels[:, None].astype(float)
    categorical.score_rows((), *given, losses, predictions, tau, NOTHING)
    expected, shares = reference(gate, experts, R, labels)
    np.testing.assert_allclose(losses, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(tau, shares, rtol=1e-5, atol=1e-9)
    assert size == 1.0 or losses.max() > -np.log(categorical.UNLIKELY)
    np.testing.assert_allclose(predictions.sum(axis=1), 1.0)


@pytest.mark.parametrize(("K", "M", "size"), [(1, 2, 1e150), (3, 5, 1.0)])
def test_unlikely_is_the_formula_in_log_space(K, M, size):
    gate, experts, R = classes_of(size, K, M)
    losses, tau = reference(gate, experts, R, np.ones(len(R), dtype=int))
    for i, r in enumerate(R):
        joint = np.empty(K)
        assert categorical.unlikely(gate, experts, r, r, 1, joint) == pytest.approx(losses[i], rel=1e-9)
        np.testing.assert_allclose(joint, tau[i], rtol=1e-6, atol=1e-9)


# --- inverses of symmetric matrices -----------------------------------------------------------------------------------


def spd(p, seed=0, rows=None):
    points = np.random.default_rng(seed).normal(size=(rows or 3 * p, p))
    return points.T @ points / len(points)


def inverse_of(matrix):
    p = len(matrix)
    out = np.full((p, p), np.nan)
    sound = invert_spd(matrix, out, np.full((p, p), np.nan))
    assert (out == out.T).all()
    return out, sound


@pytest.mark.parametrize("p", [1, 3, 13, 60, 131])
def test_inverses_are_the_dense_ones(p):
    matrix = spd(p, p)
    inverse, sound = inverse_of(matrix)
    assert sound
    np.testing.assert_allclose(inverse @ matrix, np.eye(p), atol=1e-10)


def test_a_singular_matrix_is_damped_and_reported():
    badly_scaled = np.outer([1e-30, 1.0, 1e30], [1e-30, 1.0, 1e30])
    for matrix in (np.ones((4, 4)), spd(10, rows=4), badly_scaled):
        inverse, sound = inverse_of(matrix)
        assert not sound
        assert np.isfinite(inverse).all()
        # Positive in every direction, so that a filter that continues from it never steps uphill.
        scale = np.sqrt(np.diag(inverse))
        assert np.linalg.eigvalsh(inverse / np.outer(scale, scale)).min() > -1e-7
    # The least-norm solution of x1 + x2 = 2, as for two equal columns.
    inverse, _ = inverse_of(np.ones((2, 2)))
    np.testing.assert_allclose(inverse @ np.array([2.0, 2.0]), [1.0, 1.0], rtol=1e-2)


@pytest.mark.parametrize("absent", [[2, 5], [0, 1, 2, 3, 4, 5]])
def test_a_feature_that_has_always_been_zero_is_decoupled(absent):
    matrix = spd(6)
    matrix[absent] = matrix[:, absent] = 0.0
    inverse, sound = inverse_of(matrix)
    assert sound
    others = np.setdiff1d(np.arange(6), absent)
    present = np.ix_(others, others)
    np.testing.assert_allclose(inverse[present], np.linalg.inv(matrix[present]), rtol=1e-10, atol=1e-12)
    assert (inverse[absent][:, others] == 0).all()
    assert (inverse[absent, absent] == 1).all()


# --- fits of a softmax to a buffer ------------------------------------------------------------------------------------

P = 3


def rows(n, n_targets, blank, p=P):
    """Return features and targets of n rows, and of some more that count nothing."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, p)), rng.normal(size=(40, n_targets))
    weights = np.where(np.arange(40) < n, 1.0, 0.0)[:, None] * rng.dirichlet(np.ones(2), size=40)
    kept = n + blank
    return X[:kept], Y[:kept], weights[:kept]


def test_conjugate_gradients_rise_at_every_step_and_end_at_the_top():
    free, p = 3, NEWTON_LIMIT // 2
    X, _, weights = rows(40, 1, 0, p)
    X *= np.geomspace(0.1, 10.0, p)
    targets = weights @ np.random.default_rng(1).dirichlet(np.ones(free + 1), size=2)
    target = 0.1 * np.random.default_rng(2).normal(size=(free, p))
    given = (20.0, (X * X).mean(axis=0), target, (2.0, 1.0), targets, X, 1)
    coefficients, slope = np.zeros((free, p)), np.empty((free, p))
    heights = [softmax_objective(coefficients, *given)]
    for _ in range(40):
        fit_softmax(coefficients, *given, 1)
        heights.append(softmax_objective(coefficients, *given))
    assert (np.diff(heights) >= 0.0).all()
    softmax_gradient(coefficients, *given, slope)
    assert np.abs(slope).max() < 1e-5


# --- soundness after rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0 * LARGEST_PREDICTION])
def test_predictions_are_numbers_that_can_be_averaged(wrong):
    assert are_small.py_func(np.zeros(1), np.zeros(1), np.zeros(2))
    assert not are_small.py_func(np.zeros(1), np.zeros(1), np.array([0.0, wrong]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0 * LARGEST_LOSS])
def test_only_a_row_without_target_may_have_no_loss(wrong):
    assert are_small.py_func(np.array([np.nan]), np.array([wrong]), np.zeros(1))
    assert not are_small.py_func(np.zeros(1), np.array([wrong]), np.zeros(1))
