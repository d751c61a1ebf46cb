"""The features of `curved`: those of the mixture, and products of two that say something about what a line leaves."""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.batch import collect_gram
from streammoe.types import FloatArray, IntArray

MOST_WITH_PRODUCTS = 66
"""Up to so many features, those of ten inputs, there are all products; with more, those of merit."""
MOST_FEATURES = 128
"""Most features at all."""


def linear(features: IntArray) -> IntArray:
    """Return the terms that are features as they are: products with the first one, which is 1."""
    return np.column_stack([np.zeros_like(features), features])


def features_of(R: FloatArray, terms: IntArray) -> FloatArray:
    """Return products of two features each, (n, P), of rows (n, p_v)."""
    first, second = terms.T
    # Unlike an index, `take` returns rows that are contiguous.
    products: FloatArray = np.take(R, first, axis=1)
    products *= np.take(R, second, axis=1)
    return products


def merits(R: FloatArray, residuals: FloatArray) -> FloatArray:
    """Return what each product of two features says about one output, (p, p): the score statistic of such a term.

    That is (Σ_i ρ_i z_i)² / Σ_i (ρ_i z_i)² of a product z, about 1 where it says nothing. A single row, however large,
    adds no more than 1.

    Args:
        R: (n, p) features.
        residuals: (n,) targets less their means, or indicators of a class less its probabilities; 0 in rows that do
            not count.
    """
    p = R.shape[1]
    pulls, spreads, nothing = np.empty((p, p)), np.empty((p, p)), np.zeros(p)
    collect_gram(R, residuals, 0.0, nothing, 1.0, pulls)
    collect_gram(R**2, residuals**2, 0.0, nothing, 1.0, spreads)
    return np.divide(pulls**2, spreads, out=np.zeros((p, p)), where=spreads > 0.0)


def terms_of(n_features: int, multiplied: IntArray, merit: FloatArray, n_outputs: int = 1) -> IntArray | None:
    """Return the terms of an expert that sees all features, and products of two of some; None if there are none.

    These are all, if they are few. Else they are those of the largest merit, no more than there are features to
    multiply, or than `MOST_WITH_PRODUCTS` leaves; but for squares, it is beyond what the best of so many products has
    by chance if none says anything.

    Args:
        n_features: number of features.
        multiplied: indexes of those that may be multiplied.
        merit: (p, p) merits of their products; above the diagonal it is not looked at.
        n_outputs: number of outputs of which these are sums.

    >>> terms_of(3, np.array([1, 2]), np.zeros((3, 3))).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 1], [2, 1], [2, 2]]
    >>> merit = np.diag(np.arange(12.0))
    >>> merit[9, 3] = 20.0
    >>> terms_of(12, np.arange(1, 12), merit)[-4:].tolist()
    [[9, 3], [9, 9], [10, 10], [11, 11]]
    """
    first, second = multiplied[np.array(np.tril_indices(len(multiplied)))]
    if n_features + len(first) > MOST_WITH_PRODUCTS:
        count = max(MOST_WITH_PRODUCTS - n_features, min(len(multiplied), MOST_FEATURES - n_features), 0)
        found = merit[first, second]
        best = np.argsort(-found, kind="stable")[:count]
        # What χ² of so many degrees of freedom exceeds once in N trials (Laurent and Massart 2000, Lemma 1).
        rare, more = math.log(len(first)), max(n_outputs, 1) - 1
        counts = (first == second) | (found > more + 2.0 * math.sqrt(more * rare) + 2.0 * rare)
        chosen = np.sort(best[counts[best]])
        first, second = first[chosen], second[chosen]
    products = np.column_stack([first, second])
    return np.concatenate([linear(np.arange(n_features)), products]) if len(products) else None
