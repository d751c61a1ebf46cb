"""Which products of two features `curved` sees."""

import numpy as np
import pytest

from streammoe.engine.products import MOST_FEATURES, merits, terms_of


def test_the_merit_of_a_product_is_its_score_statistic():
    rng = np.random.default_rng(0)
    R, residuals = rng.normal(size=(50, 4)), rng.normal(size=50)
    residuals[:5] = 0.0
    found = merits(R, residuals)
    for i in range(4):
        for j in range(4):
            pushes = residuals * R[:, i] * R[:, j]
            assert found[i, j] == pytest.approx(pushes.sum() ** 2 / (pushes**2).sum())


def test_one_row_however_large_does_not_make_a_product_worth_its_place():
    R, residuals = np.ones((1000, 2)), np.tile([1.0, -1.0], 500)
    R[0, 1], residuals[0] = 1e6, 1e6
    assert merits(R, residuals).max() <= 1.0 + 1e-5


@pytest.mark.parametrize("n_inputs", [20, 100])
def test_products_that_matter_are_found_among_many(n_inputs):
    rng = np.random.default_rng(1)
    p = 1 + n_inputs
    R = np.column_stack([np.ones(800), rng.normal(size=(800, n_inputs))])
    left = R[:, 3] * R[:, 7] + R[:, 5] ** 2 - 1.0 + rng.normal(size=800)
    terms = terms_of(p, np.arange(1, p), merits(R, left))
    assert len(terms) <= MOST_FEATURES
    assert {(7, 3), (5, 5)} <= set(map(tuple, terms[p:].tolist()))
    apart = [term for term in terms[p:].tolist() if term[0] != term[1]]
    assert len(apart) <= 3  # others say nothing


def test_before_there_are_classes_to_tell_apart_products_are_chosen_too():
    """A single class so far has no output of its own."""
    merit = np.eye(90)
    assert terms_of(90, np.arange(1, 90), merit, 0) is not None
