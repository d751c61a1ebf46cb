"""One mixture of each family for tests: data and parameters, and what the literal algorithms say of them."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from streammoe.engine import mixture
from streammoe.engine.em import Buffer, Em, one_expert_prior
from streammoe.engine.jobs import run_job
from streammoe.experts import Parameters, families
from streammoe.schedules import Power
from tests.oracle.literal import ALGORITHMS


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


def options(case, K, prior_strength=0.1, bound="tight", averaging="polyak", schedule=None):
    return mixture.learning_options(
        bound=bound,
        n_experts=K,
        n_rows=case.n_rows,
        prior_strength=prior_strength,
        averaging=averaging,
        schedule=Power() if schedule is None else schedule,
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


def problem(case, n, p, K, *, strength=0.7, bound="tight", seed=0):
    """EM on n drawn rows of different weights, under a prior that is no round number anywhere."""
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.1, 2.0, n)
    return Em(case.family, Buffer(R, R, Y, weights), random_prior(case, strength, p), options(case, K, strength, bound))


def em_of(case, R, Y, K, strength=0.1):
    """EM on these rows under the prior that a warm-up would give them."""
    buffer, chosen = Buffer(R, R, Y, np.ones(len(R))), options(case, K, strength)
    return Em(case.family, buffer, run_job(one_expert_prior(case.family, buffer, case.n_outputs, chosen)), chosen)


def random_state(case, K, p, strength=0.5, seed=0):
    return mixture.random_start(case.family, case.family.unit_prior(strength, p, p, case.n_outputs), K, p, seed)


def copied(theta):
    return Parameters(*(array.copy() for array in theta))


def log_gate(gate, W):
    """(n, K) log g_k(x)."""
    return log_softmax(np.column_stack([W @ gate.T, np.zeros(len(W))]), axis=1)


def log_classes(coefficients, R):
    """(n, M) log e(m|x) of one categorical expert."""
    return log_softmax(np.column_stack([np.zeros(len(R)), R @ coefficients.T]), axis=1)


def literal(case, theta):
    """The literal algorithm of the case's family at these parameters."""
    K, _, p = theta.experts.shape
    parameters = {**theta._asdict(), "masses": np.full(K, 1.0 / K), "decay": 1.0, "prior_weight": 0.0, "prior": {}}
    return ALGORITHMS[case.name](parameters | {"gate_gram": np.eye(p), "expert_grams": np.stack([np.eye(p)] * K)})


def responsibilities(case, theta, R, Y):
    """(n, K) τ, and (n,) log s(y|x), with the same features for gate and experts."""
    algorithm = literal(case, theta)
    targets = Y if case.family.is_metric else Y[:, 0].astype(int)
    joint = np.stack([algorithm.log_joint(r, r, y) for r, y in zip(R, targets, strict=True)])
    total = np.logaddexp.reduce(joint, axis=1)
    return np.exp(joint - total[:, None]), total


def same_bits(one, other):
    return all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(one, other, strict=True))
