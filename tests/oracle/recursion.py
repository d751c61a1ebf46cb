"""The recursions of the documentation (docs/algorithm.md) in plain NumPy: Gram matrices are kept, and solved with.

Between the literal algorithms and the kernels: the same formulas as the kernels', without their arrangement. It learns
what `parameters` returns, and shares no line with either.
"""

from __future__ import annotations

import numpy as np
from scipy import special


def inverse_bound(bound, N):
    """A⁻¹ of the curvature bound over N free logits."""
    ones = np.ones((N, N))
    return 4.0 / 3.0 * (np.eye(N) + 2.0 / max(N, 1) * ones) if bound == "paper" else 2.0 * (np.eye(N) + ones)


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def curvature_weight(bound, logits):
    if bound != "adaptive" or len(logits) < 2:
        return 1.0
    top = int(np.argmax(logits))
    others = np.delete(logits, top)
    odds = logits[top] - others.max() - np.log(np.sum(np.exp(others - others.max())))
    return np.tanh(odds / 2.0) / (odds / 2.0) if odds > 0.0 else 1.0


def student_t(squares, Q, nu=4.0):
    """(K,) densities at scale 1 and weights u, given squared distances."""
    constant = special.gamma((nu + Q) / 2.0) / special.gamma(nu / 2.0) / (np.pi * nu) ** (Q / 2.0)
    return constant * (1.0 + squares / nu) ** (-(nu + Q) / 2.0), (nu + Q) / (nu + squares)


def laplace(squares, Q, tip=0.1):
    """The same for Laplace's with a tip."""
    z = np.sqrt(squares)
    area = 2.0 * np.exp(-tip) + np.exp(-tip / 2.0) * np.sqrt(2.0 * np.pi * tip) * special.erf(np.sqrt(tip / 2.0))
    return np.exp(-np.where(z > tip, z, squares / (2.0 * tip) + tip / 2.0)) / area, 1.0 / np.maximum(z, tip)


HEAVY = {"student_t": student_t, "laplace": laplace}


class Recursion:
    """Weighted recursive least squares for gate and experts; without variances, an event's y is a class number."""

    def __init__(self, parameters, *, bound, prior_strength, expert="gaussian"):
        self.bound, self.prior_strength, self.expert = bound, prior_strength, expert
        self.omega, self.Upsilon = np.array(parameters["gate"]), np.array(parameters["experts"])
        self.sigma2 = np.array(parameters["variances"]) if "variances" in parameters else None
        self.m = np.array(parameters["masses"])
        self.G, self.R = np.array(parameters["gate_gram"]), np.array(parameters["expert_grams"])
        self.decay, self.rho = parameters["decay"], parameters["prior_weight"]
        self.prior = parameters["prior"]
        self.n = parameters["n"]

    def learn(self, w, r, y, gamma, weight=1.0):
        """One event; returns −log s(y|x) before it."""
        K = len(self.m)
        gate_logits = np.append(self.omega @ w, 0.0)
        g = softmax(gate_logits)
        density, errors, curvatures, trust = self.experts_at(r, y)
        tau = g * density / (g @ density)
        loss = -np.log(g @ density)
        step = gamma * weight
        a = curvature_weight(self.bound, gate_logits)
        self.G = (1.0 - gamma) * self.G + step * a * np.outer(w, w)
        if K > 1:
            self.omega = self.omega - step * np.outer(
                inverse_bound(self.bound, K - 1) @ (g - tau)[:-1], np.linalg.solve(self.G, w)
            )
        for k in range(K):
            pull = step * tau[k] * trust[k]
            self.R[k] = (1.0 - gamma) * self.R[k] + pull * curvatures[k] * np.outer(r, r)
            gain = np.linalg.solve(self.R[k], r)
            self.Upsilon[k] += pull * np.outer(errors[k], gain)
            mass = (1.0 - gamma) * self.m[k] + step * tau[k]
            if self.sigma2 is not None:
                new = pull * (1.0 - pull * (r @ gain)) * np.outer(errors[k], errors[k])
                new = new if self.sigma2.ndim == 3 else np.diag(new)
                self.sigma2[k] = ((1.0 - gamma) * self.m[k] * self.sigma2[k] + new) / mass
            self.m[k] = mass
        self.n += 1
        self.decay *= 1.0 - gamma
        self.rho *= 1.0 - gamma
        if self.decay < 0.5:
            self.decay = 1.0
            self.top_up(max(self.rho, self.prior_strength * gamma) - self.rho)
        return loss

    def experts_at(self, r, y):
        """e_k(y|x), the error that each coefficient row is pushed by, the weight of r rᵀ in R_k, and u_k."""
        values = self.Upsilon @ r
        if self.sigma2 is None:
            logits = np.concatenate([np.zeros((len(values), 1)), values], axis=1)
            e = np.array([softmax(each) for each in logits])
            seen = np.eye(e.shape[1])[y]
            errors = (seen - e)[:, 1:] @ inverse_bound(self.bound, e.shape[1] - 1)
            return e[:, y], errors, [curvature_weight(self.bound, each) for each in logits], np.ones(len(e))
        errors = y - values
        ones = np.ones(len(errors))
        if self.expert != "gaussian":
            squares = np.sum(errors**2 / self.sigma2, axis=1)
            heights, trust = HEAVY[self.expert](squares, errors.shape[1])
            return heights / np.sqrt(np.prod(self.sigma2, axis=1)), errors, ones, trust
        density = np.empty(len(errors))
        for k, error in enumerate(errors):
            covariance = self.sigma2[k] if self.sigma2.ndim == 3 else np.diag(self.sigma2[k])
            square = error @ np.linalg.inv(covariance) @ error
            density[k] = np.exp(-0.5 * square) / np.sqrt(np.linalg.det(2.0 * np.pi * covariance))
        return density, errors, ones, ones

    def top_up(self, missing):
        """The prior's missing share, in the closed form that the documentation derives."""
        K, share = len(self.m), missing / len(self.m)
        self.rho += missing
        if K > 1:
            Lambda = np.diag(self.prior["gate_gram"])
            self.G = self.G + missing * Lambda
            self.omega = self.omega - missing * np.linalg.solve(self.G, Lambda @ self.omega.T).T
        Lambda = np.diag(self.prior["expert_gram"])
        target = self.prior["experts"]
        for k in range(K):
            old = self.Upsilon[k].copy()
            self.R[k] = self.R[k] + share * Lambda
            self.Upsilon[k] = old + share * np.linalg.solve(self.R[k], Lambda @ (target - old).T).T
            mass = self.m[k] + share
            if self.sigma2 is not None:
                spread = share * (target - self.Upsilon[k]) @ Lambda @ (target - old).T
                begun = np.diag(self.prior["variances"]) * share
                if self.sigma2.ndim == 3:
                    self.sigma2[k] = (self.m[k] * self.sigma2[k] + begun + (spread + spread.T) / 2.0) / mass
                else:
                    self.sigma2[k] = (self.m[k] * self.sigma2[k] + np.diag(begun + spread)) / mass
            self.m[k] = mass

    def parameters(self):
        """Under the names of the estimators' own `parameters`."""
        found = {
            "gate": self.omega.copy(),
            "experts": self.Upsilon.copy(),
            "masses": self.m.copy(),
            "gate_gram": self.G.copy(),
            "expert_grams": self.R.copy(),
            "n": self.n,
            "decay": self.decay,
            "prior_weight": self.rho,
            "prior": self.prior,
        }
        return found if self.sigma2 is None else found | {"variances": self.sigma2.copy()}
