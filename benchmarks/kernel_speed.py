"""How many events a second does one core learn, and how does that grow with features and experts?"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

import numpy as np

from benchmarks.report import machine, table

RATE_TARGET = 1_000_000
RATIO_TARGET = 80
SLOPE_TARGET = 2.2
BEND_TARGET = 0.15
"""Largest deviation of a point from the straight line over K."""
EVENTS_SO_FAR = 20_000
"""Where the growth over p is measured: refreshes are then as rare as in real use."""
FAMILIES = [
    ("gaussian", 1, "tight"),
    ("gaussian", 1, "adaptive"),
    ("gaussian", 3, "tight"),
    ("gaussian_full", 3, "tight"),
    ("categorical", 2, "adaptive"),
    ("categorical", 5, "adaptive"),
    ("categorical", 5, "tight"),
]
"""With how many outputs or classes, and which bound, each family is timed."""


def start(K: int, p: int, family: str = "gaussian", n_outputs: int = 1, seed: int = 0):
    """A state at event 20,000 with random parameters, and Gram matrices of N(0, I) inputs."""
    from streammoe.engine.state import state_at
    from streammoe.experts import families

    rng = np.random.default_rng(seed)
    experts = families()[family]
    prior = experts.unit_prior(0.1, p, p, n_outputs)
    return state_at(
        gate=rng.normal(size=(K - 1, p)) / np.sqrt(p),
        experts=rng.normal(size=(K, experts.n_rows(n_outputs), p)) / np.sqrt(n_outputs),
        variances=experts.variances_of(prior.variances, K),
        masses=np.full(K, 1.0 / K),
        gate_gram=np.eye(p),
        expert_grams=np.stack([np.eye(p) / K] * K),
        prior=prior,
        n=EVENTS_SO_FAR,
        prior_weight=1e-5,
    )


def rows(count: int, p: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Features with an intercept, and targets of two crossing experts."""
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(count, p))
    R[:, 0] = 1.0
    slopes = rng.normal(size=(2, p)) / np.sqrt(p)
    y = np.where(R[:, 1] > 0, R @ slopes[0], R @ slopes[1]) + 0.3 * rng.normal(size=count)
    return R, y[:, None]


def targets(y: np.ndarray, family: str, n_outputs: int) -> np.ndarray:
    """As many outputs as asked for, or class indexes by quantiles of one."""
    if family == "categorical":
        edges = np.quantile(y, np.linspace(0.0, 1.0, n_outputs + 1)[1:-1])
        return np.searchsorted(edges, y[:, 0])[:, None].astype(float)
    return y + 0.3 * np.random.default_rng(2).normal(size=(len(y), n_outputs)) if n_outputs > 1 else y


def seconds_an_event(
    K: int,
    p: int,
    count: int,
    repeats: int = 3,
    *,
    family: str = "gaussian",
    n_outputs: int = 1,
    bound: str = "tight",
) -> float:
    """The kernel as it is called for each batch, averaging included; the best of a few runs of `count` events."""
    from streammoe import schedules
    from streammoe.engine import mm
    from streammoe.experts import families
    from streammoe.features import padded

    schedule = schedules.power(0.6)
    experts = families()[family]
    options = mm.learning_options(
        bound=bound,
        n_experts=K,
        n_rows=experts.n_rows(n_outputs),
        prior_strength=0.1,
        averaging="polyak",
        schedule=schedule,
    )
    R, y = rows(count, p)
    Y = targets(y, family, n_outputs)
    # As the encoder hands them over: padded with zeros to whole vector registers.
    R = np.pad(R, [(0, 0), (0, padded(p) - p)])
    best = np.inf
    for _ in range(repeats):
        state = start(K, padded(p), family, n_outputs)
        residual = mm.new_residual(experts, state, n_outputs)
        learn = partial(mm.learn, experts, state, residual, options, schedule, n_outputs=n_outputs)
        learn(R[:2], R[:2], Y[:2])
        begun = time.perf_counter()
        learn(R, R, Y)
        best = min(best, (time.perf_counter() - begun) / count)
        assert np.isfinite(state.experts).all()
    return best


