"""Expert diagnostics, and split-and-merge moves of idle experts.

An idle expert is merged into its nearest neighbor and becomes one half of another. The mixture as a whole forgets
nothing: with M = ΥR (L = −ACR for categorical experts) and T = mσ² + ΥRΥᵀ, the sums of R, M (or L), T and m over all
experts are the same before and after (docs/experts.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streammoe.experts import Family, Parameters
from streammoe.kernels.linalg import invert_spd
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import BoolArray, FloatArray, IntArray

STARVED_BELOW = 0.1
"""An expert whose share is below this, divided by K, is starved."""
DUPLICATE_BELOW = 0.02
"""Divergence in nats below which two experts are duplicates."""


class Diagnostics(NamedTuple):
    """The condition of K experts, one entry each."""

    shares: FloatArray
    """m_k / Σ m."""
    losses: FloatArray
    """Mean −log e_k(y|x) over the events that the expert is responsible for, in the model's own units."""
    nearest: IntArray
    """The most similar other expert; −1 if there is none."""
    divergences: FloatArray
    """Mean symmetric divergence from the nearest expert in nats; infinite if there is none."""
    starved: BoolArray
    duplicate: BoolArray
    """Whether it duplicates an expert with a larger share; neither of them is starved."""


def diagnose(family: Family, state: MMState, options: LearningOptions) -> Diagnostics:
    """Diagnose every expert of a state, in O(K² p²)."""
    K = len(state.masses)
    shares = state.masses / state.masses.sum()
    apart = family.divergences(state, options)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1) if K > 1 else np.array([-1])
    starved = shares < STARVED_BELOW / K
    ranks = np.argsort(np.argsort(-shares, kind="stable"), kind="stable")
    alike = (apart < DUPLICATE_BELOW) & ~starved & (ranks < ranks[:, None])
    return Diagnostics(
        shares,
        family.expert_losses(state),
        nearest,
        apart[np.arange(K), nearest] if K > 1 else np.array([np.inf]),
        starved if K > 1 else np.zeros(1, np.bool_),
        alike.any(axis=1) & ~starved,
    )


def idle(found: Diagnostics) -> int | None:
    """Return the expert that is needed least, if any is idle: the most starved one, or else the closest duplicate."""
    if found.starved.any():
        return int(np.where(found.starved, found.shares, np.inf).argmin())
    if found.duplicate.any():
        return int(np.where(found.duplicate, found.divergences, np.inf).argmin())
    return None


def costliest(found: Diagnostics, expert: int) -> list[int]:
    """Rank all experts but one by what their loss in excess of the best one's costs the mixture, worst first."""
    others = [k for k in range(len(found.shares)) if k != expert]
    best = min(found.losses[others])
    cost = found.shares * (found.losses - best)
    return sorted(others, key=lambda k: (-cost[k], -found.shares[k], k))


ABSENT = 1e-4
"""Part of the usual mean square of a feature below which an expert's events do not have the feature."""
APART = 0.5
"""Distance that each half moves from the middle, in standard deviations of the expert."""
LOGITS_APART = 1.0
"""Like `APART`, for experts without variances, in logits."""


def reseeded(
    state: MMState, expert: int, *, heir: int, parent: int, rng: np.random.Generator, n_features: int, window: int
) -> MMState:
    """Return the state in which `expert` is one half of `parent`; `state` is not modified.

    Args:
        state: of two experts or more.
        expert: the expert to reseed.
        heir: another one, which takes over its statistics and its region in the gate.
        parent: the expert to split, any but `expert`.
        rng: source of the direction in which the halves separate.
        n_features: number of expert features, padding excluded.
        window: maximum number of iterates that the served average counts for from now on; about 1/γ.
    """
    decay = float(state.decay[0])
    grams = decay * state.expert_grams
    raw = Parameters(state.gate, state.experts, state.variances)
    served = Parameters(state.average_gate, state.average_experts, state.average_variances)
    masses = state.masses
    raw = _merged(raw, grams, masses, expert, heir)
    served = _merged(served, grams, masses, expert, heir)
    grams, masses = grams.copy(), masses.copy()
    for values in (grams, masses):
        values[heir] += values[expert]
        values[parent] *= 0.5
        values[expert] = values[parent]
    usual = state.prior_expert_gram[:n_features]
    direction = _unit_direction(grams[parent], float(masses[parent]), usual, rng.normal(size=n_features))
    signs: FloatArray = rng.normal(size=state.experts.shape[1:2])
    raw = _split(raw, parent, expert, direction, signs)
    served = _split(served, parent, expert, direction, signs)
    inverses = state.expert_inverses.copy()
    stored = grams / decay
    for at in {heir, parent, expert}:
        invert_spd(stored[at], inverses[at], np.empty_like(stored[at]))
    return state._replace(
        n=state.n.copy(),
        n_average=np.minimum(state.n_average, window),
        decay=state.decay.copy(),
        prior_weight=state.prior_weight.copy(),
        gate=raw.gate,
        gate_gram=state.gate_gram.copy(),
        gate_inverse=state.gate_inverse.copy(),
        experts=raw.experts,
        variances=raw.variances,
        masses=masses,
        expert_grams=stored,
        expert_inverses=inverses,
        average_gate=served.gate,
        average_experts=served.experts,
        average_variances=served.variances,
        group=state.group.copy(),
    )


