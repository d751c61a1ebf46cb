"""Do the O(K p²) kernels compute the iterates of [MM] Algorithms 2 and 3, solved literally at O((K p)³)?

Both begin from the same statistics and learn the same events. The oracle also runs from starts changed by 1e-15 of
themselves: where that alone moves it by more than 1e-11, the recursion amplifies rounding, and no two correct
implementations can agree better than that. Chance makes single such runs differ by a factor of a hundred; the largest
of three counts. Without a prior an expert can starve until its statistics underflow the literal solve: the oracle then
has no finite answer, and the row no verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from typing import NamedTuple

import numpy as np

import streammoe
from benchmarks.report import machine, table
from streammoe import schedules
from tests.oracle.algorithm3 import Algorithm3
from tests.oracle.heavy_tails import ALGORITHMS

COMPARED = ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams", "losses")
STEPS = {
    "0.5 (n+20)^-0.6": schedules.power(0.6, gamma0=0.5, offset=20),
    "(n+400)^-1": schedules.power(1.0, offset=400),
    "0.7 (n+2)^-0.6": schedules.power(0.6, gamma0=0.7, offset=2),
}
HOSTILE = "0.7 (n+2)^-0.6"
START_EVENTS = 400
"""Events that the Gram matrices of a start without a prior are formed from."""
STEADY = 1e-11
"""A self-difference up to this says that the recursion does not amplify rounding."""
TOLERANCE = 1e-9
HOSTILE_TOLERANCE = 1e-8
TWINS = 3
"""Disturbed runs of the oracle."""
LOOKS = 10
"""How often within a run the two are compared."""
FAMILIES = (
    {"outputs": 3},
    {"outputs": 3, "covariance": "full"},
    {"expert": "student_t"},
    {"outputs": 3, "expert": "student_t"},
    {"expert": "laplace"},
    {"classes": 2},
    {"classes": 3},
    {"classes": 5},
)
"""What other experts there are beside those with one output."""


class Case(NamedTuple):
    """One row of the table; which model it is for follows from outputs, classes and covariance."""

    K: int
    p: int
    bound: str
    steps: str
    prior: float = 0.0
    degree: int = 1
    gate_degree: int = 1
    seed: int = 0
    outputs: int = 1
    classes: int = 0
    covariance: str = "diagonal"
    expert: str = "gaussian"
    weighted: bool = False

    @property
    def family(self) -> str:
        """What the experts are, in a few characters."""
        if self.classes:
            return f"{self.classes} classes"
        shown = "1 output" if self.outputs == 1 else f"{self.outputs} outputs, {self.covariance}"
        return shown if self.expert == "gaussian" else f"{shown}, {self.expert}"


class Agreement(NamedTuple):
    """What a run found."""

    difference: float
    """Largest difference between kernels and oracle, relative to the largest entry of the array it is in."""
    self_difference: float
    """The same between the oracle and itself from a start changed by 1e-15, the largest of a few."""
    smallest_mass: float
    finite: bool

    def target(self, case: Case) -> float:
        """Largest difference that passes: a fixed one, or ten times what rounding of the start alone makes."""
        fixed, steady = (HOSTILE_TOLERANCE, HOSTILE_TOLERANCE / 10.0) if case.prior else (TOLERANCE, STEADY)
        return fixed if self.self_difference <= steady else 10.0 * self.self_difference

    @property
    def decides(self) -> bool:
        """Whether the oracle has an answer to compare with."""
        return bool(np.isfinite(self.self_difference))

    def within(self, case: Case) -> bool:
        """Whether the kernels pass; where the oracle has no answer they only have to be finite."""
        if not self.decides:
            return self.finite
        alive = self.finite and self.smallest_mass >= 1e-3 / case.K
        return self.difference <= self.target(case) and (alive or not case.prior)


class Events(NamedTuple):
    """n events."""

    X: np.ndarray
    """(n, P) inputs ~ N(0, I)."""
    y: np.ndarray
    """(n,) or (n, Q) targets, or (n,) class numbers."""
    weights: np.ndarray
    """(n,) of the events, 1 in the mean."""

    def part(self, rows) -> Events:
        """Some of them."""
        return Events(self.X[rows], self.y[rows], self.weights[rows])


def stream(case: Case, count: int) -> Events:
    """Events of K linear or softmax experts under a softmax gate."""
    rng = np.random.default_rng([case.seed, case.K, case.p])
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
        y = y[:, 0] if case.outputs == 1 else y
    weights = rng.gamma(2.0, 0.5, size=count) if case.weighted else np.ones(count)
    return Events(X, y, weights)


def powers(X: np.ndarray, degree: int) -> np.ndarray:
    """φ(x) = (1, x, x², …), element by element."""
    return np.concatenate([np.ones((len(X), 1)), *(X**d for d in range(1, degree + 1))], axis=1)


def start_without_prior(case: Case, events: Events) -> dict:
    """A random gate, random experts around least squares, and the Gram matrices of these events.

    The gate is steep enough to be sure about some events: among shares below ½ the adaptive bound is the tight one.
    """
    rng = np.random.default_rng([case.seed, 1])
    W, R = powers(events.X, case.gate_degree), powers(events.X, case.degree)
    p_w, p_v = W.shape[1], R.shape[1]
    start = {
        "gate": 2.0 * rng.normal(size=(case.K - 1, p_w)) / np.sqrt(p_w),
        "masses": np.full(case.K, 1.0 / case.K),
        "gate_gram": W.T @ W / len(W),
        "expert_grams": np.stack([R.T @ R / len(R) / case.K] * case.K),
        "n": 0,
    }
    if case.classes:
        return start | {"experts": rng.normal(size=(case.K, case.classes - 1, p_v))}
    Y = events.y.reshape(len(R), case.outputs)
    least_squares = np.linalg.lstsq(R, Y, rcond=None)[0]
    covariance = np.cov((Y - R @ least_squares).T).reshape(case.outputs, case.outputs)
    return start | {
        "experts": least_squares.T + rng.normal(size=(case.K, case.outputs, p_v)),
        "variances": np.stack([covariance if case.covariance == "full" else np.diag(covariance)] * case.K),
    }


def start_with_prior(case: Case) -> dict:
    """A random gate, random experts, and the statistics of a prior that is no round number anywhere."""
    rng = np.random.default_rng([case.seed, 2])
    P = (case.p - 1) // case.degree
    p_w, p_v = 1 + P * case.gate_degree, case.p
    rows = case.classes - 1 if case.classes else case.outputs
    prior = {
        "gate_gram": rng.uniform(0.5, 2.0, size=p_w),
        "expert_gram": rng.uniform(0.5, 2.0, size=p_v),
        "experts": 0.3 * rng.normal(size=(rows, p_v)),
    }
    start = {
        "gate": 2.0 * rng.normal(size=(case.K - 1, p_w)) / np.sqrt(p_w),
        "experts": rng.normal(size=(case.K, rows, p_v)),
        "masses": np.full(case.K, 1.0 / case.K),
        "gate_gram": np.diag(prior["gate_gram"]),
        "expert_grams": np.stack([np.diag(prior["expert_gram"]) / case.K] * case.K),
        "n": 0,
        "decay": 1.0,
        "prior_weight": 1.0,
        "prior": prior,
    }
    if not case.classes:
        prior["variances"] = rng.uniform(0.5, 2.0, size=rows)
        variances = np.diag(prior["variances"]) if case.covariance == "full" else prior["variances"]
        start["variances"] = np.stack([variances] * case.K)
    return start


def names(case: Case) -> list[str]:
    """Column names whose alphabetical order, which is the model's, is the columns' own."""
    return [f"x{j:03}" for j in range((case.p - 1) // case.degree)]


def start_of(case: Case, events: Events) -> dict:
    """Parameters to begin with: those of the prior, or Gram matrices of some events."""
    return start_with_prior(case) if case.prior else start_without_prior(case, events)


def estimator(case: Case, start: dict, bound: str):
    """The estimator that a case is for, at these parameters."""
    arguments = {
        "degree": case.degree,
        "gate_degree": case.gate_degree,
        "schedule": STEPS[case.steps],
        "bound": bound,
        "prior_strength": case.prior,
        "averaging": None,
        "feature_names": names(case),
    }
    if case.classes:
        return streammoe.MoEClassifier.from_parameters(start, classes=list(range(case.classes)), **arguments)
    if case.outputs > 1:
        return streammoe.MoEMultiTargetRegressor.from_parameters(
            start, covariance=case.covariance, expert=case.expert, **arguments
        )
    return streammoe.MoERegressor.from_parameters(start, expert=case.expert, **arguments)


def oracle(case: Case, parameters: dict):
    """The literal algorithm that a case is for, at these parameters."""
    algorithm = Algorithm3 if case.classes else ALGORITHMS[case.expert]
    return algorithm(parameters, bound=case.bound, prior_strength=case.prior)


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


def run(case: Case, count: int, *, twins: int = TWINS, kernel_bound: str | None = None, make=estimator) -> Agreement:
    """Let kernels, oracle and disturbed oracles learn the same events.

    `kernel_bound` gives the kernels another bound than the oracle, to see that the comparison notices. `make` is what
    is compared: from (case, parameters, bound) anything with `learn_array`, `parameters` and `is_finite`.
    """
    events = stream(case, START_EVENTS + count)
    model = make(case, start_of(case, events.part(slice(START_EVENTS))), kernel_bound or case.bound)
    events = events.part(slice(START_EVENTS, None))
    start = model.parameters()
    oracles = [oracle(case, each) for each in (start, *(disturbed(start, seed) for seed in range(twins)))]
    W, R = powers(events.X, case.gate_degree), powers(events.X, case.degree)
    Y = events.y if case.classes else events.y.reshape(count, case.outputs)
    gammas = STEPS[case.steps].steps(start["n"] + 1, count)
    found = apart = 0.0
    smallest_mass, finite = np.inf, True
    for part in np.array_split(np.arange(count), LOOKS):
        weights = {"weights": events.weights[part]} if case.weighted else {}
        losses = model.learn_array(events.X[part], events.y[part], feature_names=names(case), **weights)
        expected = np.full((len(oracles), len(part)), np.nan)
        # An oracle that leaves the domain of log, or has to solve a singular system, shows in the differences.
        with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
            for at, i in enumerate(part):
                for each, own_losses in zip(oracles, expected, strict=True):
                    own_losses[at] = each.learn(W[i], R[i], Y[i], gammas[i], events.weights[i])
        ours = model.parameters() | {"losses": losses}
        theirs, *others = (each.theta | {"losses": own} for each, own in zip(oracles, expected, strict=True))
        found = max(found, difference(ours, theirs))
        apart = max(apart, *(difference(other, theirs) for other in others))
        smallest_mass = min(smallest_mass, float(ours["masses"].min()))
        finite = finite and model.is_finite() and bool(np.isfinite(losses).all())
    return Agreement(found, apart, smallest_mass, finite)


def cases() -> list[Case]:
    """The table: the papers' algorithm under steps that leave it sound, and hostile steps with a prior."""
    sound = [steps for steps in STEPS if steps != HOSTILE]
    one_output = [
        Case(K, p, bound, steps)
        for K in (2, 4, 8)
        for p in (3, 11, 31)
        for bound in ("tight", "paper", "adaptive")
        for steps in sound
    ]
    families = [
        Case(4, 11, bound, sound[0], weighted=weighted, **family)
        for family in FAMILIES
        for bound in ("tight", "paper", "adaptive")
        for weighted in (False, True)
    ]
    plain = one_output + families
    # Under sound steps each case stands for several schedules; under hostile ones there is one.
    hostile = [case._replace(steps=HOSTILE, prior=1.0) for case in plain if case.steps == sound[0]]
    return plain + hostile


