"""How many events per second does one core learn, and how does that scale with features and experts?"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.report import machine, table
from streammoe.distributions import Gaussian
from streammoe.options import WarmUp

SLOPE_TARGET = 2.2
BEND_TARGET = 0.15
"""Largest deviation of a point from the straight line over K."""
EVENTS_SO_FAR = 20_000
"""Where the growth over p is measured: refreshes are then as rare as in real use."""


class Case(NamedTuple):
    """A model whose speed is measured."""

    K: int
    family: str = "gaussian"
    n_outputs: int = 1
    """Or classes."""
    bound: str = "tight"
    rate_target: int | None = None
    """Events a second of the kernel alone."""
    ratio_target: int | None = None
    """How many times the rate of the literal algorithm."""

    @property
    def expert(self) -> str:
        """Return the regressors' name of the family."""
        return "gaussian" if self.family == "gaussian_full" else self.family


PLAIN = Case(4, rate_target=1_000_000, ratio_target=80)
CASES = [
    PLAIN,
    Case(4, bound="adaptive"),
    Case(4, n_outputs=3, rate_target=700_000),
    Case(4, "gaussian_full", 3),
    Case(4, "student_t"),
    Case(4, "student_t", 3),
    Case(4, "laplace"),
    Case(2, "categorical", 3, "adaptive", rate_target=600_000),
    Case(2, "categorical", 3, "tight"),
    Case(4, "categorical", 2, "adaptive"),
    Case(4, "categorical", 5, "adaptive"),
    Case(4, "categorical", 5, "tight"),
]
TURNS = 8
"""How often each of them is timed, all in turn: what else the machine does then falls on none in particular."""


def start(case: Case, p: int, seed: int = 0):
    """Create a state at event 20,000 with random parameters, and Gram matrices of N(0, I) inputs."""
    from streammoe.engine.state import state_at
    from streammoe.experts import families

    rng = np.random.default_rng(seed)
    family, K = families()[case.family], case.K
    prior = family.unit_prior(0.1, p, p, case.n_outputs)
    return state_at(
        gate=rng.normal(size=(K - 1, p)) / np.sqrt(p),
        experts=rng.normal(size=(K, family.n_rows(case.n_outputs), p)) / np.sqrt(case.n_outputs),
        variances=family.variances_of(prior.variances, K),
        masses=np.full(K, 1.0 / K),
        gate_gram=np.eye(p),
        expert_grams=np.stack([np.eye(p) / K] * K),
        prior=prior,
        n=EVENTS_SO_FAR,
        prior_weight=1e-5,
    )


