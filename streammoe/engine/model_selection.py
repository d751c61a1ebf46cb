"""Selection of the number of experts: the fit that costs least, by a Bayesian criterion."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.em import Buffer
from streammoe.engine.interruption import interruptible
from streammoe.engine.jobs import Job
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.state import UnsoundError
from streammoe.experts import Family
from streammoe.kernels.state import MMState

PATIENCE = 2
"""Stop trying more experts once so many numbers in a row have cost more than the best."""


def n_parameters(family: Family, shape: Shape) -> int:
    """Count the free parameters of a mixture: (K−1) p_w for the gate, N p_v and (co)variances for each expert."""
    K, N, p_w, p_v = shape
    variances = family.variances_of(np.ones(family.n_variances(N)), 1)[0]
    # A covariance matrix is symmetric.
    free = variances.size if variances.ndim < 2 else len(variances) * (len(variances) + 1) // 2
    return (K - 1) * p_w + K * (N * p_v + free)


def cheapest(
    family: Family,
    buffer: Buffer,
    fit: Callable[[int], Job[MMState]],
    largest: Shape,
    n_outputs: int,
) -> Job[tuple[MMState, dict[int, float]]]:
    """Fit 1 to so many experts; return the best of the fits, and by how many nats each number costs more.

    A fit costs −log-likelihood of the buffer, plus what the division of the prior gained, plus ½ log n for each
    parameter: half a Bayesian information criterion.

    Args:
        family: family of the experts.
        buffer: the rows.
        fit: called once for each number of experts, from 1 up.
        largest: the size of the largest mixture, padding excluded.
        n_outputs: Q, or the number of classes.

    Raises:
        UnsoundError: none of the fits is finite.
    """
    n = len(buffer.W)
    found: dict[int, tuple[float, MMState]] = {}
    problem = UnsoundError(["likelihood of every fit"])
    best = 0
    for n_experts in range(1, largest.n_experts + 1):
        shape = largest._replace(n_experts=n_experts)
        try:
            state = yield from fit(n_experts)
        except UnsoundError as error:
            problem = error
            continue
        work = n * row_cost(family, shape)
        theta = mixture.served_parameters(state)
        scores, _ = interruptible(work, mixture.score, family, theta, buffer.W, buffer.R, buffer.Y, n_outputs=n_outputs)
        yield work
        loss = float(np.sum(buffer.weights * scores.losses)) + n * prior_gain(state)
        penalty = 0.5 * math.log(n) * n_parameters(family, shape)
        found[n_experts] = loss + penalty, state
        best = min(found, key=lambda K: found[K][0])
        if len([K for K in found if best < K]) >= PATIENCE:
            break
    if not found:
        raise problem
    least, state = found[best]
    return state, {K: cost - least for K, (cost, _) in found.items()}