def _job(work: tuple[Case, int]) -> tuple[Case, Agreement, float]:
    case, events = work
    begun = time.perf_counter()
    found = run(case, events)
    return case, found, time.perf_counter() - begun


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000, help="events of each run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
    arguments = parser.parse_args(argv)
    # Read by the workers when they load NumPy: the dense solves are small, and the runs share the cores already.
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    print(machine())
    print(f"{arguments.events:,} events a run. Target for the largest relative difference:")
    print(f"- prior 0: {TOLERANCE:g} where the oracle agrees with itself to {STEADY:g}")
    print(f"- prior 1: {HOSTILE_TOLERANCE:g} where it does to {HOSTILE_TOLERANCE / 10:g}; all finite, masses ≥ 0.001/K")
    print(f"- elsewhere: 10 × the self-difference, the largest of {TWINS}\n", flush=True)
    order = cases()
    # The longest first, so that no core waits at the end.
    work = [
        (case, arguments.events) for case in sorted(order, key=lambda case: -case.K * case.p * max(1, case.classes))
    ]
    found: dict[Case, Agreement] = {}
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for case, agreement, seconds in pool.imap_unordered(_job, work):
            found[case] = agreement
            note = f"{case.family} K={case.K} p={case.p} {case.bound} {case.steps}: {seconds:.1f} s"
            print(f"{len(found)}/{len(work)} {note}", file=sys.stderr, flush=True)
    rows = []
    for case in order:
        a = found[case]
        rows.append(
            [
                case.family + (", weights" if case.weighted else ""),
                case.K,
                case.p,
                case.bound,
                case.steps,
                f"{case.prior:g}",
                f"{a.difference:.1e}",
                f"{a.self_difference:.1e}",
                f"{a.smallest_mass:.1e}",
                f"{a.target(case):.1e}" if a.decides else "–",
                ("met" if a.decides else "oracle not finite") if a.within(case) else "MISSED",
            ]
        )
    headers = [
        "experts",
        "K",
        "p",
        "bound",
        "steps",
        "prior",
        "difference",
        "self-difference",
        "least mass",
        "target",
        "verdict",
    ]
    print(table(headers, rows))
    undecided = sum(not agreement.decides for agreement in found.values())
    met = sum(row[-1] == "met" for row in rows)
    print(f"\n{met} of {len(rows) - undecided} met; {undecided} more where the oracle is not finite")


if __name__ == "__main__":
    main()