def seconds_of_learn_array(K: int, P: int, count: int) -> float:
    """The public array path: checks, feature map, kernel."""
    from streammoe import MoERegressor

    R, Y = rows(count + 1000, P + 1)
    best = np.inf
    for _ in range(8):
        model = MoERegressor(K, warmup=500, warmup_restarts=1)
        model.learn_array(R[:1000, 1:], Y[:1000, 0])
        begun = time.perf_counter()
        model.learn_array(R[1000:, 1:], Y[1000:, 0])
        best = min(best, (time.perf_counter() - begun) / count)
    return best


def seconds_of_oracle(K: int, p: int, count: int) -> float:
    """The literal algorithm in NumPy, from the same state."""
    from streammoe import schedules
    from tests.oracle.algorithm2 import Algorithm2

    state = start(K, p)
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
    R, Y = rows(count, p)
    gammas = schedules.power(0.6).steps(EVENTS_SO_FAR + 1, count)
    best = np.inf
    for _ in range(8):
        oracle = Algorithm2(parameters, bound="tight", prior_strength=0.1)
        begun = time.perf_counter()
        for r, y, gamma in zip(R, Y, gammas, strict=True):
            oracle.learn(r, r, y, gamma)
        best = min(best, (time.perf_counter() - begun) / count)
    return best


def refreshes(count: int) -> float:
    """How many refreshes `count` events from event 20,000 on bring, on average."""
    from streammoe import schedules

    return float(-np.log1p(-schedules.power(0.6).steps(EVENTS_SO_FAR + 1, count)).sum() / np.log(2.0))


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, for a first look")
    arguments = parser.parse_args(argv)
    # In place before NumPy's library makes its threads where this is the first import; the kernels use one core anyway.
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    scale = 10 if arguments.quick else 1
    print(machine(), "\n")

    print("One core, K = 4 experts, P = 10 inputs (p = 11), Polyak average and convergence residual on")
    kernel = 1.0 / seconds_an_event(4, 11, 200_000 // scale, repeats=15)
    array = 1.0 / seconds_of_learn_array(4, 10, 200_000 // scale)
    oracle = 1.0 / seconds_of_oracle(4, 11, 2_000 // scale)
    ratio = kernel / oracle
    print(
        table(
            ["what", "events/s", "target", "verdict"],
            [
                ["kernel", f"{kernel:,.0f}", f"≥ {RATE_TARGET:,}", verdict(kernel >= RATE_TARGET)],
                ["learn_array (checks and feature map included)", f"{array:,.0f}", "", ""],
                ["literal algorithm in NumPy", f"{oracle:,.0f}", "", ""],
                ["kernel / literal", f"{ratio:,.0f}×", f"≥ {RATIO_TARGET}×", verdict(ratio >= RATIO_TARGET)],
            ],
        )
    )

    print("\nFamilies of experts, K = 4, p = 11")
    lines = []
    for family, n_outputs, bound in FAMILIES:
        given = {"family": family, "n_outputs": n_outputs, "bound": bound}
        rate = 1.0 / seconds_an_event(4, 11, 100_000 // scale, repeats=5, **given)
        lines.append([family, n_outputs, bound, f"{rate:,.0f}"])
    print(table(["family", "outputs or classes", "bound", "events/s"], lines))

    print(f"\nGrowth with p, K = 4, from event {EVENTS_SO_FAR:,} on with default steps")
    widths = np.array([50, 71, 100, 141, 200, 283, 400])
    counts = [max(int(40_000 * (50 / p) ** 2), 1_200) // scale for p in widths]
    costs = np.array([seconds_an_event(4, p, count, repeats=2) for p, count in zip(widths, counts, strict=True)])
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
    # All of them in turn, several times over: what else the machine does then falls on none in particular.
    turns = [[seconds_an_event(int(K), 11, 20_000 // scale, repeats=3) for K in experts] for _ in range(8)]
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
