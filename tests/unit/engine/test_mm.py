"""Steps and scores: what the iterates of tests/oracle do not show, and numbers that are hard to hold."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.state import copy_state, is_finite
from streammoe.errors import ConfigError
from tests.unit.cases import CASES, Case, draw, options, responsibilities, same_bits

STEPS = schedules.power(0.6)
P = 4
SOME = [Case("gaussian_full", 3), Case("student_t", 3), Case("categorical", 3)]


def start(case, K=3, *, p=P, prior_strength=0.5):
    given = {"n_experts": K, "p_w": p, "p_v": p, "prior_strength": prior_strength, "seed": 0}
    return mm.random_start(case.family, n_outputs=case.n_outputs, **given)


def learn(case, state, R, Y, *, schedule=STEPS, residual=None, **more):
    if residual is None:
        residual = mm.new_residual(case.family, state, case.n_outputs)
    chosen = options(case, len(state.experts), 0.5, schedule=schedule)
    return mm.learn(case.family, state, residual, chosen, schedule, R, R, Y, n_outputs=case.n_outputs, **more)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_are_those_of_the_formulas_at_the_average(case):
    R, Y = draw(case, 60, P, 3)
    state = start(case)
    learn(case, state, R, Y)
    served = state._replace(gate=state.average_gate, experts=state.average_experts, variances=state.average_variances)
    tau, log_likelihoods = responsibilities(case, served, R, Y)
    scores, found = mm.score(case.family, state, R, R, Y, n_outputs=case.n_outputs)
    np.testing.assert_allclose(-scores.losses, log_likelihoods, rtol=1e-9)
    np.testing.assert_allclose(found, tau, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("case", SOME, ids=str)
class TestScores:
    def test_without_a_target_there_is_no_loss_and_nothing_is_learned(self, case):
        R, Y = draw(case, 60, P, 3)
        state = start(case)
        learn(case, state, R, Y)
        before = copy_state(state)
        expected, shares = mm.score(case.family, state, R, R, n_outputs=case.n_outputs)
        scores = learn(case, state, R, np.full_like(Y, np.nan))
        assert same_bits(state, before)
        assert np.isnan(scores.losses).all()
        assert same_bits([scores.predictions], [expected.predictions])
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)

    def test_the_trace_adds_up_to_the_prediction(self, case):
        R, Y = draw(case, 60, P, 3)
        scores = learn(case, start(case), R, Y, traced=True)
        shares, means, variances = scores.trace
        np.testing.assert_allclose(np.einsum("nk,nkq->nq", shares, means), scores.predictions, rtol=1e-12, atol=1e-14)
        assert variances.shape == (60, 3, case.n_outputs if case.family.n_variances(1) else 0)
        assert (variances > 0.0).all()
        plain = learn(case, start(case), R, Y)
        assert same_bits([plain.losses, plain.predictions], [scores.losses, scores.predictions])

    def test_weights_of_any_size_leave_everything_finite(self, case):
        R, Y = draw(case, 300, P, 2)
        state = start(case)
        learn(case, state, R, Y, weights=np.where(np.arange(300) % 7 == 0, 1e6, 1e-6))
        assert is_finite(state)


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_the_residual_is_a_share(case):
    R, Y = draw(case, 3000, P, 2)
    state = start(case, 2)
    residual = mm.new_residual(case.family, state, case.n_outputs)
    assert np.isnan(mm.convergence_residual(residual))
    learn(case, state, R[:64], Y[:64], residual=residual)
    assert mm.convergence_residual(residual) == pytest.approx(1.0)
    learn(case, state, R[64:], Y[64:], residual=residual)
    assert 0.0 < mm.convergence_residual(residual) < 0.8


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
def test_densities_of_forty_outputs_do_not_overflow(name):
    """A product of forty variances of 1e-18 or 1e18 is no double."""
    case = Case(name, 40)
    R, Y = draw(Case("gaussian", 40), 120, P, 2)

    def losses(unit):
        state = start(case, 2)
        variances = case.family.variances_of(unit**2, 2)
        zeros = np.zeros_like(state.experts)
        state = state._replace(
            experts=zeros,
            average_experts=zeros.copy(),
            variances=variances,
            average_variances=variances.copy(),
            prior_variances=unit**2,
        )
        found = learn(case, state, R, Y * unit).losses - np.log(unit).sum()
        assert is_finite(state)
        return found

    expected = losses(np.ones(40))
    for sizes in [(1e-9, 1e-9), (1e9, 1e9), (1e-9, 1e9)]:
        np.testing.assert_allclose(losses(np.tile(sizes, 20)), expected, rtol=1e-6, atol=1e-6)


def test_collinear_outputs_stay_finite_under_a_full_covariance():
    case = Case("gaussian_full", 3)
    R, Y = draw(Case("gaussian", 1), 1500, P, 2)
    Y = np.column_stack([Y, -2.0 * Y, np.zeros(len(Y))])
    for schedule in (STEPS, schedules.constant(0.2)):
        state = start(case, 2)
        losses = learn(case, state, R, Y, schedule=schedule).losses
        assert is_finite(state)
        assert np.isfinite(losses).all()
        assert (np.einsum("kqq->kq", state.variances) > 0.0).all()
        np.testing.assert_array_equal(state.variances, state.variances.transpose(0, 2, 1))


def test_unknown_words_are_rejected():
    for wrong in ({"bound": "loose"}, {"averaging": "mean"}):
        with pytest.raises(ConfigError):
            options(Case("gaussian", 1), 2, **wrong)


def test_a_curvature_is_the_inverse_of_the_bound():
    for free in (1, 2, 3, 7):
        ones = np.ones((free, free))
        tight, paper = 0.5 * (np.eye(free) - ones / (free + 1)), 0.75 * np.eye(free) - ones / (2 * free)
        for bound, A in {"tight": tight, "adaptive": tight, "paper": paper}.items():
            a, b = mm.curvature(bound, free)
            np.testing.assert_allclose(np.linalg.inv(A), a * (np.eye(free) + b * ones), rtol=1e-12)


def test_runs_that_knew_fewer_classes_are_joined_with_zeros():
    few = mm.Scores(
        np.zeros(2), np.full((2, 1), 1.0), mm.Trace(np.ones((2, 1)), np.ones((2, 1, 1)), np.empty((2, 1, 0)))
    )
    more = mm.Scores(
        np.ones(1), np.full((1, 3), 0.5), mm.Trace(np.ones((1, 2)), np.ones((1, 2, 3)), np.empty((1, 2, 0)))
    )
    whole = mm.joined([few, more])
    assert whole.losses.tolist() == [0.0, 0.0, 1.0]
    assert whole.predictions.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.5]]
    assert whole.trace.shares.tolist() == [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    assert whole.trace.means.shape == (3, 2, 3)
    assert whole.trace.variances.shape == (3, 2, 0)
