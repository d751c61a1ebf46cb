"""Steps: scores, cuts, weights, and numbers that are hard to hold."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.state import copy_state, is_finite
from streammoe.errors import ConfigError
from tests.unit.cases import CASES, Case, draw, options, responsibilities, same_bits, trust

STEPS = schedules.power(0.6)
BOUNDS = ["tight", "adaptive", "paper"]
P = 4


def start(case, K=3, *, p=P, prior_strength=0.5, seed=0):
    given = {"n_experts": K, "p_w": p, "p_v": p, "prior_strength": prior_strength, "seed": seed}
    return mm.random_start(case.family, n_outputs=case.n_outputs, **given)


def learn(case, state, R, Y, *, bound="tight", schedule=STEPS, residual=None, prior_strength=0.5, **more):
    if residual is None:
        residual = mm.new_residual(case.family, state, case.n_outputs)
    chosen = options(case, len(state.experts), prior_strength, bound, schedule=schedule)
    return mm.learn(case.family, state, residual, chosen, schedule, R, R, Y, n_outputs=case.n_outputs, **more)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("case", CASES, ids=str)
class TestLearning:
    def test_where_the_rows_were_cut_leaves_no_trace(self, case, bound):
        R, Y = draw(case, 200, P, 3)
        weights = np.random.default_rng(1).uniform(0.1, 3.0, 200)
        whole, parts = start(case), start(case)
        residuals = [mm.new_residual(case.family, whole, case.n_outputs) for _ in range(2)]
        scores = learn(case, whole, R, Y, bound=bound, residual=residuals[0], weights=weights)
        runs = [
            learn(case, parts, R[part], Y[part], bound=bound, residual=residuals[1], weights=weights[part])
            for part in np.split(np.arange(200), [1, 2, 77, 78, 199])
        ]
        joined = mm.joined(runs)
        assert same_bits([*whole, residuals[0]], [*parts, residuals[1]])
        assert same_bits([scores.losses, scores.predictions], [joined.losses, joined.predictions])

    def test_learning_lowers_the_loss(self, case, bound):
        R, Y = draw(case, 3000, P, 2, seed=3)
        losses = learn(case, start(case, 2), R, Y, bound=bound).losses
        assert losses[-1000:].mean() < losses[:200].mean() - 0.05
        assert np.isfinite(losses).all()

    def test_long_steps_leave_everything_finite(self, case, bound):
        R, Y = draw(case, 2000, P, 3, seed=4)
        state = start(case, 4, prior_strength=1.0)
        learn(case, state, R, Y, bound=bound, schedule=schedules.power(0.6, gamma0=0.7, offset=2), prior_strength=1.0)
        assert is_finite(state)
        assert (state.masses / state.masses.sum()).min() > 1e-4

    def test_inverses_and_masses_follow(self, case, bound):
        R, Y = draw(case, 130, P, 3)
        state = start(case)
        learn(case, state, R, Y, bound=bound)
        np.testing.assert_allclose(state.gate_inverse @ state.gate_gram, np.eye(P), atol=1e-8)
        for gram, inverse in zip(state.expert_grams, state.expert_inverses, strict=True):
            np.testing.assert_allclose(inverse @ gram, np.eye(P), atol=1e-8)
        assert state.n[0] == 130
        # Each event brings a mass of 1, and the prior's part decays with the rest.
        assert state.masses.sum() == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("case", CASES, ids=str)
class TestScores:
    def test_are_those_of_the_formulas(self, case):
        R, Y = draw(case, 60, P, 3)
        state = start(case)
        learn(case, state, R, Y)
        served = state._replace(
            gate=state.average_gate, experts=state.average_experts, variances=state.average_variances
        )
        tau, log_likelihoods = responsibilities(case, served, R, Y)
        scores, found = mm.score(case.family, state, R, R, Y, n_outputs=case.n_outputs)
        np.testing.assert_allclose(-scores.losses, log_likelihoods, rtol=1e-9)
        np.testing.assert_allclose(found, tau, rtol=1e-7, atol=1e-12)

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
        state = start(case)
        scores = learn(case, state, R, Y, traced=True)
        shares, means, variances = scores.trace
        np.testing.assert_allclose(np.einsum("nk,nkq->nq", shares, means), scores.predictions, rtol=1e-12, atol=1e-14)
        assert variances.shape == (60, 3, case.n_outputs if case.family.n_variances(1) else 0)
        assert (variances > 0.0).all()
        plain = learn(case, start(case), R, Y)
        assert same_bits([plain.losses, plain.predictions], [scores.losses, scores.predictions])

    def test_the_residual_is_a_share(self, case):
        R, Y = draw(case, 3000, P, 2)
        state = start(case, 2)
        residual = mm.new_residual(case.family, state, case.n_outputs)
        assert np.isnan(mm.convergence_residual(residual))
        learn(case, state, R[:64], Y[:64], residual=residual)
        assert mm.convergence_residual(residual) == pytest.approx(1.0)
        learn(case, state, R[64:], Y[64:], residual=residual)
        assert 0.0 < mm.convergence_residual(residual) < 0.8


class TestWeights:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_ones_are_none(self, case):
        R, Y = draw(case, 100, P, 2)
        plain, weighed = start(case), start(case)
        learn(case, plain, R, Y)
        learn(case, weighed, R, Y, weights=np.ones(100))
        assert same_bits(plain, weighed)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_one_expert_is_the_weighted_fit(self, case):
        """Steps 1/n weigh all events alike, so that weights are all that tells them apart."""
        R, Y = draw(case, 4000, P, 1)
        weights = np.where(R[:, 1] > 0.0, 3.0, 0.5)
        schedule = schedules.power(1.0)
        state = start(case, 1)
        learn(case, state, R, Y, weights=weights, schedule=schedule)
        gram = state.decay[0] * state.expert_grams[0]
        if case.family.is_metric:
            # Of heavy tails the weights follow from the fit, and the fit must follow from the weights.
            trusted = weights * trust(case, state, R, Y)[:, 0]
            tolerance = 2e-3 if case.family.is_exact else 0.15
            np.testing.assert_allclose(gram, (R * trusted[:, None]).T @ R / 4000, atol=tolerance)
            theta = np.linalg.lstsq(R * np.sqrt(trusted)[:, None], Y * np.sqrt(trusted)[:, None], rcond=None)[0]
            np.testing.assert_allclose(state.experts[0], theta.T, atol=5e-3 if case.family.is_exact else 2e-2)
        np.testing.assert_allclose(state.masses[0], weights.mean(), rtol=1e-3)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_large_ones_stay_finite(self, case):
        R, Y = draw(case, 300, P, 2)
        state = start(case)
        learn(case, state, R, Y, weights=np.where(np.arange(300) % 7 == 0, 1e6, 1e-6))
        assert is_finite(state)


class TestManyOutputs:
    @pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
    @pytest.mark.parametrize("sizes", [(1e-9, 1e-9), (1e9, 1e9), (1e-9, 1e9)], ids=["tiny", "huge", "both"])
    def test_densities_of_forty_do_not_overflow(self, name, sizes):
        """A product of forty variances of 1e-18 or 1e18 is no double."""
        case = Case(name, 40)
        R, Y = draw(Case("gaussian", 40), 120, P, 2)
        sizes = np.tile(sizes, 20)
        losses = []
        for unit in (np.ones(40), sizes):
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
            losses.append(learn(case, state, R, Y * unit).losses - np.log(unit).sum())
            assert is_finite(state)
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6, atol=1e-6)

    def test_collinear_outputs_stay_finite_under_a_full_covariance(self):
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

    def test_a_full_covariance_finds_how_errors_go_together(self):
        case = Case("gaussian_full", 2)
        rng = np.random.default_rng(0)
        R = np.column_stack([np.ones(5000), rng.normal(size=(5000, P - 1))])
        truth = np.array([[1.0, 0.8], [0.8, 2.0]])
        Y = R @ rng.normal(size=(P, 2)) + rng.multivariate_normal(np.zeros(2), truth, 5000)
        state = start(case, 1)
        learn(case, state, R, Y)
        np.testing.assert_allclose(state.average_variances[0], truth, atol=0.12)

    def test_one_output_is_the_diagonal_familys(self):
        R, Y = draw(Case("gaussian", 1), 300, P, 2)
        states = []
        for name in ("gaussian", "gaussian_full"):
            case = Case(name, 1)
            states.append(start(case, 3))
            learn(case, states[-1], R, Y)
        diagonal, full = states
        np.testing.assert_allclose(full.experts, diagonal.experts, rtol=1e-9)
        np.testing.assert_allclose(full.variances[:, :, 0], diagonal.variances, rtol=1e-9)
        np.testing.assert_allclose(full.gate, diagonal.gate, rtol=1e-8)


class TestOptions:
    @pytest.mark.parametrize(("name", "value"), [("bound", "loose"), ("averaging", "mean")])
    def test_unknown_words_are_named(self, name, value):
        with pytest.raises(ConfigError, match=value):
            options(Case("gaussian", 1), 2, **{name: value})

    @pytest.mark.parametrize("free", [1, 2, 3, 7])
    def test_a_curvature_is_the_inverse_of_the_bound(self, free):
        ones = np.ones((free, free))
        bounds = {
            "tight": 0.5 * (np.eye(free) - ones / (free + 1)),
            "adaptive": 0.5 * (np.eye(free) - ones / (free + 1)),
            "paper": 0.75 * np.eye(free) - ones / (2 * free),
        }
        for bound, A in bounds.items():
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
