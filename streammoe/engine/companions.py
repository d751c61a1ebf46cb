"""Further single experts of a warm-up, which predict together with the one expert.

While events are few for each coefficient the one expert is too sure of itself, and where regions are curved it is never
right. So up to three others learn the same events: one believes that its coefficients are small, one of classes has
nothing but an intercept, and one sees squares and products of inputs. They are trusted like the members of a portfolio,
by discounted likelihood, so that together they predict hardly worse than the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine import mixture, trust
from streammoe.engine.bound_mixture import BoundMixture, one_expert
from streammoe.engine.members.contract import Predictor, features_of
from streammoe.engine.members.curved import MOST_FEATURES, linear
from streammoe.engine.members.floor import INTERCEPT
from streammoe.engine.mixture import Scores
from streammoe.engine.portfolio import combined_scores
from streammoe.engine.state import MMState, copy_state, is_finite, restored_state, state_arrays, widen, with_class
from streammoe.experts import Family
from streammoe.schedules import Power, Schedule
from streammoe.types import AnyArray, FloatArray, IntArray

MODEST, CONSTANT, CURVED = "modest", "constant", "curved"
PREFIX = "warmup."
TRUST = f"{PREFIX}trust"
"""The array of the weights."""
SURPRISE = f"{PREFIX}surprise"
STRENGTH = 5.0
"""Weight of their prior in events; the one expert's is 1."""
CLASS_STEPS = Power(alpha=0.7)
"""Steps of those that predict classes: the one expert's, of alpha 0.5, forget sooner."""


