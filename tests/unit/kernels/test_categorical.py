"""Events that a model holds for next to impossible."""

import numpy as np
import pytest

from streammoe.kernels import categorical
from streammoe.kernels.state import Trace
from tests.unit.cases import log_classes, log_gate

NOTHING = Trace(np.empty((0, 0)), np.empty((0, 0, 0)), np.empty((0, 0, 0)))


def mixture(size, K, M, p=3):
    rng = np.random.default_rng(0)
    return size * rng.normal(size=(K - 1, p)), size * rng.normal(size=(K, M - 1, p)), rng.normal(size=(40, p))


def reference(gate, experts, R, labels):
    joint = log_gate(gate, R) + np.stack([log_classes(expert, R)[np.arange(len(R)), labels] for expert in experts], 1)
    total = np.logaddexp.reduce(joint, axis=1)
    return -total, np.exp(joint - total[:, None])


@pytest.mark.parametrize("size", [1.0, 1e3, 1e8])
def test_scores_never_vanish(size):
    gate, experts, R = mixture(size, 3, 4)
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
    gate, experts, R = mixture(size, K, M)
    losses, tau = reference(gate, experts, R, np.ones(len(R), dtype=int))
    for i, r in enumerate(R):
        joint = np.empty(K)
        assert categorical.unlikely(gate, experts, r, r, 1, joint) == pytest.approx(losses[i], rel=1e-9)
        np.testing.assert_allclose(joint, tau[i], rtol=1e-6, atol=1e-9)
