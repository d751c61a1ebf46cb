"""Divergences and losses of experts, against sums over single rows that know nothing of Gram matrices."""

import numpy as np
import pytest

from streammoe.engine.state import state_at
from streammoe.kernels.categorical import expected_entropy
from tests.unit.cases import Case, log_classes, options, random_theta

ROWS, P, K = 400, 4, 3
RNG = np.random.default_rng(0)
R = np.column_stack([np.ones(ROWS), RNG.normal(size=(ROWS, P - 1))])
TAU = RNG.dirichlet(np.full(K, 0.7), size=ROWS)
METRIC, CLASSES = [Case("gaussian", 2), Case("gaussian_full", 2)], Case("categorical", 4)
cases = pytest.mark.parametrize("case", [*METRIC, CLASSES], ids=str)


def state(case, scale=1.0):
    """Three experts whose Gram matrices and masses are the means over `ROWS` rows, amid decay."""
    gate, experts, variances = random_theta(case, K, P, 1)
    return state_at(
        gate=gate,
        experts=scale * experts,
        variances=variances,
        masses=TAU.mean(axis=0),
        gate_gram=R.T @ R / ROWS,
        expert_grams=np.einsum("nk,ni,nj->kij", TAU, R, R) / ROWS,
        prior=case.family.unit_prior(0.1, P, P, case.n_outputs),
        n=1000,
        prior_weight=0.01,
        decay=0.7,
    )


def covariances(of):
    """(K, Q, Q), whatever the family keeps."""
    return of.variances if of.variances.ndim == 3 else np.stack([np.diag(own) for own in of.variances])


def kullback_leibler(case, i, j, of):
    """(n,) from what expert i says of each row to what expert j says."""
    if not case.family.is_metric:
        p, q = (log_classes(of.experts[k], R) for k in (i, j))
        return np.sum(np.exp(p) * (p - q), axis=1)
    first, second = covariances(of)[[i, j]]
    inverse, apart = np.linalg.inv(second), R @ (of.experts[j] - of.experts[i]).T
    log_ratio = np.log(np.linalg.det(second) / np.linalg.det(first))
    return 0.5 * (np.trace(inverse @ first) + np.einsum("nq,qr,nr->n", apart, inverse, apart) - len(first) + log_ratio)


def mean_divergences(case, of):
    """(K, K) means over the rows that either expert answers for."""
    found = np.zeros((len(of.experts),) * 2)
    for i, j in np.ndindex(found.shape):
        each = 0.5 * (kullback_leibler(case, i, j, of) + kullback_leibler(case, j, i, of))
        found[i, j] = np.average(each, weights=TAU[:, i] + TAU[:, j])
    return found


@pytest.mark.parametrize("case", METRIC, ids=str)
def test_divergences_are_means_over_the_rows_that_either_expert_answers_for_and_losses_entropies(case):
    given = state(case)
    expected = mean_divergences(case, given)
    np.testing.assert_allclose(case.family.divergences(given, options(case, K)), expected, rtol=1e-9, atol=1e-12)
    assert min(expected[0][1:]) > 0.1
    entropies = 0.5 * np.linalg.slogdet(2.0 * np.pi * np.e * covariances(given))[1]
    np.testing.assert_allclose(case.family.expert_losses(given), entropies, atol=1e-6)  # but for the tails


def test_divergences_of_categorical_experts_are_bounds_that_are_tight_where_two_classes_are_as_likely():
    given, family = state(CLASSES), CLASSES.family
    found, expected = family.divergences(given, options(CLASSES, K)), mean_divergences(CLASSES, given)
    assert (found >= expected - 1e-12).all()
    assert (found < 20.0 * expected)[~np.eye(K, dtype=bool)].all()
    two = state(Case("categorical", 2), scale=1e-3)
    found = family.divergences(two, options(Case("categorical", 2), K))
    assert found[0, 1] == pytest.approx(mean_divergences(CLASSES, two)[0, 1], rel=1e-3)


def test_the_entropy_of_a_categorical_expert_is_that_over_rows_like_its_own():
    rng = np.random.default_rng(3)
    rows = rng.multivariate_normal([0.5, -1.0], [[1.0, 0.6], [0.6, 2.0]], size=50_000)
    rows = np.column_stack([np.ones(len(rows)), rows])
    gram = rows.T @ rows
    for expert in (rng.normal(size=(2, 3)), np.zeros((2, 3)), 30.0 * rng.normal(size=(1, 3))):
        log_p = log_classes(expert, rows)
        expected = -np.sum(np.exp(log_p) * log_p, axis=1).mean()
        assert expected_entropy(expert, gram, rng.normal(size=(20_000, 3))) == pytest.approx(expected, abs=0.01)
    # Padding does not matter.
    padded, wide = np.pad(expert, [(0, 0), (0, 2)]), np.pad(gram, [(0, 2), (0, 2)])
    draws = rng.normal(size=(64, 5))
    assert expected_entropy(padded, wide, draws) == expected_entropy(expert, gram, draws[:, :3].copy())
