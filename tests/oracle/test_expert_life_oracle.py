"""Divergences, losses, and reseeded experts, against sums over single rows that know nothing of Gram matrices."""

import math

import numpy as np
import pytest

from streammoe.engine.mm import learning_options
from streammoe.engine.reseeding import reseeded
from streammoe.engine.state import state_at
from streammoe.experts import families
from streammoe.kernels.categorical import expected_entropy
from streammoe.schedules import Power

ROWS, P, K = 400, 4, 3
RNG = np.random.default_rng(0)
R = np.column_stack([np.ones(ROWS), RNG.normal(size=(ROWS, P - 1))])
TAU = RNG.dirichlet(np.full(K, 0.7), size=ROWS)
FAMILIES = {"gaussian": 2, "gaussian_full": 2, "categorical": 4}


def options(name):
    return learning_options(
        bound="tight",
        n_experts=K,
        n_rows=families()[name].n_rows(FAMILIES[name]),
        prior_strength=0.1,
        averaging="polyak",
        schedule=Power(),
    )


def state(name, scale=1.0):
    """Three experts whose Gram matrices and masses are the means over `ROWS` rows, amid decay."""
    family, Q = families()[name], FAMILIES[name]
    rng = np.random.default_rng(1)
    if name == "gaussian":
        variances = rng.uniform(0.5, 2.0, size=(K, Q))
    elif name == "gaussian_full":
        roots = rng.normal(size=(K, Q, Q))
        variances = roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(Q)
    else:
        variances = np.empty((K, 0))
    return state_at(
        gate=rng.normal(size=(K - 1, P)),
        experts=scale * rng.normal(size=(K, family.n_rows(Q), P)),
        variances=variances,
        masses=TAU.mean(axis=0),
        gate_gram=R.T @ R / ROWS,
        expert_grams=np.einsum("nk,ni,nj->kij", TAU, R, R) / ROWS,
        prior=family.unit_prior(0.1, P, P, Q),
        n=1000,
        prior_weight=0.01,
        decay=0.7,
    )


