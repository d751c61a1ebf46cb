"""Reference implementations of [MM] Algorithms 1, 2 and 3 with their softmax gate, to test the kernels against.

Slow and literal on purpose: dense statistics, Kronecker products and dense solves at O((K p)³) an event. Algorithm 1 is
`streammoe.mm`, of which kernels use nothing, and which has tests of its own; nothing else is shared with the package. K
experts, w and r the features of gate and experts. A new family inherits from the one that is nearest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.special import gamma, gammaln
from scipy.stats import chi2

from streammoe.mm import IncrementalMM
from streammoe.types import AnyArray

REFRESH_BELOW = 0.5
"""The prior is topped up at the event at which Π(1−γ) since the last time drops below this."""
SHARP = 0.1
"""Least part of the adaptive bound's weight that a sharp curvature has."""
TIP = 0.1
"""Half-width of the rounded tip of Laplace densities."""


def relative_weights(weights: AnyArray, n: int, mean: float = 1.0) -> AnyArray:
    """Return the weights of events in units of their running mean, which is `mean` after the n events before them."""
    found = np.empty(len(weights))
    for i, weight in enumerate(weights):
        mean += (weight - mean) / (n + i + 1)
        found[i] = weight / mean
    return found


def curvature_bound(bound: str, N: int) -> AnyArray:
    """Return A with A ⪰ diag(g) − g gᵀ over N free logits: Böhning's with all N+1 classes, or [MM] Prop. 5."""
    if N == 0:
        return np.zeros((0, 0))
    if bound in {"tight", "adaptive", "sharp"}:
        return 0.5 * (np.eye(N) - np.ones((N, N)) / (N + 1))
    if bound == "paper":
        return 0.75 * np.eye(N) - np.ones((N, N)) / (2 * N)
    raise ValueError(bound)


def curvature_weight(bound: str, logits: AnyArray) -> float:
    """Return the a ≤ 1 with which an event's curvature counts, given all N+1 logits at the old parameters.

    Adaptive: 2 tanh(ξ/2)/ξ at the log-odds ξ of the largest probability p, 1 where that is below ½. Sharp, of a gate:
    4 p (1 − p), or a tenth of the adaptive weight if that is more, which is no bound.
    """
    if bound not in {"adaptive", "sharp"} or len(logits) < 2:
        return 1.0
    ordered = np.sort(logits)
    xi = ordered[-1] - np.logaddexp.reduce(ordered[:-1])
    if xi <= 0.0:
        return 1.0
    adaptive = float(2.0 * np.tanh(xi / 2.0) / xi)
    if bound == "adaptive":
        return adaptive
    p = 1.0 / (1.0 + np.exp(-xi))
    return float(max(4.0 * p * np.exp(-xi) * p, SHARP * adaptive))


def log_softmax(logits: AnyArray) -> AnyArray:
    """Return log probabilities."""
    return np.asarray(logits - np.logaddexp.reduce(logits))


Event = tuple[AnyArray, AnyArray, Any]
"""w, r and y of one event."""
Theta = Mapping[str, AnyArray]


