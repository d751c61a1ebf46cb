"""[MM] Algorithm 1 to the letter, with the softmax gate that Algorithms 2 and 3 share.

Slow and obvious on purpose, and nothing here is shared with the package: dense statistics, Kronecker products and
dense solves at O((K p)³) an event are what the kernels have to agree with. K experts, w and r the features of gate and
experts. What a family of experts adds is in the two files beside this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

REFRESH_BELOW = 0.5
"""The prior is topped up at the event that brings Π(1−γ) since the last time below this."""


def curvature_bound(bound, N):
    """A with A ⪰ diag(g) − g gᵀ over N free logits: Böhning's with all N+1 classes, or [MM] Prop. 5."""
    if N == 0:
        return np.zeros((0, 0))
    if bound in {"tight", "adaptive"}:
        return 0.5 * (np.eye(N) - np.ones((N, N)) / (N + 1))
    if bound == "paper":
        return 0.75 * np.eye(N) - np.ones((N, N)) / (2 * N)
    raise ValueError(bound)


def curvature_weight(bound, logits):
    """The a ≤ 1 with which an event's curvature counts, given all N+1 logits at the old parameters.

    Adaptive: 2 tanh(ξ/2)/ξ at the log-odds ξ of the largest probability, 1 where that is below ½.
    """
    if bound != "adaptive" or len(logits) < 2:
        return 1.0
    ordered = np.sort(logits)
    xi = ordered[-1] - np.logaddexp.reduce(ordered[:-1])
    return 2.0 * np.tanh(xi / 2.0) / xi if xi > 0.0 else 1.0


def log_softmax(logits):
    return logits - np.logaddexp.reduce(logits)


class Algorithm1(ABC):
    """The statistics s and the parameters θ̄(s) that minimise the surrogate.

    Statistics of the gate, as exponentially weighted means of what one event of weight v contributes:
        s1 (K−1, p_w)                v ((g − τ)_{1..K−1} wᵀ − a A ω w wᵀ)
        s2 ((K−1) p_w, (K−1) p_w)    v ½ A ⊗ a w wᵀ
    """

    def __init__(self, parameters, *, bound="tight", prior_strength=0.0, top_k=None):
        """Begin where a model stands, given what its `parameters` returns."""
        self.bound = bound
        self.top_k = top_k
        self.omega = np.array(parameters["gate"])
        G = np.array(parameters["gate_gram"])
        self.A = curvature_bound(bound, len(self.omega))
        self.s = {"s1": -self.A @ self.omega @ G, "s2": 0.5 * np.kron(self.A, G)}
        self.s |= self.begin_experts(parameters)
        self.kept = float(parameters["decay"])
        self.prior_strength = prior_strength
        self.prior_weight = float(parameters["prior_weight"])
        self.prior = {name: np.array(value) for name, value in parameters["prior"].items()}

    @abstractmethod
    def begin_experts(self, parameters):
        """Take the experts' parameters over and return their statistics, for which those are the minimum."""

    @abstractmethod
    def log_experts(self, r, y):
        """(K,) log e_k(y|x)."""

    @abstractmethod
    def expert_statistics(self, r, y, tau):
        """S̄ of one event, as far as the experts go, under the parameters as they are."""

    @abstractmethod
    def expert_prior(self):
        """What the experts' prior adds to s for a weight of 1."""

    @abstractmethod
    def minimise_experts(self):
        """θ̄(s), as far as the experts go."""

    @property
    @abstractmethod
    def expert_theta(self):
        """The experts' parameters and statistics under the names that `parameters` uses."""

    def learn(self, w, r, y, gamma, weight=1.0):
        """s ← s + γ (v S̄(θ; z) − s), then θ ← θ̄(s). Returns −log s(y|x) before that.

        γ is the step of this event. This is the formula, also for v = 0: there s fades. Models leave such events out.
        """
        return self.learn_batch([(w, r, y)], [gamma], [weight])[0]

    def learn_batch(self, events, gammas, weights):
        """One step for a group of events (w, r, y), as long as theirs together. Returns their −log s(y|x) before."""
        losses = [-np.logaddexp.reduce(self.log_joint(*event)) for event in events]
        self.learn_group(events, min(1.0 - np.prod(1.0 - np.array(gammas)), 1.0 - 1e-12), weights, last=gammas[-1])
        return losses

    def learn_group(self, events, gamma, weights, last=None):
        """One step γ for a group of events: the mean of their v S̄, all at the parameters before it.

        The prior is topped up by the step of the last event, γ without it.
        """
        seen = [self.event_statistics(*event) for event in events]
        for name, s in self.s.items():
            mean = sum(v * statistics[name] for v, statistics in zip(weights, seen, strict=True)) / len(seen)
            self.s[name] = s + gamma * (mean - s)
        self.kept *= 1.0 - gamma
        self.prior_weight *= 1.0 - gamma
        if self.kept < REFRESH_BELOW:
            self.kept = 1.0
            self.top_up_prior(max(self.prior_weight, self.prior_strength * (gamma if last is None else last)))
        self.minimise()

    def logits(self, w):
        """(K,) of the gate; the last expert is the reference."""
        return np.append(self.omega @ w, 0.0)

    def log_joint(self, w, r, y):
        """(K,) log g_k(x) e_k(y|x)."""
        return log_softmax(self.logits(w)) + self.log_experts(r, y)

    def event_statistics(self, w, r, y):
        """S̄(θ; z), with the responsibilities of [MM] eq. 15."""
        g = np.exp(log_softmax(self.logits(w)))
        tau = self.routed(np.exp(log_softmax(self.log_joint(w, r, y))))
        a = curvature_weight(self.bound, self.logits(w))
        ww = np.outer(w, w)
        return {
            "s1": np.outer((g - tau)[:-1], w) - a * self.A @ self.omega @ ww,
            "s2": 0.5 * np.kron(self.A, a * ww),
            **self.expert_statistics(r, y, tau),
        }

    def routed(self, tau):
        """The `top_k` largest responsibilities, so that they add up to 1; 0 elsewhere."""
        kept = np.argsort(-tau, kind="stable")[: self.top_k]
        routed = np.zeros_like(tau)
        routed[kept] = tau[kept] / tau[kept].sum()
        return routed

    def top_up_prior(self, weight):
        """Add what the prior's statistics lack to count `weight`. Their gate target is 0, so s1 gains nothing."""
        missing = weight - self.prior_weight
        self.prior_weight = weight
        self.s["s2"] = self.s["s2"] + missing * 0.5 * np.kron(self.A, np.diag(self.prior["gate_gram"]))
        for name, statistic in self.expert_prior().items():
            self.s[name] = self.s[name] + missing * statistic

    def minimise(self):
        """θ̄(s), for the gate ω = −(2 s2)⁻¹ s1."""
        self.omega = -np.linalg.solve(2.0 * self.s["s2"], self.s["s1"].ravel()).reshape(self.omega.shape)
        self.minimise_experts()

    @property
    def theta(self):
        """Parameters and statistics under the names that `parameters` uses."""
        found = {"gate": self.omega.copy(), "masses": self.s["s6"].copy(), **self.expert_theta}
        if len(self.A):
            # s2 = ½ A ⊗ G, whose first block is ½ A_11 G. One expert has no gate, and no s2.
            p = self.omega.shape[1]
            found["gate_gram"] = 2.0 * self.s["s2"][:p, :p] / self.A[0, 0]
        return found