def _unit_direction(gram: FloatArray, mass: float, usual: FloatArray, weights: FloatArray) -> FloatArray:
    """Return a direction along which an expert's events have a mean square of 1, or zeros if they have no features.

    Args:
        gram: the expert's Gram matrix.
        mass: its mass.
        usual: the features' usual mean squares.
        weights: of the features, in units of their own root mean squares. Those that are next to zero in the expert's
            events, as a prior of 0 allows, have no part in the direction: it would be huge where they come back.
    """
    squares = np.diagonal(gram)[: len(weights)]
    has_part = squares > ABSENT * mass * usual
    direction = np.zeros(len(gram))
    direction[: len(weights)] = np.divide(weights, np.sqrt(squares), out=np.zeros(len(weights)), where=has_part)
    size = float(np.einsum("i,ij,j", direction, gram, direction)) / mass if mass > 0.0 else 0.0
    return direction / math.sqrt(size) if size > 0.0 else np.zeros(len(gram))


def _merged(theta: Parameters, grams: FloatArray, masses: FloatArray, expert: int, heir: int) -> Parameters:
    """Return parameters whose `heir` also represents `expert`, which is not modified."""
    pair = [heir, expert]
    total = float(masses[pair].sum())
    # Two without any mass, which a prior of 0 allows, share equally.
    shares = masses[pair] / total if total > 0.0 else np.full(2, 0.5)
    gram = grams[heir] + grams[expert]
    inverse = np.empty_like(gram)
    invert_spd(gram, inverse, np.empty_like(gram))
    experts, variances = theta.experts.copy(), theta.variances.copy()
    # Υ_h + (Υ_k − Υ_h) R_k R⁻¹, which is exact where R_k has nearly vanished.
    experts[heir] += np.einsum(
        "qi,ij,jl->ql", theta.experts[expert] - theta.experts[heir], grams[expert], inverse, optimize=False
    )
    moved = theta.experts[pair] - experts[heir]
    full = variances.ndim == 3
    if variances.shape[1]:
        spread = np.einsum("kqi,kij,kcj->qc", moved, grams[pair], moved)
        spread = spread / total if total > 0.0 else np.zeros_like(spread)
        inside = np.einsum("k,k...->...", shares, theta.variances[pair])
        # Only rounding can make this negative: Gram matrices of extreme values are not quite positive.
        far = np.diagonal(spread)
        variances[heir] = inside + ((spread if (far >= 0.0).all() else 0.0) if full else np.maximum(far, 0.0))
    logits = np.vstack([theta.gate, np.zeros((1, theta.gate.shape[1]))])
    # log(exp a + exp b) ≥ Σ π (· − log π), and equal where the two share as their masses do.
    logits[heir] = np.einsum("k,ki->i", shares, logits[pair])
    logits[heir, 0] -= sum(share * math.log(share) for share in shares.tolist() if share > 0.0)
    return Parameters(logits[:-1] - logits[-1], experts, variances)


def _split(theta: Parameters, parent: int, expert: int, direction: FloatArray, signs: FloatArray) -> Parameters:
    """Return parameters whose `parent` and `expert` are halves of the former parent, on either side of it.

    Along `direction` the features of the parent's events have a mean square of 1; `signs` weighs the rows.
    """
    experts, variances = theta.experts.copy(), theta.variances.copy()
    own = theta.variances[parent]
    if variances.ndim == 3:
        # Σ − a aᵀ stays positive definite, since aᵀΣ⁻¹a = APART².
        weighed = signs / np.sqrt(np.diagonal(own))
        pull = np.einsum("qc,c->q", own, weighed)
        steps = APART * pull / math.sqrt(float(np.einsum("q,q", weighed, pull)))
        left = own - np.outer(steps, steps)
    elif variances.shape[1]:
        steps = APART * np.sqrt(own) * np.where(signs < 0.0, -1.0, 1.0)
        left = own * (1.0 - APART * APART)
    else:
        steps = LOGITS_APART * signs / math.sqrt(float(np.einsum("q,q", signs, signs)))
        left = own
    experts[expert] = experts[parent] - np.outer(steps, direction)
    experts[parent] += np.outer(steps, direction)
    variances[parent] = variances[expert] = left
    logits = np.vstack([theta.gate, np.zeros((1, theta.gate.shape[1]))])
    logits[parent, 0] -= math.log(2.0)
    logits[expert] = logits[parent]
    return Parameters(logits[:-1] - logits[-1], experts, variances)
