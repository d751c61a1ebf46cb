"""Steps from sums over rows, which may lie in several parts: sums of parts are added one by one."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from streammoe.kernels.batch import collect_gram, is_conjugate, prior_quadratic, softmax_gradient, softmax_sums
from streammoe.kernels.linalg import invert_spd
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.types import FloatArray

Sums: TypeAlias = tuple[FloatArray, ...]
"""Sums over rows; of two parts, the arrays are added one by one."""


class SoftmaxPrior(NamedTuple):
    """The prior of a softmax regression, as `streammoe.kernels.batch.fit_softmax` takes it."""

    strength: float
    gram: FloatArray
    """(p,)"""
    target: FloatArray
    """(N, p)"""
    curvature: tuple[float, float]

    def penalty(self, coefficients: FloatArray) -> float:
        """Return what it takes from the objective."""
        return 0.5 * self.strength * prior_quadratic(coefficients, self.target, self.gram, self.curvature)

    def gradient(self, coefficients: FloatArray) -> FloatArray:
        """Return the gradient of its part of the objective, (N, p)."""
        free, p = coefficients.shape
        found = np.empty_like(coefficients)
        no_rows = np.zeros((0, free + 1)), np.zeros((0, p))
        softmax_gradient(coefficients, self.strength, self.gram, self.target, self.curvature, *no_rows, free, found)
        return found


def gate_prior(prior: Prior, options: LearningOptions, gate: FloatArray) -> SoftmaxPrior:
    """Return the prior of a gate, (K − 1, p_w), which draws it to 0."""
    return SoftmaxPrior(prior.strength, prior.gate_gram, np.zeros_like(gate), options.curvature)


def sums_of_softmax(coefficients: FloatArray, targets: FloatArray, X: FloatArray, reference: int) -> Sums:
    """Return what `softmax_step` at (N, p) coefficients needs of rows; arguments as in `fit_softmax`.

    The gradient (N, p), and a matrix: up to `NEWTON_LIMIT` parameters minus the Hessian, of which the lower triangle is
    filled, (N p, N p); beyond, the Gram matrix of the features under the rows' weights, (p, p).
    """
    free, p = coefficients.shape
    is_newton = not is_conjugate(free, p)
    gradient = np.zeros((free, p))
    matrix = np.zeros((free * p, free * p) if is_newton else (p, p))
    softmax_sums(coefficients, targets, X, reference, is_newton, gradient, matrix)
    if not is_newton:
        collect_gram(X, targets.sum(axis=1), 0.0, np.zeros(p), 1.0, matrix)
    return gradient, matrix


def softmax_step(coefficients: FloatArray, prior: SoftmaxPrior, sums: Sums) -> None:
    """Take a Newton step in place; of more than `NEWTON_LIMIT` parameters, one by the bound of the curvature."""
    free, p = coefficients.shape
    if not free:
        return
    gradient, matrix = sums[0] + prior.gradient(coefficients), sums[1]
    scale, mix = prior.curvature
    is_newton = not is_conjugate(free, p)
    bend = np.diag(prior.strength * prior.gram)
    if is_newton:
        bend = np.kron((np.eye(free) - mix / (1.0 + mix * free)) / scale, bend)
    inverse = np.empty_like(matrix)
    invert_spd(matrix + bend, inverse, np.empty_like(matrix))
    if is_newton:
        coefficients += np.einsum("ij,j->i", inverse, gradient.ravel()).reshape(free, p)
    else:
        move = np.einsum("ij,kj->ki", inverse, gradient)
        coefficients += scale * (move + mix * move.sum(axis=0))