class Algorithm1(ABC):
    """[MM] Algorithm 1 with the statistics of a mixture of experts, and the prior, which is topped up on the way.

    The parameters θ are a dict: `gate` (K−1, p_w), and `experts` and `variances` as a model's `parameters` has them.
    Statistics of the gate, for an event of weight v:
        s1 (K−1, p_w)                v ((g − τ)_{1..K−1} wᵀ − a A ω w wᵀ)
        s2 ((K−1) p_w, (K−1) p_w)    v ½ A ⊗ a w wᵀ
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        *,
        bound: str = "tight",
        prior_strength: float = 0.0,
        top_k: int | None = None,
        span: float = 0.0,
    ) -> None:
        """Start at the state of a model, given the result of its `parameters`."""
        self.bound = bound
        self.span = span
        self.n, self.origin = int(parameters.get("n", 0)), 0
        self.guarded = bound == "sharp"
        self.top_k = top_k
        omega, G = np.array(parameters["gate"]), np.array(parameters["gate_gram"])
        self.K = len(omega) + 1
        self.A = curvature_bound(bound, self.K - 1)
        theta, s = self.begin_experts(parameters)
        self.mm = IncrementalMM(
            self.event_statistics,
            self.minimize,
            initial_parameters={"gate": omega, **theta},
            initial_statistics={"s1": -self.A @ omega @ G, "s2": 0.5 * np.kron(self.A, G), **s},
            averaging=None,
        )
        self.kept = float(parameters["decay"])
        self.prior_strength = prior_strength
        self.prior_weight = float(parameters["prior_weight"])
        self.prior = {name: np.array(value) for name, value in parameters["prior"].items()}

    @abstractmethod
    def begin_experts(self, parameters: Mapping[str, Any]) -> tuple[Theta, dict[str, AnyArray]]:
        """Return the experts' parameters and their statistics, for which those are the minimum."""

    @abstractmethod
    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) log e_k(y|x)."""

    @abstractmethod
    def expert_statistics(self, r: AnyArray, y: Any, tau: AnyArray, theta: Theta) -> dict[str, AnyArray]:
        """Return S̄(θ; z) of one event, as far as the experts go."""

    @abstractmethod
    def expert_prior(self) -> dict[str, Any]:
        """Return the contribution of the experts' prior to s for a weight of 1."""

    @abstractmethod
    def minimize_experts(self, s: Mapping[str, AnyArray]) -> Theta:
        """Return θ̄(s), as far as the experts go."""

    @abstractmethod
    def expert_grams(self, s: Mapping[str, AnyArray]) -> AnyArray:
        """Return (K, p_v, p_v) the experts' Gram matrices."""

    def learn(self, w: AnyArray, r: AnyArray, y: Any, gamma: float, weight: float = 1.0) -> float:
        """Learn one event: s ← s + γ (v S̄(θ; z) − s), then θ ← θ̄(s). Return −log s(y|x) before that.

        γ is the step of this event. The formula also applies for v = 0, where s fades; models skip such events.
        """
        loss = -float(np.logaddexp.reduce(self.log_joint(w, r, y)))
        self.n += 1
        self.learn_group([(w, r, y)], min(self.step_size(gamma, self.n), 1.0 - 1e-12), [weight])
        return loss

    def step_size(self, gamma: float, n: int) -> float:
        """Return the step γ of the n-th event, shortened so that it spans `span` events of the rarest expert.

        It stays as it is if it spans a fifth of the events since steps (re)started, and keeps a quarter of its length.
        """
        if not self.span:
            return gamma
        masses = self.mm.statistics["s6"]
        return min(gamma, max(float(min(masses) / sum(masses)) / self.span, 5.0 / (n - self.origin), 0.25 * gamma))

    def learn_group(self, events: Sequence[Event], gamma: float, weights: Sequence[float]) -> None:
        """Make one step γ for a group of events, with the mean of their v S̄ at the parameters before it."""
        theta = self.mm.last_iterate
        statistics = [self.event_statistics((w, r), y, theta) for w, r, y in events]
        if self.guarded:
            lacking = 1.0 - self.safe_share(events, gamma, weights, statistics)
            for (w, r, y), S in zip(events, statistics, strict=True):
                S["s1"] = S["s1"] - lacking * np.outer(self.pushes(w, r, y, theta), w)
        self.mm.step(
            {
                name: np.sum([v * S[name] for v, S in zip(weights, statistics, strict=True)], axis=0) / len(statistics)
                for name in statistics[0]
            },
            gamma,
        )
        self.kept *= 1.0 - gamma
        self.prior_weight *= 1.0 - gamma
        if self.kept < REFRESH_BELOW:
            self.kept = 1.0
            self.top_up_prior(max(self.prior_weight, self.prior_strength * gamma))

    def safe_share(
        self, events: Sequence[Event], gamma: float, weights: Sequence[float], statistics: Sequence[Mapping[str, Any]]
    ) -> float:
        """Return how much of the gate's pushes a group may have.

        The gate moves along a line, linearly in the pushes. On it the adaptive bound of the group's own complete-data
        loss is a parabola; the gate goes no further than to its minimum.
        """
        if self.K == 1:
            return 1.0
        theta, s = self.mm.last_iterate, self.mm.statistics
        s1, s2 = (
            (1.0 - gamma) * s[name]
            + gamma * np.mean([v * S[name] for v, S in zip(weights, statistics, strict=True)], axis=0)
            for name in ("s1", "s2")
        )
        move = -np.linalg.solve(2.0 * s2, s1.ravel()).reshape(s1.shape) - theta["gate"]
        slope = bend = 0.0
        for v, (w, r, y) in zip(weights, events, strict=True):
            change = move @ w
            slope += v * (self.pushes(w, r, y, theta) @ change)
            bend += v * curvature_weight("adaptive", self.logits(w, theta)) * (change @ self.A @ change)
        return min(1.0, max(-slope, 0.0) / bend) if bend > 0.0 else 1.0

    def pushes(self, w: AnyArray, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K−1,) g − τ, the slope of an event's complete-data loss in the gate's logits."""
        g = np.exp(log_softmax(self.logits(w, theta)))
        tau = self.routed(np.exp(log_softmax(self.log_joint(w, r, y, theta))))
        return np.asarray((g - tau)[:-1])

    def logits(self, w: AnyArray, theta: Theta) -> AnyArray:
        """Return (K,) of the gate; the last expert is the reference."""
        return np.append(theta["gate"] @ w, 0.0)

    def log_joint(self, w: AnyArray, r: AnyArray, y: Any, theta: Theta | None = None) -> AnyArray:
        """Return (K,) log g_k(x) e_k(y|x), by the parameters as they are unless others are given."""
        at: Theta = self.mm.last_iterate if theta is None else theta
        return log_softmax(self.logits(w, at)) + self.log_experts(r, y, at)

    def event_statistics(self, x: tuple[AnyArray, AnyArray], y: Any, theta: Theta) -> dict[str, AnyArray]:
        """Return S̄(θ; z), with the responsibilities of [MM] eq. 15; x is w and r."""
        w, r = x
        logits = self.logits(w, theta)
        g = np.exp(log_softmax(logits))
        tau = self.routed(np.exp(log_softmax(self.log_joint(w, r, y, theta))))
        a = curvature_weight(self.bound, logits)
        ww = np.outer(w, w)
        return {
            "s1": np.outer((g - tau)[:-1], w) - a * self.A @ theta["gate"] @ ww,
            "s2": 0.5 * np.kron(self.A, a * ww),
            **self.expert_statistics(r, y, tau, theta),
        }

    def routed(self, tau: AnyArray) -> AnyArray:
        """Return the `top_k` largest responsibilities, normalized to 1, and 0 elsewhere."""
        kept = np.argsort(-tau, kind="stable")[: self.top_k]
        routed = np.zeros_like(tau)
        routed[kept] = tau[kept] / tau[kept].sum()
        return routed

    def top_up_prior(self, weight: float) -> None:
        """Raise the weight of the prior's statistics to `weight`. Their gate target is 0, so s1 is unchanged."""
        missing = weight - self.prior_weight
        self.prior_weight = weight
        s = self.mm.statistics
        s["s2"] = s["s2"] + missing * 0.5 * np.kron(self.A, np.diag(self.prior["gate_gram"]))
        for name, statistic in self.expert_prior().items():
            s[name] = s[name] + missing * statistic
        self.mm.replace_statistics(s)

    def minimize(self, s: Mapping[str, AnyArray]) -> Theta:
        """Return θ̄(s), for the gate ω = −(2 s2)⁻¹ s1."""
        omega = -np.linalg.solve(2.0 * s["s2"], s["s1"].ravel()).reshape(s["s1"].shape)
        return {"gate": omega, **self.minimize_experts(s)}

    @property
    def theta(self) -> dict[str, AnyArray]:
        """Parameters and statistics under the names that `parameters` uses."""
        s = self.mm.statistics
        found = {**self.mm.last_iterate, "masses": s["s6"], "expert_grams": self.expert_grams(s)}
        if len(self.A):
            # s2 = ½ A ⊗ G, whose first block is ½ A_11 G. One expert has no gate, and no s2.
            p = s["s1"].shape[1]
            found["gate_gram"] = 2.0 * s["s2"][:p, :p] / self.A[0, 0]
        return found


