"""How fast do EM, gradient EM and gradient descent approach the truth on the symmetric mixture of [MD] §6?

y = ±β·x + N(0, 1) with P(+) = sigmoid(w·x), ten inputs, |β| = |w| = 4, 1,000 events, all of them in each round; 50
instances. All start from the truth plus a vector of length 1 in any direction, for β and for w; the paper does not say
how far. Gradient steps are tuned over a grid by the likelihood after the last round; the paper's are not known here.

At equal steps gradient EM is gradient descent: the gradient of EM's objective at the current parameters is that of the
log-likelihood (Fisher's identity). The only difference is that gradient EM, with one step on each sub-objective, may
use different steps for β and w. The library's EM does not know that the experts are opposite and the noise is 1, so it
has 33 parameters to find instead of 20.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers import learners
from benchmarks.papers.mixtures import em_on
from benchmarks.papers.sheets import UNKNOWN, Options, Sheet, Target, main, picture
from streammoe.experts import Parameters

ROUNDS = 50
SHOWN = (0, 1, 2, 5, 10, 20, 50)
STEPS = (0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0, 40.0)
NEWTON_ROUNDS = 20
NEAR = 1e-4
"""Nats an event below the likelihood's maximum, where a method has arrived."""
EM = "EM"
LIBRARY = "EM, the library's, free experts"
GRADIENT_EM = "gradient EM"
DESCENT = "gradient descent"


class Theta(NamedTuple):
    """The parameters to find."""

    slopes: np.ndarray
    """(d,) β."""
    gate: np.ndarray
    """(d,) w."""


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−z))."""
    shares: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * z))
    return shares


def responsibilities(task: tasks.Symmetric, theta: Theta) -> np.ndarray:
    """P(+ | x, y)."""
    X, y, *_ = task
    return sigmoid(X @ theta.gate + 2.0 * y * (X @ theta.slopes))


def log_likelihood(task: tasks.Symmetric, theta: Theta) -> float:
    """Of an event, without the constant."""
    X, y, *_ = task
    means, logits = X @ theta.slopes, X @ theta.gate
    plus = -np.logaddexp(0.0, -logits) - 0.5 * (y - means) ** 2
    minus = -np.logaddexp(0.0, logits) - 0.5 * (y + means) ** 2
    return float(np.logaddexp(plus, minus).mean())


def gradients(task: tasks.Symmetric, theta: Theta) -> Theta:
    """Return the gradient of the log-likelihood per event, which is also that of EM's objective."""
    X, y, *_ = task
    tau = responsibilities(task, theta)
    errors = (2.0 * tau - 1.0) * y - X @ theta.slopes
    return Theta(errors @ X / len(y), (tau - sigmoid(X @ theta.gate)) @ X / len(y))


def em_round(task: tasks.Symmetric, theta: Theta) -> Theta:
    """Run one round of EM: least squares for β, logistic regression to convergence for w."""
    X, y, *_ = task
    tau = responsibilities(task, theta)
    slopes = np.linalg.lstsq(X, (2.0 * tau - 1.0) * y, rcond=None)[0]
    gate = theta.gate
    for _ in range(NEWTON_ROUNDS):
        shares = sigmoid(X @ gate)
        curvature = (X * (shares * (1.0 - shares))[:, None]).T @ X + 1e-9 * np.eye(X.shape[1])
        gate = gate + np.linalg.solve(curvature, (tau - shares) @ X)
    return Theta(slopes, gate)


def start_of(task: tasks.Symmetric, seed: int) -> Theta:
    """Return the truth plus a vector of length 1, for each of β and w."""
    rng = np.random.default_rng(10_000 + seed)
    aside = rng.normal(size=(2, len(task.slopes)))
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    return Theta(task.slopes + aside[0], task.gate + aside[1])


def distances(task: tasks.Symmetric, theta: Theta) -> tuple[float, float]:
    """Return the distances of β and w to the truth, relative to the truth's length."""
    return (
        float(np.linalg.norm(theta.slopes - task.slopes) / np.linalg.norm(task.slopes)),
        float(np.linalg.norm(theta.gate - task.gate) / np.linalg.norm(task.gate)),
    )


def uphill(task: tasks.Symmetric, start: Theta, steps: tuple[float, float]) -> list[Theta]:
    """Return the parameters after each round of gradient steps, for β and for w."""
    path = [start]
    for _ in range(ROUNDS):
        gradient = gradients(task, path[-1])
        path.append(Theta(path[-1].slopes + steps[0] * gradient.slopes, path[-1].gate + steps[1] * gradient.gate))
    return path


def library_path(task: tasks.Symmetric, start: Theta) -> list[Theta]:
    """Return those of the library's EM, which has two free experts with intercepts, and variances."""
    em = em_on(task.X, task.y, 2)
    slopes = np.concatenate([[0.0], start.slopes])
    theta = Parameters(np.concatenate([[0.0], start.gate])[None], np.stack([slopes, -slopes])[:, None], np.ones((2, 1)))
    path = [start]
    for _ in range(ROUNDS):
        _, tau = em.e_step(theta)
        em.m_step(theta, tau)
        path.append(Theta(0.5 * (theta.experts[0, 0, 1:] - theta.experts[1, 0, 1:]), theta.gate[0, 1:].copy()))
    return path


class Found(NamedTuple):
    """Draw an instance."""

    climbs: np.ndarray
    """(rounds + 1,) log-likelihood of an event along EM's path."""

    distances: dict[str, np.ndarray]
    """(rounds + 1, 2) of those without a step to choose."""
    likelihoods: np.ndarray
    """(steps, steps, rounds + 1) the same for each pair of steps; −inf where it is lost."""
    tried: np.ndarray
    """(steps, steps, rounds + 1, 2) distances."""
    one_pass: tuple[float, float]
    """Distances after the library's own start and one pass."""


