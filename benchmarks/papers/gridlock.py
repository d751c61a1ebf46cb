"""Is the mixture that generated the events recovered, [CQT] Tables 1 and 2, and does joint EM find it from any start?

Regressors and gate weights lie on the unit sphere in ten dimensions. The regressor fit is the least |cosine| between a
regressor and the true one it is matched with, and the gate fit that for the gate's logits against the last expert.
A run is a success if both are at least 0.95.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers import learners
from benchmarks.papers.mixtures import em_on, random_start, spectral_start
from benchmarks.papers.sheets import UNKNOWN, Options, Sheet
from benchmarks.report import Target
from streammoe.engine.em import TOLERANCE, Em
from streammoe.experts import Parameters

ROUNDS = 500
"""Most that joint EM runs."""
SUCCESS = 0.95
SPECTRAL = "moments, then EM on the gate"
WARM_SHARE = 0.9
"""Share of the events that the warm-up gathers; its fit ends while the others come."""
WARMUP = f"streammoe, warmup = {WARM_SHARE} n"
JOINT = "joint EM, one random start"
JOINT_KNOWN = "joint EM, σ known, same start"
STREAMED = "streammoe, one pass, default settings"


class Task(NamedTuple):
    """A kind of run."""

    name: str
    k: int
    n: int
    sigma: float
    p: float | None
    """Share of the first of two normals that inputs come from; None: one standard normal."""
    runs: int
    published: tuple[str, str] = (UNKNOWN, UNKNOWN)
    """The paper's fits of regressors and gate."""
    orthogonal: bool = False
    """Whether regressors and gate are orthogonal to each other."""


TABLE_1 = {
    0.1: ("0.93 ± 0.06", "0.9 ± 0.1"),
    0.3: ("0.94 ± 0.02", "0.97 ± 0.01"),
    0.5: ("0.92 ± 0.04", "0.93 ± 0.04"),
    0.7: ("0.92 ± 0.02", "0.96 ± 0.03"),
    0.9: ("0.91 ± 0.06", "0.97 ± 0.01"),
}
"""The paper's fits by p."""
TASKS = (
    Task("Table 2, not orthogonal: K = 2, normal inputs", 2, 2000, 0.1, None, 100, ("0.90 ± 0.08", "0.96 ± 0.02")),
    Task("Table 2, orthogonal: K = 2, normal inputs", 2, 2000, 0.1, None, 20, ("0.93 ± 0.03", "0.96 ± 0.03"), True),
    *(
        Task(f"Table 1, p = {p}: K = 2, inputs of two normals", 2, 2000, 0.1, p, 100 if p == 0.5 else 20, published)
        for p, published in TABLE_1.items()
    ),
    Task("K = 3, normal inputs", 3, 8000, 0.5, None, 100),
    Task("K = 4, normal inputs", 4, 8000, 0.5, None, 20),
)


class Fits(NamedTuple):
    """Similarity to the truth."""

    regressors: float
    gate: float

    @property
    def succeeds(self) -> bool:
        """Return whether both fits succeed."""
        return min(self) >= SUCCESS


def fits(truth: tasks.Gridlock, experts: np.ndarray, gate: np.ndarray) -> Fits:
    """Compare slopes (k, d) and gate weights (k − 1, d) with the truth, up to the order of the experts."""
    found = experts / np.linalg.norm(experts, axis=1, keepdims=True)
    cosines = np.abs(truth.regressors @ found.T)
    k = len(experts)
    order = max(permutations(range(k)), key=lambda order: cosines[range(k), order].min())
    logits = np.vstack([gate, np.zeros(gate.shape[1])])[list(order)]
    against_last = logits[:-1] - logits[-1]
    lengths = np.maximum(np.linalg.norm(against_last, axis=1), 1e-12)
    agreement = np.abs((against_last * truth.gate[:-1]).sum(axis=1)) / lengths
    return Fits(float(cosines[range(k), order].min()), float(agreement.min()))


def of_run(task: Task, seed: int) -> dict[str, Fits | None]:
    """Compute the fits of all learners in one run; None if the moments reveal fewer experts."""
    truth = tasks.gridlock(task.n, seed, task.k, sigma=task.sigma, p=task.p, orthogonal=task.orthogonal)
    X, y = truth.X, truth.y
    em = em_on(X, y, task.k)
    found: dict[str, Fits | None] = {SPECTRAL: None}
    start = spectral_start(em, task.k, seed)
    if start is not None:
        found[SPECTRAL] = fits(truth, start.experts[:, 0, 1:], start.gate[:, 1:])
    for name, model in (
        (WARMUP, learners.one_pass(X, y, task.k, warmup=int(WARM_SHARE * task.n), standardize=False)),
        (STREAMED, learners.one_pass(X, y, task.k, standardize=False)),
    ):
        parameters = model.parameters(averaged=True)
        found[name] = fits(truth, parameters["experts"][:, 0, 1:], parameters["gate"][:, 1:])
    for name, sigma in ((JOINT, None), (JOINT_KNOWN, task.sigma)):
        theta = joint_em(em, random_start(X, y, task.k, seed), sigma)
        found[name] = fits(truth, theta.experts[:, 0, 1:], theta.gate[:, 1:])
    return found


def joint_em(em: Em, theta: Parameters, sigma: float | None) -> Parameters:
    """Fit regressors and gate jointly from a start; the noise is learned, too, unless it is known."""
    if sigma is None:
        em.run(theta, ROUNDS)
        return theta
    best = -np.inf
    for _ in range(ROUNDS):
        theta.variances[...] = sigma**2
        total, tau = em.e_step(theta)
        if not total - best > TOLERANCE:
            break
        best = total
        em.m_step(theta, tau)
    return theta


def sheet_of(options: Options, task: Task) -> Sheet:
    """Compute a table."""
    runs = options.count(task.runs, 1)
    task = task._replace(n=options.count(task.n, 4000))
    found = list(options.map(partial(of_run, task), range(runs)))
    rows: list[list[object]] = []
    targets = []
    for name in (SPECTRAL, WARMUP, STREAMED, JOINT, JOINT_KNOWN):
        each = [one[name] or Fits(0.0, 0.0) for one in found]
        values = np.array(each)
        successes = sum(one.succeeds for one in each)
        means, medians, least = values.mean(axis=0), np.median(values, axis=0), values.min(axis=0)
        figures = [pair[at] for at in (0, 1) for pair in (means, medians, least)]
        rows.append([name, *(f"{figure:.3f}" for figure in figures), f"{successes} of {runs}"])
        if name == WARMUP:
            targets = [
                Target("regressor fit of the warm-up, mean", float(means[0]), 0.97, least=True),
                Target("gate fit of the warm-up, mean", float(means[1]), 0.97, least=True),
                Target("successes of the warm-up, share", successes / runs, 0.95, least=True),
            ]
    rows.append(["the paper, moments", task.published[0], "", "", task.published[1], "", "", ""])
    headers = ["", "regressors: mean fit", "median", "least", "gate: mean fit", "median", "least", "successes"]
    return Sheet(
        f"[CQT] {task.name}, n = {task.n:,}, σ = {task.sigma}, {runs} runs",
        headers,
        rows,
        targets,
        [
            f"Success: both fits at least {SUCCESS}. Joint EM: uniform on the sphere, {ROUNDS} rounds at most.",
            "Moments that reveal fewer than K experts count as fits of 0.",
            *(
                ["Inputs come from two normals with means on the sphere, the first one's share p; orthogonal: no."]
                if task.p
                else []
            ),
        ],
    )


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute a table for each kind."""
    return (sheet_of(options, task) for task in TASKS)