class Algorithm2(Algorithm1):
    """Experts N(y; Υ_k r, Σ_k) with Q outputs; the shape of `variances` determines the kind of covariance.

    Statistics in addition to the gate's, for an event of weight v:
        s3 (K, Q)          v τ_k y²           or, full, (K, Q, Q)    v τ_k y yᵀ
        s4 (K, Q, p_v)     −2 v τ_k y rᵀ
        s5 (K, p_v, p_v)   v τ_k r rᵀ
        s6 (K,)            v τ_k
    """

    def begin_experts(self, parameters: Mapping[str, Any]) -> tuple[Theta, dict[str, AnyArray]]:
        upsilon, sigma2 = np.array(parameters["experts"]), np.array(parameters["variances"])
        self.full = sigma2.ndim == 3
        R, m = np.array(parameters["expert_grams"]), np.array(parameters["masses"])
        masses = m[:, None, None] if self.full else m[:, None]
        explained = np.einsum("kqi,kij,klj->kql", upsilon, R, upsilon)
        s3 = masses * sigma2 + self.form(explained)
        return {"experts": upsilon, "variances": sigma2}, {"s3": s3, "s4": -2.0 * upsilon @ R, "s5": R, "s6": m}

    def form(self, matrices: AnyArray) -> AnyArray:
        """Return (…, Q, Q) matrices in the form of the covariance: unchanged, or their diagonals."""
        return matrices if self.full else np.diagonal(matrices, axis1=-2, axis2=-1)

    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        errors = y - theta["experts"] @ r
        covariances = theta["variances"] if self.full else np.stack([np.diag(row) for row in theta["variances"]])
        squares = np.einsum("kq,kq->k", errors, np.linalg.solve(covariances, errors[:, :, None])[:, :, 0])
        return np.asarray(-0.5 * (squares + np.linalg.slogdet(2.0 * np.pi * covariances)[1]))

    def expert_statistics(self, r: AnyArray, y: Any, tau: AnyArray, theta: Theta) -> dict[str, AnyArray]:
        return {
            "s3": np.multiply.outer(tau, self.form(np.outer(y, y))),
            "s4": np.multiply.outer(tau, -2.0 * np.outer(y, r)),
            "s5": np.multiply.outer(tau, np.outer(r, r)),
            "s6": tau,
        }

    def expert_prior(self) -> dict[str, Any]:
        """Each of the K experts has a K-th: Gram matrix Λ, target Υ_0, and a diagonal covariance Σ_0 around it."""
        K = self.K
        Lambda = np.diag(self.prior["expert_gram"])
        upsilon0, sigma0 = self.prior["experts"], np.diag(self.prior["variances"])
        return {
            "s3": self.form(sigma0 + upsilon0 @ Lambda @ upsilon0.T) / K,
            "s4": -2.0 * upsilon0 @ Lambda / K,
            "s5": Lambda / K,
            "s6": 1.0 / K,
        }

    def minimize_experts(self, s: Mapping[str, AnyArray]) -> Theta:
        """Υ_k = −½ s4 s5⁻¹, Σ_k = (s3 + ½ (s4 Υᵀ + Υ s4ᵀ) + Υ s5 Υᵀ) / s6."""
        s3, s4, s5, s6 = (s[name] for name in ("s3", "s4", "s5", "s6"))
        upsilon = -0.5 * np.linalg.solve(s5, s4.transpose(0, 2, 1)).transpose(0, 2, 1)
        turned = upsilon.transpose(0, 2, 1)
        linear = s4 @ turned
        square = upsilon @ s5 @ turned
        masses = s6[:, None, None] if self.full else s6[:, None]
        sigma2 = (s3 + self.form(0.5 * (linear + linear.transpose(0, 2, 1)) + square)) / masses
        return {"experts": upsilon, "variances": sigma2}

    def expert_grams(self, s: Mapping[str, AnyArray]) -> AnyArray:
        return s["s5"]


