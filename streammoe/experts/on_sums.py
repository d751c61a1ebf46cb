"""M-steps from sums over rows: rows may lie in several parts, of which only the sums are ever brought together.

A fit on sums is a generator: it yields where it wants the sums, and is sent them. Sums of parts are added.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from streammoe.kernels.batch import NEWTON_LIMIT, SETTLED, collect_gram, prior_quadratic, softmax_gradient, softmax_sums
from streammoe.kernels.linalg import invert_spd
from streammoe.types import FloatArray

HALVINGS = 12
"""Most steps tried in a round, each half as long as the one before."""
LAST = 1e-11
"""A Newton step that promises less gain, in units of the objective, is the last one. It is not checked: whether so
little is gained would depend on how the sums are rounded, and with it on the parts."""
Sums: TypeAlias = tuple[FloatArray, ...]
"""Sums over rows; of two parts, the arrays are added one by one."""
T = TypeVar("T")


def sent(fit: Generator[T, Sums, None], sums: Sums) -> T | None:
    """Send a fit its sums; return where it wants the next ones, None if it has ended."""
    try:
        return fit.send(sums)
    except StopIteration:
        return None


class SoftmaxPrior(NamedTuple):
    """The prior of a softmax regression, as `streammoe.kernels.batch.fit_softmax` takes it."""

    strength: float
    gram: FloatArray
    """(p,)"""
    target: FloatArray
    """(N, p)"""
    curvature: tuple[float, float]


def sums_of_softmax(coefficients: FloatArray, targets: FloatArray, X: FloatArray, reference: int) -> Sums:
    """Return what a step of `softmax_fit` at (N, p) coefficients needs, without the prior; arguments as there.

    The objective (1,), its gradient (N, p), and a matrix: up to `NEWTON_LIMIT` parameters minus the Hessian, of which
    the lower triangle is filled, (N p, N p); beyond, the Gram matrix of the features under the rows' weights, (p, p).
    """
    free, p = coefficients.shape
    is_newton = free * p <= NEWTON_LIMIT
    gradient = np.zeros((free, p))
    matrix = np.zeros((free * p, free * p) if is_newton else (p, p))
    objective = softmax_sums(coefficients, targets, X, reference, is_newton, gradient, matrix)
    if not is_newton:
        masses = targets[:, reference].copy()
        for k in range(free + 1):
            if k != reference:
                masses += targets[:, k]
        collect_gram(X, masses, 0.0, np.zeros(p), 1.0, matrix)
    return np.array([objective]), gradient, matrix


def softmax_fit(coefficients: FloatArray, prior: SoftmaxPrior, rounds: int) -> Generator[FloatArray, Sums, None]:
    """Do what `streammoe.kernels.batch.fit_softmax` does, in place, on sums; yields coefficients to have them at.

    Near the end there may be a step more or less, since this one does not depend on rounding. Where that takes
    conjugate gradients, this takes majorization steps, which lead to the same end.
    """
    free, p = coefficients.shape
    if not free:
        return
    is_newton = free * p <= NEWTON_LIMIT
    old, gradient, matrix = _with_prior(coefficients, prior, (yield coefficients), is_newton=is_newton)
    for _ in range(rounds):
        inverse = np.empty_like(matrix)
        invert_spd(matrix, inverse, np.empty_like(matrix))
        if is_newton:
            move = np.einsum("ij,j->i", inverse, gradient.ravel()).reshape(free, p)
            if 0.5 * float(np.sum(move * gradient)) <= LAST * abs(old):
                coefficients += move
                return
        else:
            move = np.einsum("ij,kj->ki", inverse, gradient)
            move = prior.curvature[0] * (move + prior.curvature[1] * move.sum(axis=0))
        step = 1.0
        for _half in range(HALVINGS):
            trial = coefficients + step * move
            new, gradient, matrix = _with_prior(trial, prior, (yield trial), is_newton=is_newton)
            if new >= old:
                break
            step *= 0.5
        if not new >= old:
            return
        coefficients[:] = trial
        if new - old <= SETTLED * abs(new):
            return
        old = new


def _with_prior(
    coefficients: FloatArray, prior: SoftmaxPrior, sums: Sums, *, is_newton: bool
) -> tuple[float, FloatArray, FloatArray]:
    """Return the objective, its gradient and the matrix of a step, with the prior."""
    strength, gram, target, curvature = prior
    (objective,), gradient, matrix = sums
    free, p = coefficients.shape
    total = float(objective) - 0.5 * strength * prior_quadratic(coefficients, target, gram, curvature)
    by_prior = np.empty_like(coefficients)
    no_rows = np.zeros((0, free + 1)), np.zeros((0, p))
    softmax_gradient(coefficients, strength, gram, target, curvature, *no_rows, free, by_prior)
    if is_newton:
        mix = curvature[1] / (1.0 + curvature[1] * free)
        bend = np.kron((np.eye(free) - mix) / curvature[0], np.diag(strength * gram))
    else:
        bend = np.diag(strength * gram)
    return total, gradient + by_prior, matrix + bend
