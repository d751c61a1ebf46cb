"""Runs of an estimator and of the literal algorithm over the same events, from the same statistics.

Where the two differ, the oracle also runs from starts changed by 1e-15 of themselves: a recursion that amplifies
rounding lets no two correct implementations agree better than that. Chance makes single such runs differ by a factor of
a hundred; the largest of a few counts.
"""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

import numpy as np

import streammoe
from streammoe import schedules
from streammoe.distributions import Gaussian
from streammoe.errors import InvalidEvent
from tests.oracle.literal import ALGORITHMS, Algorithm1, Algorithm2, relative_weights

COMPARED = ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams", "losses")
STEPS = {
    "0.5 (n+20)^-0.6": schedules.Power(0.6, gamma0=0.5, offset=20),
    "(n+400)^-1": schedules.Power(1.0, offset=400),
    "0.7 (n+2)^-0.6": schedules.Power(0.6, gamma0=0.7, offset=2),
}
HOSTILE = "0.7 (n+2)^-0.6"
START_EVENTS = 400
"""Events that the Gram matrices of a start without a prior are formed from."""
TOLERANCE = 1e-10
"""Up to this kernels and oracle agree, unless the recursion amplifies rounding."""
TWINS = 4
"""How many disturbed oracles say by how much it does."""
LOOKS = 10
"""How often within a run the two are compared."""
FAMILIES = {
    "gaussian": {},
    "gaussian 3": {"outputs": 3},
    "full 3": {"outputs": 3, "covariance": "full"},
    "full 3, no tails": {"outputs": 3, "covariance": "full", "tail": math.inf},
    "student_t": {"expert": "student_t"},
    "student_t 3": {"outputs": 3, "expert": "student_t"},
    "laplace": {"expert": "laplace"},
    "2 classes": {"classes": 2},
    "3 classes": {"classes": 3},
    "5 classes": {"classes": 5},
}
"""What makes a case one of a family of experts."""


class Case(NamedTuple):
    """A model, and the stream that it learns."""

    K: int
    p: int
    bound: str
    steps: str
    prior: float = 0.0
    degree: int = 1
    gate_degree: int = 1
    outputs: int = 1
    classes: int = 0
    covariance: str = "diagonal"
    expert: str = "gaussian"
    tail: float = 6.0
    weighted: bool = False
    per_coefficient: float = 0.0
    top_k: int | None = None

    @property
    def rows(self) -> int:
        """How many rows of coefficients an expert has."""
        return self.classes - 1 if self.classes else self.outputs

    @property
    def family(self) -> str:
        """The family's name in the package."""
        if self.classes:
            return "categorical"
        return "gaussian_full" if self.covariance == "full" else self.expert

    @property
    def algorithm(self) -> type[Algorithm1]:
        """The literal algorithm."""
        return Algorithm2 if self.tail == math.inf else ALGORITHMS[self.family]

    @property
    def is_table(self) -> bool:
        """Whether targets are rows."""
        return not self.classes and (self.outputs > 1 or self.covariance == "full")


class Agreement(NamedTuple):
    """What a run found."""

    difference: float
    """Largest difference between kernels and oracle, relative to the largest entry of the array it is in."""
    self_difference: float
    """The largest such difference between the oracle and itself from a few disturbed starts; 0 unless requested."""
    smallest_mass: float
    finite: bool

    def holds(self, case: Case) -> bool:
        """Whether the oracle has an answer, which is the kernels' up to rounding, and no expert starves in a prior."""
        alive = not case.prior or self.smallest_mass >= 1e-3 / case.K
        agrees = self.difference <= max(TOLERANCE, 10.0 * self.self_difference)
        has_answer = bool(np.isfinite([self.difference, self.self_difference]).all())
        return has_answer and agrees and self.finite and alive