class Algorithm3(Algorithm1):
    """Experts softmax(0, C_k r) over M classes; an event's y is the index of its class.

    The reference class is the last one in the formula. Here, as in the package, it is class 0, which was seen first,
    and the rows of C_k belong to the classes 1 … M−1; the bounds are the same.

    Statistics in addition to the gate's, for an event of weight v, with B the curvature bound of M−1 free logits:
        s3 (K, M−1, p_v)                v (τ_k (e_k − 1_y)_{1..M−1} rᵀ − τ_k a_k B C_k r rᵀ)
        s4 (K, (M−1) p_v, (M−1) p_v)    v ½ B ⊗ τ_k a_k r rᵀ
        s6 (K,)                         v τ_k
    """

    def begin_experts(self, parameters: Mapping[str, Any]) -> tuple[Theta, dict[str, AnyArray]]:
        C, R = np.array(parameters["experts"]), np.array(parameters["expert_grams"])
        self.B = curvature_bound(self.bound, C.shape[1])
        s4 = np.stack([0.5 * np.kron(self.B, each) for each in R])
        return {"experts": C}, {"s3": -self.B @ C @ R, "s4": s4, "s6": np.array(parameters["masses"])}

    def class_logits(self, r: AnyArray, theta: Theta) -> AnyArray:
        """Return (K, M) of all classes; class 0 is the reference."""
        return np.stack([np.append(0.0, each @ r) for each in theta["experts"]])

    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        return np.array([log_softmax(each)[y] for each in self.class_logits(r, theta)])

    def expert_statistics(self, r: AnyArray, y: Any, tau: AnyArray, theta: Theta) -> dict[str, AnyArray]:
        C = theta["experts"]
        K, free, _ = C.shape
        logits = self.class_logits(r, theta)
        one_y = np.eye(1 + free)[y]
        rr = np.outer(r, r)
        s3, s4 = [], []
        for k in range(K):
            e = np.exp(log_softmax(logits[k]))
            a = curvature_weight("adaptive" if self.bound == "sharp" else self.bound, logits[k])
            s3.append(tau[k] * (np.outer((e - one_y)[1:], r) - a * self.B @ C[k] @ rr))
            s4.append(0.5 * np.kron(self.B, tau[k] * a * rr))
        return {"s3": np.stack(s3), "s4": np.stack(s4), "s6": tau}

    def expert_prior(self) -> dict[str, Any]:
        """Each of the K experts has a K-th: curvature ½ B ⊗ Λ around the target C_0."""
        K = self.K
        Lambda = np.diag(self.prior["expert_gram"])
        return {
            "s3": -self.B @ self.prior["experts"] @ Lambda / K,
            "s4": 0.5 * np.kron(self.B, Lambda / K),
            "s6": 1.0 / K,
        }

    def minimize_experts(self, s: Mapping[str, AnyArray]) -> Theta:
        """C_k = −(2 s4)⁻¹ s3."""
        s3 = s["s3"]
        return {"experts": -np.linalg.solve(2.0 * s["s4"], s3.reshape(self.K, -1, 1)).reshape(s3.shape)}

    def expert_grams(self, s: Mapping[str, AnyArray]) -> AnyArray:
        p = s["s3"].shape[2]
        return np.asarray(2.0 * s["s4"][:, :p, :p] / self.B[0, 0])


