"""The reduction of local experts: descent, and gates of models that lack an expert."""

from __future__ import annotations

import numpy as np
import pytest

from streammoe.engine.reduction import Local, Normal, log_softmax, reduce
from streammoe.types import FloatArray

S = 300


@pytest.fixture
def R() -> FloatArray:
    rng = np.random.default_rng(0)
    return np.column_stack([np.ones(S), rng.normal(size=(S, 2))])


def local(R: FloatArray, models: list[tuple[FloatArray, list[FloatArray]]]) -> Local:
    """Return the local experts of models, each a gate (K, p) and the coefficients of its experts, of variance 0.1."""
    parts = len(models)
    log_gates = [log_softmax(R @ gate.T) for gate, _ in models]
    means = [np.stack([R @ each for each in experts], axis=1)[:, :, None] for _, experts in models]
    owners = np.repeat(np.arange(parts), [len(experts) for _, experts in models])
    return Local(
        np.concatenate(log_gates, axis=1),
        np.full((S, parts), 1.0 / parts),
        np.concatenate(means, axis=1),
        np.full((len(owners), 1, 1), 0.1),
        owners,
    )


UP, DOWN, FLAT = np.array([0.0, 3.0, 1.0]), np.array([1.0, -3.0, 1.0]), np.array([5.0, 0.0, 0.0])
GATE = np.array([[0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])


def test_the_divergence_falls_with_each_round(R: FloatArray) -> None:
    rng = np.random.default_rng(1)
    models = [(rng.normal(size=(3, 3)), [rng.normal(size=3) * 3.0 for _ in range(3)]) for _ in range(8)]
    found = reduce(Normal(local(R, models), R), R, 4, 0)
    falls = np.diff(found.divergences)
    assert len(falls) >= 2
    assert (falls <= 1e-12).all()
    assert found.divergences[-1] < 0.9 * found.divergences[0]


def test_an_expert_of_some_models_has_their_part_of_its_share(R: FloatArray) -> None:
    three = np.array([[0.0, 4.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]])
    models = [(three, [UP, DOWN, FLAT]), (GATE, [UP, DOWN]), (three, [UP, DOWN, FLAT])]
    found = reduce(Normal(local(R, models), R), R, 3, 0)
    at = [int(np.abs(found.experts.coefficients[:, 0] - each).sum(axis=1).argmin()) for each in (UP, DOWN, FLAT)]
    assert sorted(at) == [0, 1, 2]
    theirs = np.exp(log_softmax(R @ three.T))[:, 2].mean()
    assert np.exp(found.log_shares(R))[:, at[2]].mean() == pytest.approx(theirs * 2.0 / 3.0, rel=1e-6)


def test_experts_that_no_model_connects_have_the_shares_of_their_models(R: FloatArray) -> None:
    steep, level = np.array([50.0, 3.0, 1.0]), np.array([50.0, 0.0, -3.0])
    models = [*[(GATE, [UP, DOWN])] * 9, (GATE, [steep, level])]
    for K in (3, 4):
        found = reduce(Normal(local(R, models), R), R, K, 0)
        odd = found.experts.coefficients[:, 0, 0] > 25.0
        assert np.exp(found.log_shares(R))[:, odd].sum(axis=1).mean() == pytest.approx(0.1, abs=1e-3)


def test_the_mean_of_gates_is_as_hard_as_they_are(R: FloatArray) -> None:
    apart = [np.array([[shift, 40.0, 0.0], [0.0, 0.0, 0.0]]) for shift in (-20.0, 0.0, 20.0)]
    found = reduce(Normal(local(R, [(gate, [UP, DOWN]) for gate in apart]), R), R, 2, 0)
    np.testing.assert_allclose(np.abs(found.gate[0] - found.gate[1]), [0.0, 40.0, 0.0], atol=1e-6)
