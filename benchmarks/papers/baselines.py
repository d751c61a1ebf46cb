"""Minimize the loss of a Gaussian mixture of experts by stochastic optimizers, event by event: SGD to Sophia.

The loss is −log s(y | x) as in docs/algorithm.md, one output, gate and experts of the same features. Parameters are
one vector θ: gate (K−1, p), experts (K, p), then K logarithms of variances, which need no bounds that way.

Each optimizer is a function that updates θ for one gradient. They share `follow`: predict, score, learn; steps may
decay like t^(−1/2), and besides the last iterate the mean of all of them is scored, which the mixture uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from streammoe.kernels.compile import jit

LOG_2PI = float(np.log(2.0 * np.pi))
EPSILON = 1e-8
CURVATURE_EVERY = 10
"""Events between two of Sophia's looks at the curvature, as its paper has it."""


@jit
def loss_and_gradient(theta, K, w, y, gradient):
    """Compute −log s(y | x) of one event with features w (p,); fill `gradient`, as long as theta."""
    p = w.shape[0]
    experts = (K - 1) * p
    variances = experts + K * p
    logits = np.zeros(K)
    joint = np.zeros(K)
    errors = np.zeros(K)
    for k in range(K):
        mean = 0.0
        for j in range(p):
            mean += theta[experts + k * p + j] * w[j]
            if k < K - 1:
                logits[k] += theta[k * p + j] * w[j]
        errors[k] = y - mean
    top = logits.max()
    total = 0.0
    for k in range(K):
        total += np.exp(logits[k] - top)
    normalizer = top + np.log(total)
    for k in range(K):
        v = theta[variances + k]
        joint[k] = logits[k] - normalizer - 0.5 * (LOG_2PI + v + errors[k] * errors[k] * np.exp(-v))
    best = joint.max()
    total = 0.0
    for k in range(K):
        total += np.exp(joint[k] - best)
    likelihood = best + np.log(total)
    for k in range(K):
        tau = np.exp(joint[k] - likelihood)
        g = np.exp(logits[k] - normalizer)
        precision = np.exp(-theta[variances + k])
        gradient[variances + k] = 0.5 * tau * (1.0 - errors[k] * errors[k] * precision)
        for j in range(p):
            gradient[experts + k * p + j] = -tau * errors[k] * precision * w[j]
            if k < K - 1:
                gradient[k * p + j] = (g - tau) * w[j]
    return -likelihood


@jit
def drawn_target(theta, K, w, uniform, normal):
    """Draw a target from the model itself, using a uniform and a normal number."""
    p = w.shape[0]
    experts = (K - 1) * p
    logits = np.zeros(K)
    for k in range(K - 1):
        for j in range(p):
            logits[k] += theta[k * p + j] * w[j]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    chosen = 0
    passed = shares[0]
    while passed < uniform and chosen < K - 1:
        chosen += 1
        passed += shares[chosen]
    mean = 0.0
    for j in range(p):
        mean += theta[experts + chosen * p + j] * w[j]
    return mean + np.exp(0.5 * theta[experts + K * p + chosen]) * normal


@jit
def sgd(theta, gradient, rate):
    """Stochastic gradient descent."""
    theta -= rate * gradient


@jit
def rmsprop(theta, gradient, second, rate):
    """Root mean square propagation with decay 0.99."""
    for i in range(theta.shape[0]):
        second[i] = 0.99 * second[i] + 0.01 * gradient[i] * gradient[i]
        theta[i] -= rate * gradient[i] / (np.sqrt(second[i]) + EPSILON)


@jit
def adam(theta, gradient, first, second, t, rate):
    """Adaptive moments, β = (0.9, 0.999), with the corrections for their start at 0."""
    corrections = 1.0 - 0.9**t, 1.0 - 0.999**t
    for i in range(theta.shape[0]):
        first[i] = 0.9 * first[i] + 0.1 * gradient[i]
        second[i] = 0.999 * second[i] + 0.001 * gradient[i] * gradient[i]
        theta[i] -= rate * (first[i] / corrections[0]) / (np.sqrt(second[i] / corrections[1]) + EPSILON)


@jit
def adamw(theta, gradient, first, second, t, rate, decay):
    """Adam with decoupled weight decay."""
    theta *= 1.0 - rate * decay
    adam(theta, gradient, first, second, t, rate)


@jit
def sophia(theta, gradient, first, second, rate, rho):
    """Second-order clipped steps, β = (0.965, 0.99); `second`, the curvature, is maintained by `follow`."""
    for i in range(theta.shape[0]):
        first[i] = 0.965 * first[i] + 0.035 * gradient[i]
        ratio = first[i] / max(rho * second[i], 1e-12)
        theta[i] -= rate * min(max(ratio, -1.0), 1.0)


