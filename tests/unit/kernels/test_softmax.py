"""Softmax regression by majorization, against dense formulas, and the bounds that make it safe."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.special import softmax as reference_softmax

from streammoe.engine.mm import curvature
from streammoe.kernels.batch import adaptive_weights, prior_quadratic
from streammoe.kernels.softmax import adaptive_weight, softmax, step_softmax
from tests.unit.cases import bent


@numba.njit
def stepped(coefficients, gram, inverse, x, push, gain, weight, size, bend):
    step_softmax(coefficients, gram, inverse, x, push, gain, weight, size, bend)


def weight_of(probabilities):
    return adaptive_weight(np.array(probabilities, dtype=np.float64))


@pytest.mark.parametrize("logits", [[0.0], [700.0, -700.0], [1e8, 0.0, 1e8], [-3.0, 0.5, 2.0, 0.0]])
def test_softmax_and_its_normaliser_in_log_space(logits):
    values = np.array(logits)
    total = softmax(values)
    assert total == pytest.approx(logsumexp(logits), rel=1e-15)
    np.testing.assert_allclose(values, reference_softmax(logits), rtol=1e-12)
    assert values.sum() == pytest.approx(1.0, rel=1e-14)


class TestAdaptiveWeight:
    @pytest.mark.parametrize("logit", [1e-6, 0.01, 0.5, 2.0, 10.0, 36.0])
    def test_is_jaakkola_and_jordans_bound_for_two(self, logit):
        pair = [1.0 / (1.0 + np.exp(-logit)), 1.0 / (1.0 + np.exp(logit))]
        assert weight_of(pair) == pytest.approx(2.0 * np.tanh(logit / 2.0) / logit, rel=1e-8)
        assert weight_of(pair[::-1]) == weight_of(pair)

    @pytest.mark.parametrize(
        "probabilities", [[0.5, 0.5], [0.25, 0.5, 0.25], [0.4, 0.3, 0.3], [0.2] * 5, [0.49, 0.51 - 1e-12, 1e-12]]
    )
    def test_is_one_where_none_has_more_than_half(self, probabilities):
        assert weight_of(probabilities) == pytest.approx(1.0, abs=2e-4)
        if max(probabilities) <= 0.5:
            assert weight_of(probabilities) == 1.0

    def test_is_small_and_positive_where_one_is_certain(self):
        for probabilities in ([1.0, 0.0], [0.0, 1.0, 0.0], [1.0 - 1e-16, 1e-16]):
            assert 0.0 < weight_of(probabilities) < 0.06

    def test_passes_over_the_half_without_a_jump(self):
        """The series that stands in for 0/0 meets the quotient."""
        apart = np.concatenate([[0.0], np.logspace(-12, -1, 400)])
        found = np.array([weight_of([0.5 + a / 2, 0.5 - a / 2]) for a in apart])
        assert np.diff(found).max() <= 1e-9
        np.testing.assert_allclose(found, 1.0 - apart**2 / 3.0, atol=1e-4)
        around = np.array([weight_of([0.5 + a / 2, 0.5 - a / 2]) for a in (0.99e-4, 1.01e-4)])
        assert around[0] == pytest.approx(around[1], abs=1e-9)

    @pytest.mark.parametrize("M", [2, 3, 5])
    def test_falls_as_one_becomes_more_certain(self, M):
        largest = 1.0 - np.logspace(np.log10(1.0 - 1.0 / M), -15, 300)
        found = np.array([weight_of([p, *[(1.0 - p) / (M - 1)] * (M - 1)]) for p in largest])
        assert np.diff(found).max() <= 1e-7
        assert found[0] == 1.0

    def test_of_rows(self):
        rows = np.random.default_rng(0).dirichlet(np.full(4, 0.3), size=50)
        found = np.empty(50)
        adaptive_weights(rows, found)
        assert found.tolist() == [weight_of(row) for row in rows]


@pytest.mark.parametrize("bound", ["tight", "adaptive", "paper"])
@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=7),
    seed=st.integers(0, 2**32 - 1),
    length=st.floats(1e-3, 60),
)
def test_a_bound_lies_above_log_sum_exp_everywhere(bound, logits, seed, length):
    """Log Σ exp(η + d) ≤ log Σ exp η + p d + ½ a dᵀ A d, the reference's logit held at 0."""
    eta = np.append(logits, 0.0)
    N = len(logits)
    p = np.exp(eta - logsumexp(eta))
    A = bent(bound, N) * (weight_of(p) if bound == "adaptive" else 1.0)
    rng = np.random.default_rng(seed)
    for direction in (rng.normal(size=N), rng.integers(-1, 2, size=N).astype(float), np.eye(N)[rng.integers(N)]):
        d = np.append(length * direction, 0.0)
        above = logsumexp(eta) + p @ d + 0.5 * d[:-1] @ A @ d[:-1]
        assert above - logsumexp(eta + d) > -1e-9 * (1.0 + abs(above))


@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("free", [1, 2, 4])
def test_a_step_is_the_dense_formula(free, bound):
    """C ← C − size · A⁻¹ push (R⁺⁻¹ x)ᵀ with R⁺ = R + weight · x xᵀ, over many steps."""
    p = 5
    rng = np.random.default_rng(free)
    bend, A = curvature(bound, free), bent(bound, free)
    coefficients = rng.normal(size=(free, p))
    gram = np.eye(p)
    inverse = np.eye(p)
    C, R = coefficients.copy(), gram.copy()
    for _ in range(60):
        x, push = rng.normal(size=p), rng.normal(size=free + 2)
        weight, size = rng.uniform(0.0, 0.5, 2)
        stepped(coefficients, gram, inverse, x, push, np.empty(p), weight, size, bend)
        R += weight * np.outer(x, x)
        C -= size * np.outer(np.linalg.solve(A, push[:free]), np.linalg.solve(R, x))
    np.testing.assert_allclose(coefficients, C, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(gram, R, rtol=1e-12)
    np.testing.assert_allclose(inverse @ R, np.eye(p), atol=1e-9)


@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("free", [1, 3])
def test_the_bent_square_is_dense_too(free, bound):
    rng = np.random.default_rng(0)
    one, other, gram = rng.normal(size=(free, 4)), rng.normal(size=(free, 4)), rng.uniform(0.1, 3.0, 4)
    expected = np.einsum("aj,ab,bj,j->", one - other, bent(bound, free), one - other, gram)
    assert prior_quadratic(one, other, gram, curvature(bound, free)) == pytest.approx(expected, rel=1e-12)