class Events(NamedTuple):
    """n inputs (n, P); targets (n,) or (n, Q), or class numbers (n,); and weights (n,), 1 in the mean."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray


def stream(case: Case, count: int) -> Events:
    """Events of K linear or softmax experts under a softmax gate."""
    rng = np.random.default_rng([0, case.K, case.p])
    P = (case.p - 1) // case.degree
    gate = 2.0 * rng.normal(size=(case.K, P)) / np.sqrt(P)
    experts = 2.0 * rng.normal(size=(case.K, case.classes or case.outputs, 1 + P)) / np.sqrt(1 + P)
    X = rng.normal(size=(count, P))
    chosen = (X @ gate.T + rng.gumbel(size=(count, case.K))).argmax(axis=1)
    values = np.einsum("nqp,np->nq", experts[chosen], powers(X, 1))
    if case.classes:
        y = (2.0 * values + rng.gumbel(size=values.shape)).argmax(axis=1)
    else:
        # A noise that all outputs share correlates them.
        noise = rng.normal(size=values.shape) + 0.7 * rng.normal(size=(count, 1)) * (case.outputs > 1)
        if case.expert != "gaussian":
            noise /= np.sqrt(rng.chisquare(3.0, size=(count, 1)) / 3.0)
        y = values + 0.5 * noise
        y = y if case.is_table else y[:, 0]
    weights = rng.gamma(2.0, 0.5, size=count) if case.weighted else np.ones(count)
    return Events(X, y, weights)


def powers(X: np.ndarray, degree: int) -> np.ndarray:
    """φ(x) = (1, x, x², …), element by element."""
    return np.concatenate([np.ones((len(X), 1)), *(X**d for d in range(1, degree + 1))], axis=1)


def start_of(case: Case, events: Events) -> dict:
    """Return random parameters, with the statistics of a prior that is no round number anywhere, or of these events.

    The gate is steep enough to be sure about some events: among shares below ½ the adaptive bound is the tight one.
    """
    rng = np.random.default_rng([0, 1])
    W, R = powers(events.X, case.gate_degree), powers(events.X, case.degree)
    p_w, p_v = W.shape[1], R.shape[1]
    rows = case.rows
    prior = {
        "gate_gram": rng.uniform(0.5, 2.0, size=p_w),
        "expert_gram": rng.uniform(0.5, 2.0, size=p_v),
        "experts": 0.3 * rng.normal(size=(rows, p_v)),
    }
    start = {
        "gate": 2.0 * rng.normal(size=(case.K - 1, p_w)) / np.sqrt(p_w),
        "experts": rng.normal(size=(case.K, rows, p_v)),
        "masses": np.full(case.K, 1.0 / case.K),
        "n": 0,
    }
    covariance = np.diag(rng.uniform(0.5, 2.0, size=rows))
    if not case.classes:
        prior["variances"] = np.diag(covariance).copy()
    if case.prior:
        grams = np.diag(prior["gate_gram"]), np.diag(prior["expert_gram"])
        start |= {"decay": 1.0, "prior_weight": 1.0, "prior": prior}
    else:
        grams = W.T @ W / len(W), R.T @ R / len(R)
        if not case.classes:
            Y = events.y.reshape(len(R), case.outputs)
            least_squares = np.linalg.lstsq(R, Y, rcond=None)[0]
            start["experts"] += least_squares.T
            covariance = np.cov((Y - R @ least_squares).T).reshape(rows, rows)
    if not case.classes:
        start["variances"] = np.stack([covariance if case.covariance == "full" else np.diag(covariance)] * case.K)
    return start | {"gate_gram": grams[0], "expert_grams": np.stack([grams[1]] * case.K) / case.K}


def names(case: Case) -> list[str]:
    """Column names whose alphabetical order, which is the model's, is the columns' own."""
    return [f"x{j:03}" for j in range((case.p - 1) // case.degree)]


def estimator(case: Case, start: dict, **more):
    """The estimator that a case is for, at these parameters."""
    arguments = {
        "degree": case.degree,
        "gate_degree": case.gate_degree,
        "schedule": STEPS[case.steps],
        "bound": case.bound,
        "prior_strength": case.prior,
        "events_per_coefficient": case.per_coefficient,
        "averaging": None,
        "serve": "polyak",
        "hold": False,
        "feature_names": names(case),
        "top_k": case.top_k,
        **more,
    }
    if case.classes:
        return streammoe.MoEClassifier.from_parameters(start, classes=list(range(case.classes)), **arguments)
    noise = Gaussian(case.covariance, case.tail) if case.expert == "gaussian" else case.expert
    arguments = {"expert": noise, **arguments}
    if case.is_table:
        return streammoe.MoEMultiTargetRegressor.from_parameters(start, **arguments)
    return streammoe.MoERegressor.from_parameters(start, **arguments)


def oracle(case: Case, parameters: dict):
    """The literal algorithm that a case is for, at these parameters."""
    return case.algorithm(
        parameters, bound=case.bound, prior_strength=case.prior, span=case.per_coefficient * case.p, top_k=case.top_k
    )


def one_expert(algorithm: type[Algorithm1], state: dict, *, bound: str, strength: float = 1.0) -> Algorithm1:
    """A single expert at the state of a member or of a companion, by the names of its arrays."""
    p = state["experts"].shape[2]
    prior = {"gate_gram": np.ones(p), "expert_gram": state["prior_expert_gram"], "experts": state["prior_experts"]}
    prior["variances"] = state["prior_variances"]
    decay = float(state["decay"][0])
    start = {"gate": np.empty((0, p)), "gate_gram": np.eye(p), "decay": decay, "prior": prior}
    start |= {name: state[name].copy() for name in ("experts", "variances", "masses")}
    start |= {"expert_grams": state["expert_grams"] * decay, "prior_weight": float(state["prior_weight"][0])}
    return algorithm(start, bound=bound, prior_strength=strength)


def difference(ours: dict, theirs: dict) -> float:
    """Largest difference between two sets of parameters, relative to the largest entry of the array it is in."""
    largest = 0.0
    for name in COMPARED:
        if name in theirs and theirs[name].size:
            a, b = ours[name], theirs[name]
            relative = np.max(np.abs(a - b)) / np.max(np.abs(b))
            largest = max(largest, relative if np.isfinite(relative) else np.inf)
    return float(largest)


def disturbed(parameters: dict, seed: int) -> dict:
    """The same start, each number moved by a random 1e-15 of itself; what may be symmetric stays so."""
    rng = np.random.default_rng(seed)
    moved = dict(parameters)
    for name in COMPARED:
        if name not in parameters:
            continue
        noise = rng.uniform(-1e-15, 1e-15, size=np.shape(parameters[name]))
        if noise.ndim > 1 and noise.shape[-1] == noise.shape[-2]:
            noise = (noise + np.swapaxes(noise, -1, -2)) / 2.0
        moved[name] = parameters[name] * (1.0 + noise)
    return moved


def literal_looks(case: Case, start: dict, events: Events) -> list[dict]:
    """Let the oracle learn the events; return its parameters and losses at each look."""
    algorithm, count = oracle(case, start), len(events.X)
    W, R = powers(events.X, case.gate_degree), powers(events.X, case.degree)
    Y = events.y if case.classes else events.y.reshape(count, case.outputs)
    gammas = [STEPS[case.steps](n) for n in range(start["n"] + 1, start["n"] + count + 1)]
    weights = relative_weights(events.weights, start["n"])
    looks = []
    for part in np.array_split(np.arange(count), LOOKS):
        losses = np.full(len(part), np.nan)
        # An oracle that leaves the domain of log, or has to solve a singular system, shows in the differences.
        with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError, InvalidEvent):
            for at, i in enumerate(part):
                losses[at] = algorithm.learn(W[i], R[i], Y[i], gammas[i], weights[i])
        looks.append(algorithm.theta | {"losses": losses})
    return looks


def run(case: Case, count: int = 200, *, make=estimator) -> Agreement:
    """Let kernels and oracle learn the same events.

    `make` is what is compared: from (case, parameters) anything with `learn_array` and `parameters`.
    """
    events = stream(case, START_EVENTS + count)
    model = make(case, start_of(case, Events(*(each[:START_EVENTS] for each in events))))
    events = Events(*(each[START_EVENTS:] for each in events))
    start = model.parameters()
    expected = literal_looks(case, start, events)
    found, smallest_mass, finite = 0.0, np.inf, True
    for part, theirs in zip(np.array_split(np.arange(count), LOOKS), expected, strict=True):
        weights = {"w": events.weights[part]} if case.weighted else {}
        losses = model.learn_array(events.X[part], events.y[part], feature_names=names(case), **weights)
        ours = model.parameters() | {"losses": losses}
        found = max(found, difference(ours, theirs))
        smallest_mass = min(smallest_mass, float(ours["masses"].min()))
        finite = finite and all(np.isfinite(each).all() for each in ours.values() if isinstance(each, np.ndarray))
    apart = 0.0
    for seed in range(TWINS if found > TOLERANCE else 0):
        twin = literal_looks(case, disturbed(start, seed), events)
        apart = max(apart, *(difference(other, theirs) for other, theirs in zip(twin, expected, strict=True)))
    return Agreement(found, apart, smallest_mass, finite)
