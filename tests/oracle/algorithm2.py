"""[MM] Algorithm 2 to the letter: six dense statistics, Kronecker products and dense solves.

Slow and obvious on purpose, and nothing here is shared with the package: what the kernels compute at O(K p²) an event
has to agree with this at O((K p)³). K experts, Q outputs, w and r the features of gate and experts.
"""

from __future__ import annotations

import numpy as np

REFRESH_BELOW = 0.5
"""The prior is topped up at the event that brings Π(1−γ) since the last time below this."""


def curvature_bound(bound, n_experts):
    """A with A ⪰ diag(g) − g gᵀ over the free logits: Böhning's with all K classes, or [MM] Prop. 5."""
    N = n_experts - 1
    if N == 0:
        return np.zeros((0, 0))
    if bound == "tight":
        return 0.5 * (np.eye(N) - np.ones((N, N)) / (N + 1))
    if bound == "paper":
        return 0.75 * np.eye(N) - np.ones((N, N)) / (2 * N)
    raise ValueError(bound)


class Algorithm2:
    """The statistics s and the parameters θ̄(s) that minimise the surrogate.

    Statistics, as exponentially weighted means of what one event contributes:
        s1 (K−1, p_w)                (g − τ)_{1..K−1} wᵀ − A ω w wᵀ
        s2 ((K−1) p_w, (K−1) p_w)    ½ A ⊗ w wᵀ
        s3 (K, Q)                    τ_k y²
        s4 (K, Q, p_v)               −2 τ_k y rᵀ
        s5 (K, p_v, p_v)             τ_k r rᵀ
        s6 (K,)                      τ_k
    """

    def __init__(self, parameters, *, bound="tight", prior_strength=0.0):
        """Begin where a model stands, given what `MoERegressor.parameters` returns."""
        self.omega = np.array(parameters["gate"])
        self.upsilon = np.array(parameters["experts"])
        self.sigma2 = np.array(parameters["variances"])
        G = np.array(parameters["gate_gram"])
        R = np.array(parameters["expert_grams"])
        m = np.array(parameters["masses"])
        self.A = curvature_bound(bound, len(m))
        self.s1 = -self.A @ self.omega @ G
        self.s2 = 0.5 * np.kron(self.A, G)
        self.s6 = m
        self.s5 = R
        self.s4 = -2.0 * self.upsilon @ R
        self.s3 = m[:, None] * self.sigma2 + np.einsum("kqi,kij,kqj->kq", self.upsilon, R, self.upsilon)
        self.n = int(parameters["n"])
        self.kept = float(parameters["decay"])
        self.prior_strength = prior_strength
        self.prior_weight = float(parameters["prior_weight"])
        self.prior = {name: np.array(value) for name, value in parameters["prior"].items()}

    def learn(self, w, r, y, gamma):
        """s ← s + γ (S̄(θ; z) − s), then θ ← θ̄(s); γ is the step of this event."""
        g, tau = self.responsibilities(w, r, y)
        ww, rr = np.outer(w, w), np.outer(r, r)
        self.s1 += gamma * (np.outer((g - tau)[:-1], w) - self.A @ self.omega @ ww - self.s1)
        self.s2 += gamma * (0.5 * np.kron(self.A, ww) - self.s2)
        self.s3 += gamma * (tau[:, None] * y**2 - self.s3)
        self.s4 += gamma * (-2.0 * tau[:, None, None] * np.outer(y, r) - self.s4)
        self.s5 += gamma * (tau[:, None, None] * rr - self.s5)
        self.s6 += gamma * (tau - self.s6)
        self.n += 1
        self.kept *= 1.0 - gamma
        self.prior_weight *= 1.0 - gamma
        if self.kept < REFRESH_BELOW:
            self.kept = 1.0
            self.top_up_prior(max(self.prior_weight, self.prior_strength * gamma))
        self.minimise()

    def responsibilities(self, w, r, y):
        """g_k(x) and τ_k ([MM] eq. 15), in log space."""
        logits = np.append(self.omega @ w, 0.0)
        log_g = logits - logits.max()
        log_g -= np.log(np.sum(np.exp(log_g)))
        errors = y - self.upsilon @ r
        log_e = -0.5 * np.sum(np.log(2.0 * np.pi * self.sigma2) + errors**2 / self.sigma2, axis=1)
        joint = log_g + log_e
        tau = np.exp(joint - joint.max())
        return np.exp(log_g), tau / tau.sum()

    def top_up_prior(self, weight):
        """Add what the prior's statistics lack to count `weight`. Their gate target is 0, so s1 gains nothing."""
        missing = weight - self.prior_weight
        self.prior_weight = weight
        K = len(self.s6)
        share = missing / K
        Lambda = np.diag(self.prior["expert_gram"])
        upsilon0, sigma2_0 = self.prior["experts"], self.prior["variances"]
        self.s2 += missing * 0.5 * np.kron(self.A, np.diag(self.prior["gate_gram"]))
        self.s3 += share * (sigma2_0 + np.diag(upsilon0 @ Lambda @ upsilon0.T))
        self.s4 += share * -2.0 * upsilon0 @ Lambda
        self.s5 += share * Lambda
        self.s6 += share

    def minimise(self):
        """θ̄(s): ω = −(2 s2)⁻¹ s1, Υ = −½ s4 s5⁻¹, σ² = (s3 + s4 Υᵀ + Υ s5 Υᵀ) / s6."""
        self.omega = -np.linalg.solve(2.0 * self.s2, self.s1.ravel()).reshape(self.omega.shape)
        self.upsilon = -0.5 * np.linalg.solve(self.s5, self.s4.transpose(0, 2, 1)).transpose(0, 2, 1)
        linear = np.sum(self.s4 * self.upsilon, axis=2)
        square = np.sum((self.upsilon @ self.s5) * self.upsilon, axis=2)
        self.sigma2 = (self.s3 + linear + square) / self.s6[:, None]

    @property
    def theta(self):
        """Parameters and statistics under the names that `MoERegressor.parameters` uses."""
        found = {
            "gate": self.omega.copy(),
            "experts": self.upsilon.copy(),
            "variances": self.sigma2.copy(),
            "masses": self.s6.copy(),
            "expert_grams": self.s5.copy(),
        }
        if len(self.A):
            # s2 = ½ A ⊗ G, whose first block is ½ A_11 G. One expert has no gate, and no s2.
            p = self.omega.shape[1]
            found["gate_gram"] = 2.0 * self.s2[:p, :p] / self.A[0, 0]
        return found
