"""Fits to more events and after a drift, held to EM as the formulas have it: dense, and row by row."""

import numpy as np
import pytest

from streammoe.engine import growing
from streammoe.engine.jobs import run_job
from streammoe.engine.members.contract import Rows
from streammoe.engine.members.refitted import Refitted
from streammoe.engine.mixture import Scores, no_trace
from streammoe.engine.warmup import with_own_prior
from streammoe.experts import Parameters
from tests.oracle.literal import curvature_bound
from tests.oracle.test_batch_methods import Literal
from tests.unit.cases import Case, copied, draw, literal, log_gate, problem, random_theta

P, K = 3, 3
CASES = [Case("gaussian", 1), Case("gaussian", 3), Case("gaussian_full", 2)]


class SlowEm(Literal):
    """Rounds of EM with Gaussian experts: exact solves for these, and one damped Newton step for the gate."""

    def experts(self, theta, tau):
        _, R, Y, weights = self.em.buffer
        prior, share = self.em.prior, self.em.prior.strength / len(theta.experts)
        algorithm = literal(self.case, theta)
        trusted = np.stack([algorithm.irls_weight(r, y, theta._asdict()) for r, y in zip(R, Y, strict=True)])
        experts, variances = [], []
        for k in range(len(theta.experts)):
            counts = weights * tau[:, k]
            v = counts * trusted[:, k]
            gram = R.T @ (v[:, None] * R) + share * np.diag(prior.expert_gram)
            pull = Y.T @ (v[:, None] * R) + share * prior.experts * prior.expert_gram
            expert = np.linalg.solve(gram, pull.T).T
            errors, apart = Y - R @ expert.T, expert - prior.experts
            scatter = errors.T @ (v[:, None] * errors)
            scatter += share * (apart @ np.diag(prior.expert_gram) @ apart.T + np.diag(prior.variances))
            scatter /= counts.sum() + share
            experts.append(expert)
            variances.append(scatter if theta.variances.ndim == 3 else np.diag(scatter))
        return np.stack(experts), np.stack(variances)

    def gate_objective(self, gate, tau):
        prior = self.em.prior
        said = np.sum(self.em.buffer.weights[:, None] * tau * log_gate(gate, self.em.buffer.W))
        return said - 0.5 * prior.strength * self.curved(gate, prior.gate_gram)

    def gate(self, gate, tau):
        W, _, _, weights = self.em.buffer
        prior, free = self.em.prior, len(gate)
        bound = curvature_bound(self.bound, free)
        shares = np.exp(log_gate(gate, W))[:, :free]
        slope = (weights[:, None] * (tau[:, :free] - shares)).T @ W - prior.strength * bound @ gate * prior.gate_gram
        bend = prior.strength * np.kron(bound, np.diag(prior.gate_gram))
        for w, v, g in zip(W, weights, shares, strict=True):
            bend += v * np.kron(np.diag(g) - np.outer(g, g), np.outer(w, w))
        move = np.linalg.solve(bend, slope.ravel()).reshape(gate.shape)
        before = self.gate_objective(gate, tau)
        for _ in range(12):
            if self.gate_objective(gate + move, tau) >= before:
                return gate + move
            move = 0.5 * move
        return gate

    def rounds(self, theta, count, tolerance):
        best = -np.inf
        for _ in range(count):
            total = self.objective(theta)
            if not total - best > tolerance:
                return theta, max(total, best)
            best = total
            tau, _ = self.says(theta)
            experts, variances = self.experts(theta, tau)
            theta = Parameters(self.gate(theta.gate, tau), experts, variances)
        return theta, best


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fit_to_more_rows_is_eight_rounds_of_em_from_its_start(case):
    em, start = problem(case, 120, P, K), random_theta(case, K, P)
    given = (case.family, em.buffer, start, case.n_outputs, em.options)
    found = run_job(growing.fitted(*given))
    slow = SlowEm(case, run_job(with_own_prior(*given[:2], *given[3:])), "tight")
    expected, _ = slow.rounds(copied(start), 8, 0.5 / 120)
    close(found, expected)


def test_the_refitted_member_says_what_its_parameters_say_and_counts_what_it_gains():
    case = Case("gaussian", 3)
    R, Y = draw(case, 60, P, K)
    theta, weights = random_theta(case, K, P), np.random.default_rng(1).uniform(0.5, 2.0, 60)
    member = Refitted(case.family, theta)
    average = np.random.default_rng(2).uniform(0.0, 30.0, 60)
    said = member.learn(
        Rows(R, R, Y, weights, R), Scores(average, Y, no_trace()), n_outputs=case.n_outputs, traced=False
    )
    algorithm = literal(case, theta)
    losses = [-np.logaddexp.reduce(algorithm.log_joint(r, r, y)) for r, y in zip(R, Y, strict=True)]
    np.testing.assert_allclose(said.losses, losses, rtol=1e-9)
    means = np.einsum("nk,kqj,nj->nq", np.exp(log_gate(theta.gate, R)), theta.experts, R)
    np.testing.assert_allclose(said.predictions, means, rtol=1e-9)
    gain = sum(np.clip(weights * (average - losses), -10.0, 10.0))
    assert member.arrays()["refitted_gain"][0] == pytest.approx(gain)


def test_the_refitted_member_stays_while_no_other_is_trusted():
    """What it lost on the average during a fault in the data must not dismiss the only one that predicts after it."""
    member = Refitted(Case("gaussian", 3).family, random_theta(Case("gaussian", 3), K, P), gain=-1e4)
    assert [member.stays(0.995, n) for n in range(3)] == [True] * 3
    assert [member.stays(0.95, n) for n in range(2)] == [True, False]
