"""One expert that sees squares and products of inputs too: for regions that are curved, where a gate has flat edges.

It costs as much as the mixture or more, and on many streams is of no use. So it leaves as soon as its weight has been
negligible for long, unless it was asked for, and comes back on trial where the average is no longer trusted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine import mixture
from streammoe.engine.members.contract import features_of
from streammoe.engine.members.on_trial import NEGLIGIBLE, PATIENCE
from streammoe.engine.members.one_expert import STEP, OneExpert, blank_expert, restored_expert
from streammoe.engine.mixture import Scores
from streammoe.engine.state import MMState, widen
from streammoe.experts import Family
from streammoe.types import AnyArray, FloatArray, IntArray

MOST_WITH_PRODUCTS = 66
"""Most features with the products of two inputs; beyond, there are squares alone. Ten inputs have so many."""
MOST_FEATURES = 128
"""Most features at all."""
EVENTS_PER_FEATURE = 8
"""How many events a step spans for each feature, at least."""
GROWTH = 2
"""It comes back at so many times the events at which it has left, at the earliest."""
AT_ONCE = 20_000_000
"""Multiply-adds for which events of a warm-up are learned when it begins; they take some 10 ms."""
ROWS_AT_ONCE = 4096
"""Number of rows whose features are in memory at once."""


class Curved(OneExpert):
    """An expert of the mixture's family whose features are products of two features of the mixture's experts.

    Args:
        family: family of the experts.
        bound: the curvature bound of a categorical expert.
        state: its state.
        terms: (P, 2) the factors of each of its features; those of the linear ones are (0, j), and come first.
        is_asked_for: whether it stays however little it helps.
        notes: (2,) number of reviews in a row at which its weight was negligible, and the event count at which it last
            left, or 0.
    """

    name = "curved"
    rests = True
    terms: IntArray

    def __init__(
        self, family: Family, bound: str, state: MMState, terms: IntArray, *, is_asked_for: bool, notes: IntArray
    ) -> None:
        super().__init__(family, bound, state)
        self.terms = terms
        self.is_on_probation = not is_asked_for
        self._notes = notes

    @property
    def step(self) -> float:
        n_features: int = self.state.experts.shape[2]
        return min(STEP, 1.0 / (EVENTS_PER_FEATURE * n_features))

    def learn(self, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int) -> Scores:
        runs = []
        for start in range(0, len(R), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            runs.append(super().learn(features_of(R[part], self.terms), Y[part], weights[part], n_outputs=n_outputs))
        return mixture.concatenated(runs)

    def stays(self, weight: float, n: int) -> bool:
        idle, left = self._notes.tolist()
        idle = idle + 1 if weight < NEGLIGIBLE else 0
        stays: bool = idle < PATIENCE
        self._notes = np.array([idle, left] if stays else [0, n], dtype=np.int64)
        return stays

    def comes_back(self, n: int) -> bool:
        return n >= GROWTH * int(self._notes[1])

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """See new features as they are; their values have not been scaled, so their products might be enormous."""
        self.terms = expert_at[self.terms]
        self.see(linear(np.setdiff1d(np.arange(n_features), expert_at)))

    def see(self, terms: IntArray) -> None:
        before = len(self.terms)
        known = set(map(tuple, self.terms.tolist()))
        new = [term for term in terms.tolist() if tuple(term) not in known][: MOST_FEATURES - before]
        if new:
            self.terms = np.concatenate([self.terms, np.array(new, dtype=np.int64)])
            at = np.arange(before)
            self._continue_with(widen(self.state, np.empty(0, dtype=np.int64), 0, at, before + len(new)))

    def arrays(self) -> Mapping[str, AnyArray]:
        return {**super().arrays(), f"{self.name}_terms": self.terms, f"{self.name}_notes": self._notes}

    @property
    def n_affordable(self) -> int:
        """Number of rows that it may learn in one call."""
        return AT_ONCE // len(self.terms) ** 2

    @classmethod
    def beginning(
        cls, family: Family, bound: str, mixture_state: MMState, terms: IntArray, *, is_asked_for: bool
    ) -> Curved:
        """Return the expert that has learned nothing, and predicts like the prior of a mixture."""
        first, second = terms.T
        is_linear = first == 0
        experts = np.zeros((len(mixture_state.prior_experts), len(terms)))
        experts[:, is_linear] = mixture_state.prior_experts[:, second[is_linear]]
        gram = np.ones(len(terms))
        gram[is_linear] = mixture_state.prior_expert_gram[second[is_linear]]
        state = blank_expert(family, gram, experts, mixture_state.prior_variances)
        return cls(family, bound, state, terms, is_asked_for=is_asked_for, notes=np.zeros(2, dtype=np.int64))

    @classmethod
    def restored(
        cls,
        family: Family,
        bound: str,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        n_outputs: int,
        p_v: int,
        is_asked_for: bool,
    ) -> Curved:
        """Restore an expert from the arrays that `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        place = f"{prefix}{cls.name}"
        terms = array_of(given, f"{place}_terms", "int64", (None, 2), least=0, most=p_v - 1)
        require(
            0 < len(terms) <= MOST_FEATURES, f"array {place}_terms holds {len(terms)} of 1 to {MOST_FEATURES} features"
        )
        notes = array_of(given, f"{place}_notes", "int64", (2,), least=0, most=LARGEST_COUNT)
        require(notes[0] < PATIENCE, f"array {place}_notes holds {notes[0]} reviews, but it leaves at {PATIENCE}")
        state = restored_expert(given, place, family, n_outputs=n_outputs, p_v=len(terms))
        return cls(family, bound, state, terms.copy(), is_asked_for=is_asked_for, notes=notes.copy())


def linear(features: IntArray) -> IntArray:
    """Return the terms that are features as they are: products with the first one, which is 1."""
    return np.column_stack([np.zeros_like(features), features])


def terms_of(n_features: int, curved: IntArray) -> IntArray | None:
    """Return the terms of an expert that sees all features, and the products of two of some; None if they are too many.

    Args:
        n_features: number of features.
        curved: indexes of those that are multiplied.

    >>> terms_of(3, np.array([1, 2])).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]]
    >>> [terms.shape for p in (10, 11, 63) for terms in [terms_of(1 + p, np.arange(1, 1 + p))]]
    [(66, 2), (23, 2), (127, 2)]
    """
    q = len(curved)
    products = np.empty((0, 2), dtype=np.int64)
    if 0 < n_features + q * (q + 1) // 2 <= MOST_WITH_PRODUCTS:
        products = curved[np.column_stack(np.triu_indices(q))]
    elif n_features + q <= MOST_FEATURES:
        products = np.column_stack([curved, curved])
    return np.concatenate([linear(np.arange(n_features)), products]) if len(products) else None
