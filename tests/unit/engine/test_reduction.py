"""The reduction of local experts: descent, gates of models that lack an expert, and rounds of normal experts."""

from __future__ import annotations

import numpy as np
import pytest

from streammoe.engine.reduction import Experts, GatePrior, Local, Normal, Problem, log_softmax, reduce
from streammoe.kernels.batch import fit_softmax
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
    found = reduce(Normal(local(R, models), R, is_full=False), R, 4, 0)
    falls = np.diff(found.divergences)
    assert len(falls) >= 2
    assert (falls <= 1e-12).all()
    assert found.divergences[-1] < 0.9 * found.divergences[0]


def test_an_expert_of_some_models_has_their_part_of_its_share(R: FloatArray) -> None:
    three = np.array([[0.0, 4.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]])
    models = [(three, [UP, DOWN, FLAT]), (GATE, [UP, DOWN]), (three, [UP, DOWN, FLAT])]
    found = reduce(Normal(local(R, models), R, is_full=False), R, 3, 0)
    at = [int(np.abs(found.experts.coefficients[:, 0] - each).sum(axis=1).argmin()) for each in (UP, DOWN, FLAT)]
    assert sorted(at) == [0, 1, 2]
    theirs = np.exp(log_softmax(R @ three.T))[:, 2].mean()
    assert np.exp(found.log_shares(R))[:, at[2]].mean() == pytest.approx(theirs * 2.0 / 3.0, rel=1e-6)


def test_experts_that_no_model_connects_have_the_shares_of_their_models(R: FloatArray) -> None:
    steep, level = np.array([50.0, 3.0, 1.0]), np.array([50.0, 0.0, -3.0])
    models = [*[(GATE, [UP, DOWN])] * 9, (GATE, [steep, level])]
    for K in (3, 4):
        found = reduce(Normal(local(R, models), R, is_full=False), R, K, 0)
        odd = found.experts.coefficients[:, 0, 0] > 25.0
        assert np.exp(found.log_shares(R))[:, odd].sum(axis=1).mean() == pytest.approx(0.1, abs=1e-3)


def test_the_mean_of_gates_is_as_hard_as_they_are(R: FloatArray) -> None:
    apart = [np.array([[shift, 40.0, 0.0], [0.0, 0.0, 0.0]]) for shift in (-20.0, 0.0, 20.0)]
    found = reduce(Normal(local(R, [(gate, [UP, DOWN]) for gate in apart]), R, is_full=False), R, 2, 0)
    np.testing.assert_allclose(np.abs(found.gate[0] - found.gate[1]), [0.0, 40.0, 0.0], atol=1e-6)


def test_the_prior_of_the_gate_counts_once() -> None:
    """Gates of logistic regressions with a prior, each on a part of the rows, come nearer to that on all rows."""
    rng = np.random.default_rng(5)
    n, M, strength = 4000, 8, 40.0
    R = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    targets = np.zeros((n, 2))
    targets[np.arange(n), (rng.random(n) > 1.0 / (1.0 + np.exp(-R @ GATE[0]))).astype(int)] = 1.0
    gram = np.mean(R * R, axis=0)

    def gate(rows: slice) -> FloatArray:
        found = np.zeros((1, 3))
        X = np.ascontiguousarray(R[rows])
        fit_softmax(found, strength, gram, np.zeros((1, 3)), (2.0, 1.0), np.ascontiguousarray(targets[rows]), X, 1, 100)
        return np.vstack([found, np.zeros((1, 3))])

    models = [(gate(slice(m, None, M)), [UP, DOWN]) for m in range(M)]
    points = R[:S]
    problem = Normal(local(points, models), points, is_full=False)
    once = reduce(problem, points, 2, 0, GatePrior(strength, (2.0, 1.0), n))
    often = reduce(problem, points, 2, 0)
    errors = [np.abs(np.abs(found.gate[0] - found.gate[1])[1] - gate(slice(None))[0, 1]) for found in (once, often)]
    assert errors[0] < 0.6 * errors[1]


# --- rounds of normal experts, all at once by a kernel, against those of one after the other --------------------------

POINTS, M, K, P = 60, 3, 2, 3


def problem_of(n_outputs, is_full, seed=0):
    rng = np.random.default_rng(seed)
    R = np.column_stack([np.ones(POINTS), rng.normal(size=(POINTS, P - 1))])
    gates = rng.dirichlet(np.ones(K), size=(POINTS, M)).reshape(POINTS, M * K)
    parts = rng.dirichlet(np.ones(M), size=POINTS)
    means = rng.normal(size=(POINTS, M * K, n_outputs))
    roots = np.eye(n_outputs) + 0.3 * is_full * np.tril(rng.normal(size=(M * K, n_outputs, n_outputs)))
    variances = roots @ roots.swapaxes(1, 2)
    if not is_full:
        variances = variances * np.eye(n_outputs)
    local = Local(np.log(gates), parts, means, variances, np.repeat(np.arange(M), K))
    return Normal(local, R, is_full=is_full)


@pytest.mark.parametrize(("n_outputs", "is_full"), [(1, False), (2, False), (2, True), (3, True)])
class TestNormalExpertsInOnePass:
    def test_go_to_where_they_go_one_reduced_expert_after_the_other(self, n_outputs, is_full):
        problem = problem_of(n_outputs, is_full)
        experts = problem.linear().part(np.array([0, 3, 4]))
        nearest, costs = problem.divergences(experts)
        wanted, wanted_costs = Problem.divergences(problem, experts)
        np.testing.assert_array_equal(nearest, wanted)
        np.testing.assert_allclose(costs, wanted_costs, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_move_as_they_do_one_after_the_other_and_leave_an_empty_one(self, n_outputs, is_full, is_whole):
        problem = problem_of(n_outputs, is_full)
        given = problem.linear()
        far = Experts(given.coefficients[:1] + 1e3, given.variances[:1])
        experts = Experts(*(np.concatenate(pair) for pair in zip(given.part(np.array([0, 3])), far, strict=True)))
        nearest = np.array([0, 1, 0, 1, 1, 0]) if is_whole else problem.divergences(experts)[0]
        moved, masses = problem.moved(nearest, experts)
        wanted, wanted_masses = Problem.moved(problem, nearest, experts)
        np.testing.assert_allclose(masses, wanted_masses, rtol=1e-12)
        assert masses[2] == 0.0
        np.testing.assert_array_equal(moved.coefficients[2], experts.coefficients[2])
        for found, expected in zip(moved, wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