def kullback_leibler(name, expert, other, of, row):
    """From what one expert says of a row to what another says."""
    if name == "categorical":
        p, q = (softmax(np.concatenate([[0.0], of.experts[k] @ row])) for k in (expert, other))
        return float(np.sum(p * np.log(p / q)))
    first, second = (np.diag(v) if v.ndim == 1 else v for v in (of.variances[expert], of.variances[other]))
    apart = (of.experts[other] - of.experts[expert]) @ row
    inverse = np.linalg.inv(second)
    log_ratio = math.log(np.linalg.det(second) / np.linalg.det(first))
    return 0.5 * float(np.trace(inverse @ first) + apart @ inverse @ apart - len(first) + log_ratio)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def mean_divergence(name, i, j, of):
    weights = TAU[:, i] + TAU[:, j]
    each = [
        0.5 * (kullback_leibler(name, i, j, of, row) + kullback_leibler(name, j, i, of, row)) if i != j else 0.0
        for row in R
    ]
    return float(np.sum(weights * each) / weights.sum())


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
def test_divergences_are_means_over_the_rows_that_either_expert_answers_for(name):
    given = state(name)
    found = families()[name].divergences(given, options(name))
    expected = [[mean_divergence(name, i, j, given) for j in range(K)] for i in range(K)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert min(expected[0][1:]) > 0.1


def test_divergences_of_categorical_experts_are_bounds_that_are_tight_where_two_classes_are_as_likely():
    given = state("categorical")
    found = families()["categorical"].divergences(given, options("categorical"))
    expected = np.array([[mean_divergence("categorical", i, j, given) for j in range(K)] for i in range(K)])
    assert (found >= expected - 1e-12).all()
    assert (found < 20.0 * expected)[~np.eye(K, dtype=bool)].all()
    even = state("categorical", scale=1e-3)
    two = even._replace(experts=even.experts[:, :1].copy(), average_experts=even.average_experts[:, :1].copy())
    bound = options("categorical")._replace(expert_curvature=(4.0, 0.0))  # of one logit: A = 1/4
    found = families()["categorical"].divergences(two, bound)
    assert found[0, 1] == pytest.approx(mean_divergence("categorical", 0, 1, two), rel=1e-3)


def test_the_entropy_of_a_categorical_expert_is_that_over_rows_like_its_own():
    rng = np.random.default_rng(3)
    rows = rng.multivariate_normal([0.5, -1.0], [[1.0, 0.6], [0.6, 2.0]], size=50_000)
    rows = np.column_stack([np.ones(len(rows)), rows])
    gram = rows.T @ rows
    for expert in (rng.normal(size=(2, 3)), np.zeros((2, 3)), 30.0 * rng.normal(size=(1, 3))):
        logits = np.column_stack([np.zeros(len(rows)), rows @ expert.T])
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        expected = -np.sum(np.where(p > 0.0, p * np.log(np.maximum(p, 1e-300)), 0.0), axis=1).mean()
        assert expected_entropy(expert, gram, rng.normal(size=(20_000, 3))) == pytest.approx(expected, abs=0.01)


def test_a_gram_matrix_with_padding_has_an_entropy_too():
    gram = np.zeros((4, 4))
    gram[:2, :2] = [[0.5, 0.1], [0.1, 0.3]]
    padded = np.array([[0.3, 2.0, 0.0, 0.0]])
    draws = np.random.default_rng(4).normal(size=(64, 4))
    assert expected_entropy(padded, gram, draws) == expected_entropy(
        padded[:, :2].copy(), gram[:2, :2].copy(), draws[:, :2].copy()
    )


def density(name, of, row, y):
    """Σ g_k e_k(y | x), of the raw parameters, in plain NumPy."""
    shares = softmax(np.append(of.gate @ row, 0.0))
    if name == "categorical":
        return sum(shares[k] * softmax(np.concatenate([[0.0], of.experts[k] @ row]))[y] for k in range(K))
    total = 0.0
    for k in range(K):
        covariance = np.diag(of.variances[k]) if of.variances.ndim == 2 else of.variances[k]
        error = y - of.experts[k] @ row
        size = math.sqrt(np.linalg.det(2.0 * math.pi * covariance))
        total += shares[k] * math.exp(-0.5 * error @ np.linalg.solve(covariance, error)) / size
    return total


def squares(of, k):
    """T_k = m σ² + Υ R Υᵀ."""
    covariance = of.variances[k] if of.variances.ndim == 3 else np.diag(of.variances[k])
    whole = of.masses[k] * covariance + of.experts[k] @ (of.decay[0] * of.expert_grams[k]) @ of.experts[k].T
    return whole if of.variances.ndim == 3 else np.diag(whole)


@pytest.mark.parametrize("name", FAMILIES)
def test_statistics_of_a_reseeded_expert_sum_to_the_old_ones(name):
    old = state(name)
    before = [array.copy() for array in old]
    for expert, heir, parent in [(0, 1, 2), (2, 0, 0), (1, 2, 2), (0, 2, 1)]:
        new = reseeded(old, expert, heir=heir, parent=parent, rng=np.random.default_rng(5), n_features=P, window=50)
        assert all((kept == array).all() for kept, array in zip(before, old, strict=True))
        for k_sum in ("masses", "expert_grams"):
            np.testing.assert_allclose(getattr(new, k_sum).sum(axis=0), getattr(old, k_sum).sum(axis=0), rtol=1e-12)
        linear = [np.einsum("kqi,kij->qj", of.experts, of.expert_grams) for of in (new, old)]
        np.testing.assert_allclose(*linear, rtol=1e-9, atol=1e-12)
        if name != "categorical":
            totals = [sum(squares(of, k) for k in range(K)) for of in (new, old)]
            np.testing.assert_allclose(*totals, rtol=1e-9)
        for k in range(K):
            np.testing.assert_allclose(new.expert_grams[k] @ new.expert_inverses[k], np.eye(P), atol=1e-9)
        np.testing.assert_array_equal(new.gate_gram, old.gate_gram)
        np.testing.assert_allclose(new.masses[expert], new.masses[parent])


@pytest.mark.parametrize(("name", "expert"), [("gaussian", 0), ("gaussian_full", 1), ("categorical", 2)])
def test_the_density_stays_nearly_the_same_where_the_expert_was_starved(name, expert):
    old = state(name)
    logits = np.vstack([old.gate, np.zeros((1, P))])
    logits[expert] = [-25.0, 0.0, 0.0, 0.0]
    old = old._replace(gate=logits[:-1] - logits[-1])
    old.masses[expert] *= 1e-9
    old.expert_grams[expert] *= 1e-9
    heir, parent = (k for k in range(K) if k != expert)
    new = reseeded(old, expert, heir=heir, parent=parent, rng=np.random.default_rng(6), n_features=P, window=50)
    rng = np.random.default_rng(7)
    ratios = []
    for row in R[:150]:
        shares = softmax(np.append(old.gate @ row, 0.0))
        k = rng.choice(K, p=shares)
        if name == "categorical":
            y = rng.choice(4, p=softmax(np.concatenate([[0.0], old.experts[k] @ row])))
        else:
            covariance = np.diag(old.variances[k]) if old.variances.ndim == 2 else old.variances[k]
            y = rng.multivariate_normal(old.experts[k] @ row, covariance)
        ratios.append(math.log(density(name, new, row, y) / density(name, old, row, y)))
    assert np.mean(np.abs(ratios)) < 0.25
    assert abs(np.mean(ratios)) < 0.12
    assert np.abs(new.experts[expert] - new.experts[parent]).max() > 0.05