def of_instance(seed: int) -> Found:
    """Run all methods from one start."""
    task = tasks.symmetric_experts(seed=seed)
    start = start_of(task, seed)
    path = [start]
    for _ in range(ROUNDS):
        path.append(em_round(task, path[-1]))
    fixed = {
        EM: np.array([distances(task, theta) for theta in path]),
        LIBRARY: np.array([distances(task, theta) for theta in library_path(task, start)]),
    }
    size = len(STEPS)
    likelihoods = np.empty((size, size, ROUNDS + 1))
    tried = np.empty((size, size, ROUNDS + 1, 2))
    for i, j in product(range(size), repeat=2):
        with np.errstate(all="ignore"):
            climbed = uphill(task, start, (STEPS[i], STEPS[j]))
            likelihoods[i, j] = [log_likelihood(task, theta) for theta in climbed]
            tried[i, j] = [distances(task, theta) for theta in climbed]
    likelihoods[~np.isfinite(likelihoods)] = -np.inf
    parameters = learners.one_pass(task.X, task.y, standardize=False).parameters(averaged=True)
    experts, gate = parameters["experts"][:, 0, 1:], parameters["gate"][0, 1:]
    half = 0.5 * (experts[0] - experts[1])
    sign = 1.0 if half @ task.slopes > 0.0 else -1.0
    climbs = np.array([log_likelihood(task, theta) for theta in path])
    return Found(climbs, fixed, likelihoods, tried, distances(task, Theta(sign * half, sign * gate)))


def draw(options: Options, curves: dict[str, np.ndarray], short: dict[str, np.ndarray]) -> None:
    """Draw Figure 1, the objective's error by round, and Figure 2, the distances of the parameters."""
    with picture(options, "symmetric-objective") as axes:
        for learner, each in short.items():
            # EM arrives within rounding, which has no logarithm.
            axes.plot(np.maximum(each.mean(axis=0), 1e-14), label=learner)
        axes.set(yscale="log", xlabel="round", ylabel="nats an event short of the maximum", title="[MD] objective")
        axes.legend()
    for at, name in enumerate(("slopes", "gate")):
        with picture(options, f"symmetric-{name}") as axes:
            for learner, curve in curves.items():
                axes.plot(curve[:, at], label=learner)
            axes.set(yscale="log", xlabel="round", ylabel="relative distance to the truth", title=f"[MD] {name}")
            axes.legend()


def sheets(options: Options) -> list[Sheet]:
    """Compute the table."""
    instances = options.count(50, 1)
    found = list(options.map(of_instance, range(instances)))
    last = np.mean([one.likelihoods[:, :, -1] for one in found], axis=0)
    i, j = (int(at) for at in np.unravel_index(np.argmax(last), last.shape))
    k = int(np.argmax(np.diag(last)))
    curves = {name: np.mean([one.distances[name] for one in found], axis=0) for name in (EM, LIBRARY)}
    curves[GRADIENT_EM] = np.mean([one.tried[i, j] for one in found], axis=0)
    curves[DESCENT] = np.mean([one.tried[k, k] for one in found], axis=0)
    # No method exceeds the maximum of the likelihood, which EM has reached by the last round.
    short = {
        EM: np.array([one.climbs[-1] - one.climbs for one in found]),
        GRADIENT_EM: np.array([one.climbs[-1] - one.likelihoods[i, j] for one in found]),
        DESCENT: np.array([one.climbs[-1] - one.likelihoods[k, k] for one in found]),
    }
    if options.plots is not None:
        draw(options, curves, short)
    steps = {GRADIENT_EM: f"steps {STEPS[i]:g} for β, {STEPS[j]:g} for w", DESCENT: f"step {STEPS[k]:g}"}
    rows: list[list[object]] = []
    for name, gaps in short.items():
        mean = gaps.mean(axis=0)
        rows.append(["nats short of the maximum", name, *(f"{mean[turn]:.1e}" for turn in SHOWN), steps.get(name, "")])
    for at, what in enumerate(("distance of β", "distance of w")):
        for name, curve in curves.items():
            rows.append([what, name, *(f"{curve[turn, at]:.4f}" for turn in SHOWN), steps.get(name, "")])
        one_pass = np.mean([one.one_pass[at] for one in found])
        rows.append(
            [what, "streammoe, one pass, its own start", *[""] * (len(SHOWN) - 1), f"{one_pass:.4f}", "default"]
        )
    rows.append([f"the paper: {UNKNOWN}", *[""] * (len(SHOWN) + 2)])
    needed = {name: float(np.mean((gaps > NEAR).sum(axis=1))) for name, gaps in short.items()}
    targets = [
        Target(f"rounds to within {NEAR:g} nats: EM's, at most {name}'s ({needed[name]:.1f})", needed[EM], needed[name])
        for name in (GRADIENT_EM, DESCENT)
    ]
    return [
        Sheet(
            f"[MD] symmetric experts, n = 1,000, mean of {instances} instances by round",
            ["what", "method", *(str(turn) for turn in SHOWN), ""],
            rows,
            targets,
            [
                "Start: the truth plus a vector of length 1, for β and for w; the paper does not say how far.",
                f"Steps from {', '.join(f'{step:g}' for step in STEPS)} by the mean likelihood after {ROUNDS} rounds.",
                "At equal steps gradient EM is gradient descent (Fisher's identity); with two steps they differ.",
                "Distances are relative to the truth's length. The likeliest w is too long, so a method",
                "that lengthens it slowly is closer to the truth for a while. Compare speeds by nats.",
            ],
        )
    ]


if __name__ == "__main__":
    main(__doc__)
