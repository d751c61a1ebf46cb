"""Why there are no Poisson experts: what docs/algorithm.md says of bounds on exp(η), in numbers."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("curvature", [1.0, 1e3, 1e9])
def test_no_parabola_that_touches_lies_above_everywhere(curvature):
    eta0 = 0.3
    eta = np.linspace(0.0, 60.0, 6001)
    parabola = np.exp(eta0) * (1.0 + (eta - eta0)) + 0.5 * curvature * (eta - eta0) ** 2
    assert (np.exp(eta) > parabola).any()


def test_a_parabola_for_a_bounded_range_is_left_by_its_own_minimum():
    """Curvature exp(2) holds for η ≤ 2; a count of 40 takes the minimum to 16 times the rate that it holds for."""
    bound, eta0, y = 2.0, 1.5, 40.0
    curvature = np.exp(bound)
    there = eta0 + (y - np.exp(eta0)) / curvature
    assert there > bound + 2.7
    loss = lambda eta: np.exp(eta) - y * eta  # noqa: E731 - a formula
    parabola = loss(eta0) + (np.exp(eta0) - y) * (there - eta0) + 0.5 * curvature * (there - eta0) ** 2
    assert loss(there) > parabola + 100.0
    assert np.exp(there) > 15.0 * np.exp(bound)


def separable(d, r, C):
    """exp(r·d) ≤ 1 − |r|₁/C + Σ_j (|r_j|/C) exp(C sign(r_j) d_j), by Jensen's inequality, where |r|₁ ≤ C."""
    sizes = np.abs(r) / C
    return 1.0 - sizes.sum() + np.sum(sizes * np.exp(C * np.sign(r) * d))


def test_the_separable_bound_holds_for_bounded_features_and_touches():
    for _ in range(500):
        r = RNG.uniform(-1.0, 1.0, size=5)
        d = RNG.normal(size=5) * 10.0 ** RNG.uniform(-3, 0.5)
        assert np.exp(r @ d) <= separable(d, r, 5.0) * (1.0 + 1e-12)
        assert separable(np.zeros(5), r, 5.0) == pytest.approx(1.0)


def test_an_event_beyond_its_constant_is_not_majorized():
    r, C = np.array([3.0, 3.0]), 2.0
    d = np.array([-0.2, -0.2])
    assert separable(d, r, C) < np.exp(r @ d) - 0.1


@pytest.mark.parametrize("p", [3, 30])
def test_its_minimum_is_in_closed_form_and_its_steps_are_the_shorter_the_more_features_there_are(p):
    R = RNG.choice([-1.0, 1.0], size=(4_000, p))
    counts = np.exp(R @ (0.1 * R[0]))
    up, down, pull = (np.mean(part, axis=0) for part in (np.maximum(R, 0.0), np.maximum(-R, 0.0), counts[:, None] * R))
    # up e^{C d}/C + down e^{−C d}/C − pull d in each coordinate, from d = 0 and the rate 1, with C = p.
    found = np.log((pull + np.sqrt(pull * pull + 4.0 * up * down)) / (2.0 * up)) / p

    def surrogate(d, j):
        return (up[j] * np.exp(p * d) + down[j] * np.exp(-p * d)) / p - pull[j] * d

    for j in range(p):
        assert minimize_scalar(surrogate, bracket=(-0.1, 0.1), args=(j,)).x == pytest.approx(found[j], abs=1e-6)
    newton = (pull - np.mean(R, axis=0)) / np.mean(R * R, axis=0)
    assert np.abs(found).max() < 1.5 * np.abs(newton).max() / p
