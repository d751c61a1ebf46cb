"""States with their curvature in blocks: how they begin, and what is left of blocks when features move."""

import numpy as np
import pytest

from streammoe.engine.blocks import blocks_of, in_blocks, inverses_of, widened_blocks
from streammoe.engine.em import Buffer, Em, one_expert_prior, statistics
from streammoe.engine.jobs import run_job
from tests.unit.cases import CASES, draw, options, random_theta


@pytest.fixture
def gram():
    rows = np.random.default_rng(0).normal(size=(20, 7))
    return rows.T @ rows


def dense(blocks, p):
    size = blocks.shape[-1]
    found = np.zeros((blocks.shape[1] * size,) * 2)
    for b, block in enumerate(blocks[0]):
        found[b * size : (b + 1) * size, b * size : (b + 1) * size] = block
    assert not found[p:].any()
    return found[:p, :p]


def test_blocks_of_a_matrix_are_its_own_and_so_are_their_inverses(gram):
    blocks = blocks_of(gram, 3)
    same = np.arange(7)[:, None] // 3 == np.arange(7)[None] // 3
    np.testing.assert_array_equal(dense(blocks, 7), np.where(same, gram, 0.0))
    for block, inverse in zip(blocks[0, :2], inverses_of(blocks)[0, :2], strict=True):
        np.testing.assert_allclose(block @ inverse, np.eye(3), atol=1e-12)


def test_of_moved_features_those_stay_related_that_were_and_are_in_one_block(gram):
    at, p = np.array([0, 1, 3, 4, 5, 8, 9]), 12
    wide = dense(widened_blocks(blocks_of(gram, 3), at, p, 0.5), p)
    old = np.arange(7) // 3
    for i in range(7):
        for j in range(7):
            related = old[i] == old[j] and at[i] // 3 == at[j] // 3
            assert wide[at[i], at[j]] == (gram[i, j] if related else 0.0)
    new = np.setdiff1d(np.arange(p), at)
    np.testing.assert_array_equal(wide[new][:, new], 0.5 * 3 / 12 * np.eye(len(new)))
    assert not wide[np.ix_(new, at)].any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_fit_begins_with_bounds_the_curvatures_of_gate_and_experts(case):
    K, p, n = 3, 8, 60
    R, Y = draw(case, n, p, K)
    rng = np.random.default_rng(1)
    buffer = Buffer(R, R, Y, rng.uniform(0.5, 2.0, size=n))
    given = options(case, K, bound="adaptive")
    prior = run_job(one_expert_prior(case.family, buffer, case.n_outputs, given))
    em, theta = Em(case.family, buffer, prior, given), random_theta(case, K, p)
    whole = run_job(statistics(em, theta.copied()))
    found = run_job(statistics(em, theta.copied(), 3))
    widths = np.array([3, 3, 2])
    B = dense(found.expert_grams, p) / np.repeat(widths / p, widths)[:, None]
    # Those of the fit were formed at the same θ, before its last step.
    for matrix in (whole.gate_gram, *whole.expert_grams):
        assert np.linalg.eigvalsh(B - matrix)[0] >= -1e-12
    for name in ("gate", "experts", "variances"):
        np.testing.assert_array_equal(getattr(found, name), getattr(theta, name))
    np.testing.assert_allclose(found.masses, whole.masses, rtol=1e-12)
    later = in_blocks(whole, 3)
    B = dense(later.expert_grams, p) / np.repeat(widths / p, widths)[:, None]
    for matrix in (whole.gate_gram, *whole.expert_grams):
        assert np.linalg.eigvalsh(B - matrix)[0] >= -1e-12
    assert in_blocks(later, 3) is later
