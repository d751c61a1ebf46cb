"""Categorical experts: multinomial logistic regression.

Each expert is the gate's own filter once more, with the classes in place of the experts and the responsibility as the
event's weight ([MM] Algorithm 3; docs/algorithm.md has the derivation). Targets are class indexes, as floats, so that
NaN can say that there is none; the first class is the reference.

Shapes: K experts, M classes, p_w and p_v features of gate and experts; coefficients (K, M−1, p_v).
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import allocating, hook, inline, jit
from streammoe.kernels.event import event
from streammoe.kernels.linalg import VANISHED, dot
from streammoe.kernels.noise import Noise, Shape, scoring
from streammoe.kernels.portfolio import MOST
from streammoe.kernels.softmax import adaptive_weight, residual_of_softmax, softmax, step_softmax
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray

LEAST_PROBABILITY = 1e-300
"""Where there is none, its logarithm is that of this."""
UNLIKELY = 1e-250
"""Below this the likelihood is computed again in log space, where it cannot vanish."""


@inline
def log_constant(shape: Shape, M: int) -> float:  # noqa: ARG001 - every noise is called with the same arguments
    """Nothing that `evaluate` needs."""
    return 0.0


@inline
def scratch_rows(M: int) -> int:  # noqa: ARG001 - same
    """Nor does it need scratch."""
    return 0


@hook
def evaluate(
    shape: Shape,  # noqa: ARG001 - same
    constant: float,  # noqa: ARG001 - same
    scratch: FloatArray,  # noqa: ARG001 - same
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,  # noqa: ARG001 - same
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    probabilities: FloatArray,
    tau: FloatArray,
) -> float:
    """As `streammoe.kernels.noise.Noise` asks, with e_k(m|x) for means."""
    K, M = probabilities.shape
    for k in range(K - 1):
        shares[k] = dot(gate[k], w)
    shares[K - 1] = 0.0
    if K > 1:
        softmax(shares)
    else:
        shares[0] = 1.0
    for k in range(K):
        probabilities[k, 0] = 0.0
        for m in range(1, M):
            probabilities[k, m] = dot(experts[k, m - 1], r)
        softmax(probabilities[k])
    if math.isnan(y[0]):
        for k in range(K):
            tau[k] = shares[k]
        return np.nan
    label = int(y[0])
    total = 0.0
    for k in range(K):
        tau[k] = shares[k] * probabilities[k, label]
        total += tau[k]
    if total < UNLIKELY:
        return unlikely(gate, experts, w, r, label, tau)
    inverse = 1.0 / total
    for k in range(K):
        tau[k] *= inverse
    return -math.log(total)


@allocating
def unlikely(
    gate: FloatArray, experts: FloatArray, w: FloatArray, r: FloatArray, label: int, joint: FloatArray
) -> float:
    """Write the responsibilities of an event that the model holds for next to impossible; return −log s(y|x)."""
    K, free = experts.shape[0], experts.shape[1]
    logits = np.zeros(free + 1)
    log_shares = np.zeros(K)
    for k in range(K - 1):
        log_shares[k] = dot(gate[k], w)
        joint[k] = log_shares[k]
    joint[K - 1] = 0.0
    log_gate = softmax(joint)
    largest: float = -np.inf
    for k in range(K):
        logits[0] = 0.0
        for m in range(free):
            logits[m + 1] = dot(experts[k, m], r)
        logit = logits[label]
        joint[k] = log_shares[k] - log_gate + logit - softmax(logits)
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        joint[k] = math.exp(joint[k] - largest)
        total += joint[k]
    for k in range(K):
        joint[k] /= total
    return -largest - math.log(total)


@hook
def trust(
    shape: Shape,  # noqa: ARG001 - same
    tau: FloatArray,  # noqa: ARG001 - same
    scratch: FloatArray,  # noqa: ARG001 - same
    trusted: FloatArray,  # noqa: ARG001 - same
    M: int,  # noqa: ARG001 - same
) -> bool:
    """Nothing to note: every event counts alike."""
    return False


@hook
def step_experts(
    state: MMState,
    options: LearningOptions,
    keep: float,
    fresh: float,
    amount: float,
    tau: FloatArray,
    trusted: FloatArray,  # noqa: ARG001 - same
    probabilities: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gain: FloatArray,
    push: FloatArray,
) -> None:
    """As `streammoe.kernels.noise.Noise` asks."""
    K, M = probabilities.shape
    label = int(y[0])
    for k in range(K):
        if tau[k] == 0.0:
            state.masses[k] = max(keep * state.masses[k], VANISHED)
            continue
        size = amount * tau[k]
        weight = size
        if options.adaptive:
            weight *= adaptive_weight(probabilities[k])
        for m in range(1, M):
            push[m - 1] = probabilities[k, m]
        if label > 0:
            push[label - 1] -= 1.0
        step_softmax(
            state.experts[k],
            state.expert_grams[k],
            state.expert_inverses[k],
            r,
            push,
            gain,
            weight,
            size,
            options.expert_curvature,
        )
        state.masses[k] = max(keep * state.masses[k] + fresh * tau[k], VANISHED)


@hook
def step_alone(
    state: MMState,
    options: LearningOptions,
    keep: float,
    fresh: float,
    amount: float,
    tau: FloatArray,
    trusted: FloatArray,
    probabilities: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gain: FloatArray,
    push: FloatArray,
) -> None:
    """As `step_experts`, of a single expert: a class of probability e, where c = −log e > 3, counts 3/c.

    This majorizes the loss 3 (1 + log(c/3)) there, as Student's t does for numbers. Far from the others a class that is
    surely wrong would otherwise move the coefficients of squares more than the many events before it.
    """
    cost = -math.log(max(probabilities[0, int(y[0])], LEAST_PROBABILITY))
    share = MOST / max(cost, MOST)
    step_experts(state, options, keep, share * fresh, share * amount, tau, trusted, probabilities, r, y, gain, push)


@inline
def top_up(state: MMState, k: int, share: float, old: FloatArray) -> None:
    """Nothing to top up: there are no variances."""


@inline
def residual_of_expert(
    state: MMState,
    options: LearningOptions,
    k: int,
    event_weight: float,
    tau: FloatArray,
    trusted: FloatArray,  # noqa: ARG001 - same
    probabilities: FloatArray,
    r: FloatArray,
    y: FloatArray,
    linear: FloatArray,
    push: FloatArray,
    residual: FloatArray,
    at: int,
    square: float,
    share: float,
) -> tuple[int, float]:
    """As `streammoe.kernels.noise.Noise` asks; the blocks are R, linear part, mass."""
    label = int(y[0])
    amount = event_weight * tau[k]
    for m in range(1, probabilities.shape[1]):
        push[m - 1] = amount * (probabilities[k, m] - (m == label))
    bent = amount * adaptive_weight(probabilities[k]) if options.adaptive else amount
    at, more = residual_of_softmax(
        state.experts[k],
        state.expert_grams[k],
        state.decay[0],
        r,
        push,
        bent,
        options.expert_curvature,
        linear,
        residual,
        at,
        share,
    )
    entry = amount - state.masses[k]
    residual[at] += share * (entry - residual[at])
    return at + 1, square + (more + entry * entry)


CATEGORICAL = Noise(
    log_constant,
    scratch_rows,
    evaluate,
    trust,
    step_experts,
    top_up,
    residual_of_expert,
)
score_rows = scoring(CATEGORICAL, __name__)
learn = event(CATEGORICAL, CATEGORICAL._replace(step_experts=step_alone), __name__, 0)


@jit
def expected_entropy(expert: FloatArray, gram: FloatArray, draws: FloatArray) -> float:
    """The mean entropy of softmax(0, C r) over normal r whose second moments are those of a Gram matrix.

    Args:
        expert: (M−1, p).
        gram: (p, p), any multiple of E[r rᵀ], the first entry of r being 1.
        draws: (S, p) standard normal.
    """
    p = gram.shape[0]
    factor = np.zeros((p, p))
    # The Cholesky factor of E[r rᵀ] has the mean in its first column, and the covariance's factor beside it.
    for i in range(p):
        for j in range(i + 1):
            left = gram[i, j] / gram[0, 0]
            for m in range(j):
                left -= factor[i, m] * factor[j, m]
            if i > j:
                factor[i, j] = left / factor[j, j] if factor[j, j] > 0.0 else 0.0
            elif left > VANISHED:
                factor[i, i] = math.sqrt(left)
    r = np.empty(p)
    probabilities = np.empty(expert.shape[0] + 1)
    total = 0.0
    for draw in draws:
        for i in range(p):
            r[i] = factor[i, 0]
            for j in range(1, i + 1):
                r[i] += factor[i, j] * draw[j]
        probabilities[0] = 0.0
        for m in range(expert.shape[0]):
            probabilities[m + 1] = dot(expert[m], r)
        softmax(probabilities)
        for probability in probabilities:
            if probability > 0.0:
                total -= probability * math.log(probability)
    mean: float = total / draws.shape[0]
    return mean