def huber(z: Any, tip: float = TIP) -> Any:
    """Return |z|, replaced by a smoothly joining parabola where |z| is below `tip`."""
    return np.where(np.abs(z) > tip, np.abs(z), z**2 / (2.0 * tip) + tip / 2.0)


AREA = 2.0 * (quad(lambda z: np.exp(-huber(z)), 0.0, TIP)[0] + quad(lambda z: np.exp(-huber(z)), TIP, 60.0)[0])


class LogTails(Algorithm2):
    """Experts whose density is that of N(Υ_k r, Σ_k) up to δ = κ, and falls like δ^−κ² beyond.

    With E(δ²) = ½ δ² in the core and ½ κ² (1 + log(δ²/κ²)) beyond, a tangent of E majorizes it, so that s3, s4 and s5
    are weighted by v τ u with u = 2 E′(δ²), and s6 by v τ.
    """

    tail = 6.0

    def edge(self, Q: int) -> float:
        """Return κ² of Q outputs, which chance exceeds as rarely as the square of `tail` with one."""
        return square_of_edge(self.tail, Q)

    def energy(self, square: Any, Q: int) -> Any:
        """Return E(δ²)."""
        edge = self.edge(Q)
        return np.where(square <= edge, square / 2.0, edge / 2.0 * (1.0 + np.log(np.maximum(square, edge) / edge)))

    def squares(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) δ²."""
        errors = y - theta["experts"] @ r
        covariances = theta["variances"] if self.full else np.stack([np.diag(row) for row in theta["variances"]])
        return np.asarray(np.einsum("kq,kq->k", errors, np.linalg.solve(covariances, errors[:, :, None])[:, :, 0]))

    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        variances = theta["variances"]
        log_determinants = np.linalg.slogdet(variances)[1] if self.full else np.sum(np.log(variances), axis=1)
        constant = log_integral(self.tail, len(y))
        return np.asarray(-self.energy(self.squares(r, y, theta), len(y)) - 0.5 * log_determinants - constant)

    def irls_weight(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) u = min(1, κ²/δ²)."""
        return np.asarray(np.minimum(1.0, self.edge(len(y)) / np.maximum(self.squares(r, y, theta), 1e-300)))

    def expert_statistics(self, r: AnyArray, y: Any, tau: AnyArray, theta: Theta) -> dict[str, AnyArray]:
        return super().expert_statistics(r, y, tau * self.irls_weight(r, y, theta), theta) | {"s6": tau}


