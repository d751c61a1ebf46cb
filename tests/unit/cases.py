"""One mixture of each family for tests: data, parameters, and densities as the formulas say them."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax
from scipy.stats import multivariate_normal, multivariate_t, norm

from streammoe.engine import mm
from streammoe.experts import Parameters, families
from streammoe.schedules import power


class Case(NamedTuple):
    name: str
    n_outputs: int

    @property
    def family(self):
        return families()[self.name]

    @property
    def n_rows(self):
        return self.family.n_rows(self.n_outputs)

    def __str__(self):
        return f"{self.name}-{self.n_outputs}"


CASES = [
    Case("gaussian", 1),
    Case("gaussian", 3),
    Case("gaussian_full", 3),
    Case("student_t", 1),
    Case("student_t", 3),
    Case("laplace", 1),
    Case("categorical", 2),
    Case("categorical", 3),
    Case("categorical", 5),
]
HEAVY = ("student_t", "laplace")
CLASSES = [case for case in CASES if case.name == "categorical"]


def options(case, K, prior_strength=0.1, bound="tight", averaging="polyak", schedule=None):
    return mm.learning_options(
        bound=bound,
        n_experts=K,
        n_rows=case.n_rows,
        prior_strength=prior_strength,
        averaging=averaging,
        schedule=power() if schedule is None else schedule,
    )


def draw(case, n, p, K, seed=0):
    """Rows (n, p) with an intercept, and targets of K experts under a softmax gate."""
    rng = np.random.default_rng(seed)
    R = np.column_stack([np.ones(n), rng.normal(size=(n, p - 1))])
    experts = 2.0 * rng.normal(size=(K, case.n_outputs, p))
    chosen = (R @ (2.0 * rng.normal(size=(p, K))) + rng.gumbel(size=(n, K))).argmax(axis=1)
    means = np.einsum("nqj,nj->nq", experts[chosen], R)
    if not case.family.is_metric:
        return R, (means + rng.gumbel(size=means.shape)).argmax(axis=1)[:, None].astype(float)
    mixing = np.tril(rng.normal(size=(case.n_outputs, case.n_outputs)), -1) + np.eye(case.n_outputs)
    return R, means + 0.4 * rng.normal(size=means.shape) @ mixing.T


def random_theta(case, K, p, seed=0):
    rng = np.random.default_rng(seed)
    variances = rng.uniform(0.5, 3.0, (K, case.family.n_variances(case.n_outputs)))
    if case.name == "gaussian_full":
        roots = rng.normal(size=(K, case.n_outputs, case.n_outputs))
        variances = roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(case.n_outputs)
    return Parameters(rng.normal(size=(K - 1, p)), rng.normal(size=(K, case.n_rows, p)), variances)


def random_prior(case, strength, p, seed=0):
    rng = np.random.default_rng(seed)
    return case.family.unit_prior(strength, p, p, case.n_outputs)._replace(
        gate_gram=rng.uniform(0.5, 2.0, p),
        expert_gram=rng.uniform(0.5, 2.0, p),
        experts=rng.normal(size=(case.n_rows, p)),
        variances=rng.uniform(0.5, 2.0, case.family.n_variances(case.n_outputs)),
    )


def log_gate(gate, W):
    """(n, K) log g_k(x)."""
    return log_softmax(np.column_stack([W @ gate.T, np.zeros(len(W))]), axis=1)


def log_classes(coefficients, R):
    """(n, M) log e(m|x) of one categorical expert."""
    return log_softmax(np.column_stack([np.zeros(len(R)), R @ coefficients.T]), axis=1)


def log_rounded_laplace(errors, scale, tip=0.1):
    """(n,) log densities of Laplace noise whose tip is Gaussian up to `tip`."""
    z = np.abs(errors / scale)
    middle = np.exp(-0.5 * tip) * np.sqrt(2.0 * np.pi * tip) * (2.0 * norm.cdf(np.sqrt(tip)) - 1.0)
    heights = np.where(z > tip, z, z**2 / (2.0 * tip) + tip / 2.0)
    return -heights - np.log(scale * (2.0 * np.exp(-tip) + middle))


def log_densities(case, theta, R, Y):
    """(n, K) log e_k(y|x)."""
    columns = []
    for expert, variances in zip(theta.experts, theta.variances, strict=True):
        if case.name == "categorical":
            columns.append(log_classes(expert, R)[np.arange(len(R)), Y[:, 0].astype(int)])
            continue
        if case.name == "student_t":
            noise = multivariate_t(shape=np.diag(variances), df=4.0)
            columns.append(np.atleast_1d(noise.logpdf(np.squeeze(Y - R @ expert.T))))
            continue
        if case.name == "laplace":
            columns.append(log_rounded_laplace((Y - R @ expert.T)[:, 0], np.sqrt(variances[0])))
            continue
        covariance = variances if variances.ndim == 2 else np.diag(variances)
        columns.append(np.atleast_1d(multivariate_normal(cov=covariance).logpdf(np.squeeze(Y - R @ expert.T))))
    return np.stack(columns, axis=1)


def trust(case, theta, R, Y):
    """(n, K) u, what each event weighs in each expert besides its responsibility; 1 but for heavy tails."""
    columns = []
    for expert, variances in zip(theta.experts, theta.variances, strict=True):
        if case.name not in HEAVY:
            columns.append(np.ones(len(R)))
            continue
        squares = np.sum((Y - R @ expert.T) ** 2 / variances, axis=1)
        t = (4.0 + Y.shape[1]) / (4.0 + squares)
        columns.append(t if case.name == "student_t" else 1.0 / np.maximum(np.sqrt(squares), 0.1))
    return np.stack(columns, axis=1)


def responsibilities(case, theta, R, Y):
    """(n, K) τ, and (n,) log s(y|x), with the same features for gate and experts."""
    joint = log_gate(theta.gate, R) + log_densities(case, theta, R, Y)
    total = np.logaddexp.reduce(joint, axis=1)
    return np.exp(joint - total[:, None]), total


def bent(bound, free):
    """The dense A whose inverse the kernels apply as a (d + b Σd)."""
    a, b = mm.curvature(bound, free)
    return np.linalg.inv(a * (np.eye(free) + b * np.ones((free, free))))


def same_bits(one, other):
    return all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(one, other, strict=True))