class Companion:
    """A single expert of the family, without a gate.

    Args:
        name: which of them it is.
        family: family of the experts.
        state: its state.
        terms: (P, 2) factors of each of its features; None if it sees those of the one expert.
    """

    def __init__(self, name: str, family: Family, state: MMState, terms: IntArray | None) -> None:
        self.name = name
        self.state = state
        self.terms = terms
        self._family = family
        self._bound: BoundMixture | None = None

    @classmethod
    def beginning(cls, name: str, family: Family, n_outputs: int, p_v: int, terms: IntArray | None) -> Companion:
        """Return one that has learned nothing."""
        state = mixture.random_start(
            family,
            n_experts=1,
            p_w=0,
            p_v=p_v if terms is None else len(terms),
            n_outputs=n_outputs,
            prior_strength=1.0,  # all of the prior counts; its strength is an option of the steps
            seed=0,
        )
        return cls(name, family, state, terms)

    @property
    def _schedule(self) -> Schedule:
        return self._family.warmup_schedule if self._family.is_metric else CLASS_STEPS

    @property
    def n_features(self) -> int:
        """Number of its features, padding included."""
        return int(self.state.experts.shape[2])

    def learn(self, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int, traced: bool) -> Scores:
        """Return the scores of rows, each from before it was learned; R are the features of the one expert.

        Raises:
            UnsoundError: a number is NaN or infinite; discard it.
        """
        bound = self._bound
        if bound is None or bound.candidate.state is not self.state:
            bound = self._bound = one_expert(self._family, self.state, self._schedule, STRENGTH, n_outputs)
        seen = R if self.terms is None else features_of(R, self.terms)
        return bound.learn(np.empty((len(R), 0)), seen, Y, weights, traced=traced)

    def widen(self, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features, of which `n_features` are not padding. Of new ones there are no products."""
        at, p = expert_at, p_v
        if self.terms is not None:
            if self.name != CURVED:
                return
            before = len(self.terms)
            new = linear(np.setdiff1d(np.arange(n_features), expert_at))[: MOST_FEATURES - before]
            self.terms = np.concatenate([expert_at[self.terms], new])
            at, p = np.arange(before), before + len(new)
        self.state = widen(self.state, np.empty(0, dtype=np.int64), 0, at, p)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of features of the one expert, padding excluded."""
        gamma = self._schedule(int(self.state.n[0]) + 1)
        # A single expert needs no random numbers.
        self.state = with_class(self.state, np.random.default_rng(0), n_features, gamma)

    def copy(self) -> Companion:
        """Return an independent copy."""
        return Companion(self.name, self._family, copy_state(self.state), self.terms)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        terms = {f"{PREFIX}{CURVED}_terms": self.terms} if self.name == CURVED and self.terms is not None else {}
        return {**terms, **state_arrays(self.state, f"{PREFIX}{self.name}")}


class Companions:
    """The companions of one expert.

    Attributes:
        members: the m companions.
        weights: (1 + m,) the weight of the density of the one expert, and of each of them, in the next prediction.
        surprise: (1,) see `kernels.portfolio.combine`.
    """

    def __init__(self, members: Sequence[Companion], weights: FloatArray, surprise: FloatArray) -> None:
        self.members = tuple(members)
        self.weights = weights
        self.surprise = surprise

    @classmethod
    def of(cls, family: Family, n_outputs: int, p_v: int, terms: IntArray | None = None) -> Companions:
        """Return those that have learned nothing.

        The frequencies of the classes are a guard in any unit. The mean of numbers is none: it may be likelier than a
        line whose variance is not known yet, and still predict worse.

        Args:
            family: family of the experts.
            n_outputs: Q, or the number of classes.
            p_v: number of features of the one expert, padding included.
            terms: features of the curved one; None if there is none.
        """
        kinds: dict[str, IntArray | None] = {MODEST: None}
        if not family.is_metric:
            kinds[CONSTANT] = INTERCEPT
        if terms is not None:
            kinds[CURVED] = terms
        members = [Companion.beginning(name, family, n_outputs, p_v, seen) for name, seen in kinds.items()]
        return cls(members, np.full(1 + len(members), 1.0 / (1 + len(members))), np.zeros(1))

    @property
    def states(self) -> Iterator[MMState]:
        """The state of each."""
        return (member.state for member in self.members)

    @property
    def widths(self) -> list[int]:
        """The number of features of each."""
        return [member.n_features for member in self.members]

    def learn(
        self, scores: Scores, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int, traced: bool
    ) -> Scores:
        """Return the combined scores of rows that the one expert has learned with these scores.

        Raises:
            UnsoundError: some of them leave one of them with NaN or infinity; discard all.
        """
        found = [each.learn(R, Y, weights, n_outputs=n_outputs, traced=traced) for each in self.members]
        return combined_scores([scores, *found], self.weights, self.surprise, weights, traced=traced)

    def predictors(self) -> list[Predictor]:
        """Return what each predicts by."""
        return [Predictor(mixture.served_parameters(member.state), member.terms) for member in self.members]

    def widen(self, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features; see `Companion.widen`."""
        for member in self.members:
            member.widen(expert_at, p_v, n_features)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; see `Companion.add_class`."""
        for member in self.members:
            member.add_class(n_features)

    def copy(self) -> Companions:
        """Return an independent copy."""
        return Companions([member.copy() for member in self.members], self.weights.copy(), self.surprise.copy())

    def is_finite(self) -> bool:
        """Return whether every number of theirs is finite."""
        return all(map(is_finite, self.states))

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        own = {name: each for member in self.members for name, each in member.arrays().items()}
        return {TRUST: self.weights, SURPRISE: self.surprise, **own}

    @classmethod
    def from_arrays(
        cls, family: Family, arrays: Mapping[str, AnyArray], *, n: int, n_outputs: int, p_v: int
    ) -> Companions:
        """Restore those of one expert that has learned n events.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        terms = None
        if f"{PREFIX}{CURVED}_terms" in arrays:
            name = f"{PREFIX}{CURVED}_terms"
            terms = array_of(arrays, name, "int64", (None, 2), least=0, most=p_v - 1).copy()
            require(0 < len(terms) <= MOST_FEATURES, f"array {name} holds {len(terms)} of 1 to {MOST_FEATURES} terms")
        companions = cls.of(family, n_outputs, p_v, terms)
        for member in companions.members:
            place, width = f"{PREFIX}{member.name}", member.n_features
            member.state = restored_state(arrays, place, family, n_experts=1, n_outputs=n_outputs, p_w=0, p_v=width)
            counted = int(member.state.n[0])
            require(counted == n, f"array {place}.n counts {counted} events, but the one expert has learned {n}")
        companions.weights = trust.restored(arrays, TRUST, len(companions.weights))
        companions.surprise = trust.restored_surprise(arrays, SURPRISE)
        return companions