@cache
def square_of_edge(tail: float, Q: int) -> float:
    """Return κ²; see `LogTails.edge`."""
    return float(chi2.isf(chi2.sf(tail**2, 1), Q))


@cache
def log_integral(tail: float, Q: int) -> float:
    """Return log ∫ exp(−E(|z|²)) dz over Q dimensions, by the shells of a sphere."""
    noise = object.__new__(LogTails)
    noise.tail = tail
    area = 2.0 * np.pi ** (Q / 2.0) / gamma(Q / 2.0)

    def shell(radius: float) -> float:
        return float(area * radius ** (Q - 1) * np.exp(-noise.energy(radius**2, Q)))

    edge = noise.edge(Q)
    core, beyond = quad(shell, 0.0, np.sqrt(edge), epsrel=1e-13)[0], quad(shell, np.sqrt(edge), np.inf)[0]
    return float(np.log(core + beyond))


class StudentT(Algorithm2):
    """Experts y = Υ_k r + diag(σ_k) x / √g with x ~ N(0, I) and g ~ Gamma(ν/2, ν/2); σ² are squared scales.

    Given g the event is Gaussian with weight g, so EM's surrogate has the expectation u = E[g | x, y, k] instead of 1:
    s3, s4 and s5 are weighted by v τ u, and s6 by v τ.
    """

    degrees = 4.0

    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        nu, Q = self.degrees, len(y)
        constant = gammaln(0.5 * (nu + Q)) - gammaln(0.5 * nu) - 0.5 * Q * np.log(np.pi * nu)
        squares = np.sum((y - theta["experts"] @ r) ** 2 / theta["variances"], axis=1)
        scales = 0.5 * np.sum(np.log(theta["variances"]), axis=1)
        return np.asarray(constant - scales - 0.5 * (nu + Q) * np.log1p(squares / nu))

    def irls_weight(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) u: g | x, y, k ~ Gamma((ν + Q)/2, (ν + δ²)/2)."""
        squares = np.sum((y - theta["experts"] @ r) ** 2 / theta["variances"], axis=1)
        shape, rate = 0.5 * (self.degrees + len(y)), 0.5 * (self.degrees + squares)
        return np.asarray(shape / rate)

    def expert_statistics(self, r: AnyArray, y: Any, tau: AnyArray, theta: Theta) -> dict[str, AnyArray]:
        return super().expert_statistics(r, y, tau * self.irls_weight(r, y, theta), theta) | {"s6": tau}


class Laplace(StudentT):
    """Experts with one output: −log e = h((y − Υ_k r)/b) + log b + log area, with b² for σ²."""

    def scaled(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) (y − Υ_k r)/b_k."""
        return np.asarray((y[0] - (theta["experts"] @ r)[:, 0]) / np.sqrt(theta["variances"][:, 0]))

    def log_experts(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        scales = np.sqrt(theta["variances"][:, 0])
        return np.asarray(-huber(self.scaled(r, y, theta)) - np.log(scales * AREA))

    def irls_weight(self, r: AnyArray, y: Any, theta: Theta) -> AnyArray:
        """Return (K,) u = h′(z)/z."""
        z = self.scaled(r, y, theta)
        return np.asarray(
            np.where(np.abs(z) > TIP, np.sign(z), z / TIP) / np.where(z == 0.0, 1.0, z) + (z == 0.0) / TIP
        )


ALGORITHMS: dict[str, type[Algorithm1]] = {
    "gaussian": LogTails,
    "gaussian_full": LogTails,
    "student_t": StudentT,
    "laplace": Laplace,
    "categorical": Algorithm3,
}
"""The reference implementation of each family of experts."""