def rows(case: Case, count: int, p: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Generate features with an intercept, and targets of two crossing experts, or classes from their quantiles."""
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(count, p))
    R[:, 0] = 1.0
    slopes = rng.normal(size=(2, p)) / np.sqrt(p)
    y = np.where(R[:, 1] > 0, R @ slopes[0], R @ slopes[1]) + 0.3 * rng.normal(size=count)
    if case.family == "categorical":
        edges = np.quantile(y, np.linspace(0.0, 1.0, case.n_outputs + 1)[1:-1])
        return R, np.searchsorted(edges, y)[:, None].astype(float)
    return R, y[:, None] + 0.3 * rng.normal(size=(count, case.n_outputs)) if case.n_outputs > 1 else y[:, None]


def schedule_of(case: Case):
    """Return the default steps of the estimators."""
    from streammoe import MoEClassifier, MoERegressor

    return (MoEClassifier() if case.family == "categorical" else MoERegressor()).options.schedule


def seconds_an_event(case: Case, p: int, count: int, repeats: int = 3) -> float:
    """Measure the kernel as called for each batch, averaging included; the best of a few runs of `count` events."""
    from streammoe.engine import mixture
    from streammoe.experts import families
    from streammoe.layout import padded

    schedule, family = schedule_of(case), families()[case.family]
    options = mixture.learning_options(
        bound=case.bound,
        n_experts=case.K,
        n_rows=family.n_rows(case.n_outputs),
        prior_strength=0.1,
        averaging="polyak",
        schedule=schedule,
    )
    R, Y = rows(case, count, p)
    # As passed by the encoder: padded with zeros to whole vector registers.
    R = np.pad(R, [(0, 0), (0, padded(p) - p)])
    best = np.inf
    for _ in range(repeats):
        state = start(case, padded(p))
        residual = mixture.new_residual(family, state, case.n_outputs)
        learn = partial(mixture.learn, family, state, residual, options, schedule, n_outputs=case.n_outputs)
        learn(R[:2], R[:2], Y[:2])
        begun = time.perf_counter()
        learn(R, R, Y)
        best = min(best, (time.perf_counter() - begun) / count)
        assert np.isfinite(state.experts).all()
    return best


def seconds_of_learn_array(case: Case, p: int, count: int) -> float:
    """Measure the public array path: checks, labels, feature map, kernel."""
    from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor

    R, Y = rows(case, count + 1000, p)
    given = {"bound": case.bound, "warmup": WarmUp(500, restarts=1)}
    if case.family == "categorical":
        model, y = MoEClassifier(case.K, **given), Y[:, 0].astype(int)
    elif case.n_outputs > 1:
        expert = Gaussian("full") if case.family == "gaussian_full" else case.expert
        model, y = MoEMultiTargetRegressor(case.K, expert=expert, **given), Y
    else:
        model, y = MoERegressor(case.K, expert=case.expert, **given), Y[:, 0]
    model.learn_array(R[:1000, 1:], y[:1000])
    begun = time.perf_counter()
    model.learn_array(R[1000:, 1:], y[1000:])
    return (time.perf_counter() - begun) / count


def seconds_of_oracle(case: Case, p: int, count: int) -> float:
    """Measure the literal algorithm in NumPy, from the same state."""
    from streammoe.testing.literal import ALGORITHMS

    state = start(case, p)
    parameters = {
        **state._asdict(),
        "n": EVENTS_SO_FAR,
        "decay": 1.0,
        "prior_weight": 1e-5,
        "prior": {
            "gate_gram": state.prior_gate_gram,
            "expert_gram": state.prior_expert_gram,
            "experts": state.prior_experts,
            "variances": state.prior_variances,
        },
    }
    R, Y = rows(case, count, p)
    targets = Y[:, 0].astype(int) if case.family == "categorical" else Y
    oracle = ALGORITHMS[case.family](parameters, bound=case.bound, prior_strength=0.1)
    gammas = schedule_of(case).steps(EVENTS_SO_FAR + 1, count)
    begun = time.perf_counter()
    for r, y, gamma in zip(R, targets, gammas, strict=True):
        oracle.learn(r, r, y, gamma)
    return (time.perf_counter() - begun) / count


def refreshes(count: int) -> float:
    """Return the average number of refreshes in `count` events from event 20,000 on."""
    from streammoe import schedules

    return float(-np.log1p(-schedules.power(0.6).steps(EVENTS_SO_FAR + 1, count)).sum() / np.log(2.0))


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, for a first look")
    arguments = parser.parse_args(argv)
    # Before NumPy's library creates its threads, if this is the first import; the kernels use one core anyway.
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    scale = 10 if arguments.quick else 1
    print(machine(), "\n")

    print("One core, P = 10 inputs (p = 11), Polyak average and convergence residual on; events/s of")
    print("kernel: learning as it is called for each batch; learn_array: with checks, labels and feature map;")
    print("literal: the algorithm to the letter, in NumPy")
    kernels, arrays, oracles = np.full((3, len(CASES)), np.inf)
    for turn in range(TURNS):
        for at, case in enumerate(CASES):
            print(f"turn {turn + 1} of {TURNS}: {case.family} {case.n_outputs}", file=sys.stderr, flush=True)
            kernels[at] = min(kernels[at], seconds_an_event(case, 11, 200_000 // scale, repeats=2))
            arrays[at] = min(arrays[at], seconds_of_learn_array(case, 11, 200_000 // scale))
            oracles[at] = min(oracles[at], seconds_of_oracle(case, 11, 2_000 // scale))
    lines = []
    for case, kernel, array, oracle in zip(CASES, 1.0 / kernels, 1.0 / arrays, 1.0 / oracles, strict=True):
        judged = ["", ""]
        if case.rate_target:
            targets = [f"≥ {case.rate_target:,}"] + ([f"≥ {case.ratio_target}×"] if case.ratio_target else [])
            met = kernel >= case.rate_target and kernel / oracle >= (case.ratio_target or 0)
            judged = [", ".join(targets), verdict(met)]
        rates = (f"{rate:,.0f}" for rate in (kernel, array, oracle))
        lines.append([case.family, case.n_outputs, case.K, case.bound, *rates, f"{kernel / oracle:,.0f}×", *judged])
    headers = ["experts", "outputs or classes", "K", "bound", "kernel", "learn_array", "literal", "kernel / literal"]
    print(table([*headers, "target", "verdict"], lines))

    print(f"\nGrowth with p, K = 4, from event {EVENTS_SO_FAR:,} on with default steps")
    widths = np.array([50, 71, 100, 141, 200, 283, 400])
    counts = [max(int(40_000 * (50 / p) ** 2), 1_200) // scale for p in widths]
    costs = np.array([seconds_an_event(PLAIN, p, count, repeats=2) for p, count in zip(widths, counts, strict=True)])
    slope = float(np.polyfit(np.log(widths), np.log(costs), 1)[0])
    print(
        table(
            ["p", "µs/event", "events", "refreshes"],
            [
                [p, f"{1e6 * cost:.1f}", f"{count:,}", f"{refreshes(count):.1f}"]
                for p, cost, count in zip(widths, costs, counts, strict=True)
            ],
        )
    )
    print(f"log-log slope {slope:.2f}, target ≤ {SLOPE_TARGET}: {verdict(slope <= SLOPE_TARGET)}")

    print("\nGrowth with K, p = 11 (one expert has no gate to learn: K = 1 lies below the line through the others)")
    experts = np.arange(1, 17)
    # Several times in turn, so that other load on the machine affects all of them alike.
    turns = [[seconds_an_event(Case(int(K)), 11, 20_000 // scale, repeats=3) for K in experts] for _ in range(8)]
    costs = 1e6 * np.min(turns, axis=0)
    per_expert, fixed = np.polyfit(experts[1:], costs[1:], 1)
    line = fixed + per_expert * experts
    off = costs / line - 1.0
    bend = float(np.max(np.abs(off[1:])))
    print(
        table(
            ["K", "µs/event", "line", "off by"],
            [
                [K, f"{cost:.3f}", f"{on:.3f}", f"{100 * apart:+.1f}%"]
                for K, cost, on, apart in zip(experts, costs, line, off, strict=True)
            ],
        )
    )
    print(
        f"{fixed:.3f} + {per_expert:.3f} K µs; largest deviation of K = 2..16 {100 * bend:.0f}%, "
        f"target ≤ {100 * BEND_TARGET:.0f}%: {verdict(bend <= BEND_TARGET)}"
    )


if __name__ == "__main__":
    main()