@jit
def follow(optimizer, rate, fade, extra, theta, K, W, y, uniforms, normals, losses, ends):
    """Predict, score and learn each event.

    Args:
        optimizer: index in `OPTIMIZERS`.
        rate, fade, extra: the t-th step is rate · t^(−fade); weight decay or ρ.
        theta: (size,) the start, moved in place.
        K: experts.
        W, y: (n, p) features, (n,) targets.
        uniforms, normals: (n,) random numbers, for Sophia's draws from the model.
        losses: (2, n) filled with −log s(y | x) before learning, of the last iterate and of the mean of all; inf from
            where they are lost.
        ends: (2, size) filled with both after all events; NaN if they are lost.
    """
    mean = theta.copy()
    gradient = np.zeros_like(theta)
    other = np.zeros_like(theta)
    first = np.zeros_like(theta)
    second = np.zeros_like(theta)
    losses[:] = np.inf
    ends[:] = np.nan
    for i in range(W.shape[0]):
        t = i + 1
        of_mean = loss_and_gradient(mean, K, W[i], y[i], other)
        of_last = loss_and_gradient(theta, K, W[i], y[i], gradient)
        if not np.isfinite(of_last) or not np.isfinite(of_mean):
            return
        losses[0, i] = of_last
        losses[1, i] = of_mean
        step = rate * t ** (-fade)
        if optimizer == 0:
            sgd(theta, gradient, step)
        elif optimizer == 1:
            rmsprop(theta, gradient, second, step)
        elif optimizer == 2:
            adam(theta, gradient, first, second, t, step)
        elif optimizer == 3:
            adamw(theta, gradient, first, second, t, step, extra)
        else:
            if i % CURVATURE_EVERY == 0:
                # Gauss-Newton-Bartlett: with a target drawn from the model the square of the gradient is unbiased.
                loss_and_gradient(theta, K, W[i], drawn_target(theta, K, W[i], uniforms[i], normals[i]), other)
                second *= 0.99
                second += 0.01 * other * other
            sophia(theta, gradient, first, second, step, extra)
        mean += (theta - mean) / t
    ends[0] = theta
    ends[1] = mean


OPTIMIZERS = ("SGD", "RMSProp", "Adam", "AdamW", "Sophia")
"""In the order of the indexes that `follow` takes."""
RATES = tuple(float(f"{10.0**power:.1e}") for power in np.arange(-4.0, 0.25, 0.5))
EXTRAS: dict[str, tuple[str, tuple[float, ...]]] = {
    "AdamW": ("weight decay", (1e-3, 1e-2, 1e-1)),
    "Sophia": ("ρ", (0.01, 0.05, 0.25)),
}


class Point(NamedTuple):
    """A point of the grid that an optimizer is tuned over."""

    rate: float
    fade: float
    extra: float
    mean_serves: bool
    """Whether the mean of all iterates predicts, not the last one."""


class Start(NamedTuple):
    """Starting point of every optimizer, and the events that it learns."""

    theta: np.ndarray
    """(size,)."""
    K: int
    W: np.ndarray
    """(n, p) features, an intercept first."""
    y: np.ndarray
    """(n,)."""


def grid(name: str) -> list[Point]:
    """Return all points for one optimizer."""
    extras = EXTRAS[name][1] if name in EXTRAS else (0.0,)
    return [Point(*values) for values in product(RATES, (0.0, 0.5), extras, (False, True))]


def grid_in_words() -> str:
    """For a note."""
    extras = "; ".join(
        f"{name}'s {what} {', '.join(f'{v:g}' for v in values)}" for name, (what, values) in EXTRAS.items()
    )
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    return f"rate {rates}; constant or falling like t^-0.5; last iterate or mean of all serves; {extras}"


def in_words(name: str, point: Point) -> str:
    """A point, for a row."""
    extra = f", {EXTRAS[name][0]} {point.extra:g}" if name in EXTRAS else ""
    return f"rate {point.rate:g}{' t^-0.5' if point.fade else ''}{extra}, {'mean' if point.mean_serves else 'last'}"


def features(X: np.ndarray) -> np.ndarray:
    """(n, 1 + d) with the intercept."""
    return np.ascontiguousarray(np.column_stack([np.ones(len(X)), X]))


def learned(name: str, point: Point, start: Start) -> list[tuple[float, np.ndarray]]:
    """Return the mean prequential loss and the final θ, of the last iterate and of the mean of all.

    The loss is inf, and θ NaN, if an optimizer diverges. `point.mean_serves` does not matter here.
    """
    rng = np.random.default_rng(0)
    n = len(start.y)
    losses, ends = np.empty((2, n)), np.empty((2, len(start.theta)))
    options = OPTIMIZERS.index(name), point.rate, point.fade, point.extra
    events = start.theta.copy(), start.K, start.W, start.y, rng.random(n), rng.normal(size=n)
    with np.errstate(all="ignore"):
        follow(*options, *events, losses, ends)
    return list(zip(losses.mean(axis=1).tolist(), ends, strict=True))


def regression(theta: np.ndarray, K: int, X: np.ndarray) -> np.ndarray:
    """m(x) = Σ_k g_k(x) Υ_k x at each row of X."""
    W = features(X)
    p = W.shape[1]
    logits = np.column_stack([W @ theta[: (K - 1) * p].reshape(K - 1, p).T, np.zeros(len(W))])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    means: np.ndarray = W @ theta[(K - 1) * p : (K - 1) * p + K * p].reshape(K, p).T
    return (shares * means).sum(axis=1)


def best_point(losses: Sequence[Sequence[float]]) -> int:
    """Return the index of the point of least mean loss over all streams; losses are (streams, points)."""
    return int(np.argmin(np.mean(np.array(losses), axis=0)))


def tried(start: Start, name: str, score: Callable[[np.ndarray], Any]) -> list[tuple[float, Any]]:
    """Compute the prequential loss and the score of the final parameters at each point of `grid`, in order."""
    found = []
    for point in grid(name):
        if not point.mean_serves:  # each run gives this point and the next
            found += [(loss, score(theta)) for loss, theta in learned(name, point, start)]
    return found
