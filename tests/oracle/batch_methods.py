"""The penalised likelihood and one round of EM as the formulas say them, with dense matrices and SciPy's densities.

The prior counts as `strength` further events, a K-th of them at each expert; its curvature for softmax blocks is A ⊗ Λ.
"""

from __future__ import annotations

import numpy as np

from streammoe.engine.methods import M_STEPS
from streammoe.experts import Parameters
from streammoe.testing.literal import curvature_bound
from tests.unit.cases import HEAVY, responsibilities, trust


class Literal:
    """The rows, the prior and the bound of a case; gate and experts see the same features."""

    def __init__(self, case, em, bound):
        self.case, self.bound = case, bound
        _, self.R, self.Y, self.weights = em.buffer
        self.prior = em.prior

    def curvature(self, free):
        return curvature_bound(self.bound, free)

    def log_prior(self, theta):
        prior, share = self.prior, self.prior.strength / len(theta.experts)
        total = 0.0
        for expert, variances in zip(theta.experts, theta.variances, strict=True):
            apart = expert - prior.experts
            if self.case.family.is_metric:
                covariance = variances if variances.ndim == 2 else np.diag(variances)
                scatter = apart @ np.diag(prior.expert_gram) @ apart.T + np.diag(prior.variances)
                total -= (
                    0.5 * share * (np.linalg.slogdet(covariance)[1] + np.trace(np.linalg.inv(covariance) @ scatter))
                )
            else:
                total -= 0.5 * share * curved(apart, self.curvature(len(apart)), prior.expert_gram)
        return total - 0.5 * prior.strength * curved(theta.gate, self.curvature(len(theta.gate)), prior.gate_gram)

    def objective(self, theta):
        """Penalised log-likelihood of an event."""
        _, log_likelihoods = responsibilities(self.case, theta, self.R, self.Y)
        return (self.weights @ log_likelihoods + self.log_prior(theta)) / len(self.R)

    def em(self, theta):
        """The next θ by [MD] Algorithm 1: both M-steps to their ends."""
        tau = self.weighted(theta)
        K = len(theta.experts)
        gate = regression(
            tau, self.R, K - 1, theta.gate, self.curvature(K - 1), self.prior.strength, self.prior.gate_gram,
            np.zeros_like(theta.gate),
        )  # fmt: skip
        if self.case.family.is_metric:
            # Heavy tails have no closed form: so many reweighted solves under the same responsibilities.
            for _ in range(M_STEPS if self.case.name in HEAVY else 1):
                theta = Parameters(gate, *self.least_squares(theta, tau))
            return theta
        experts = []
        for k in range(K):
            targets = np.zeros((len(self.R), self.case.n_outputs))
            targets[np.arange(len(self.R)), self.Y[:, 0].astype(int)] = tau[:, k]
            experts.append(
                regression(
                    targets, self.R, 0, theta.experts[k], self.curvature(self.case.n_rows), self.prior.strength / K,
                    self.prior.expert_gram, self.prior.experts,
                )
            )  # fmt: skip
        return Parameters(gate, np.stack(experts), theta.variances)

    def weighted(self, theta):
        return responsibilities(self.case, theta, self.R, self.Y)[0] * self.weights[:, None]

    def least_squares(self, theta, tau):
        prior, R, Y = self.prior, self.R, self.Y
        share = prior.strength / len(theta.experts)
        Lambda = np.diag(prior.expert_gram)
        experts, variances = [], []
        trusted = tau * trust(self.case, theta, R, Y)
        for k in range(len(theta.experts)):
            T = np.diag(trusted[:, k])
            expert = np.linalg.solve(R.T @ T @ R + share * Lambda, R.T @ T @ Y + share * Lambda @ prior.experts.T).T
            errors, apart = Y - R @ expert.T, expert - prior.experts
            scatter = errors.T @ T @ errors + share * (apart @ Lambda @ apart.T + np.diag(prior.variances))
            covariance = scatter / (tau[:, k].sum() + share)
            experts.append(expert)
            variances.append(covariance if theta.variances.ndim == 3 else np.diag(covariance))
        return np.stack(experts), np.stack(variances)


def curved(apart, A, gram):
    """Apartᵀ (A ⊗ Λ) apart."""
    return np.einsum("aj,ab,bj,j->", apart, A, apart, gram)


def regression(targets, X, reference, coefficients, A, strength, gram, prior_target):
    """Weighted softmax regression on soft targets (n, M) to its end, by plain Newton steps on a dense Hessian."""
    free = len(coefficients)
    if free == 0:
        return coefficients
    others = [m for m in range(free + 1) if m != reference]
    weights = targets.sum(axis=1)
    C = coefficients.copy()

    def probabilities(C):
        logits = np.zeros((len(X), free + 1))
        logits[:, others] = X @ C.T
        logits -= logits.max(axis=1, keepdims=True)
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def value(C):
        fit = np.sum(targets * np.log(np.maximum(probabilities(C), 1e-300)))
        return fit - 0.5 * strength * curved(C - prior_target, A, gram)

    for _ in range(200):
        g = probabilities(C)
        gradient = (targets - weights[:, None] * g)[:, others].T @ X - strength * A @ (C - prior_target) * gram
        hessian = strength * np.kron(A, np.diag(gram))
        for i in range(len(X)):
            bend = np.diag(g[i, others]) - np.outer(g[i, others], g[i, others])
            hessian += weights[i] * np.kron(bend, np.outer(X[i], X[i]))
        move = np.linalg.solve(hessian, gradient.ravel()).reshape(C.shape)
        step = 1.0
        while value(C + step * move) < value(C) and step > 1e-9:
            step /= 2.0
        C = C + step * move
        if np.abs(gradient).max() < 1e-11 * len(X):
            break
    return C
