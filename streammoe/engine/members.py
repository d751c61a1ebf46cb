"""The single experts that predict next to the mixture: a row of a table each.

Each learns every event from the first one on, `curved` from when it joins. Only `series` and `curved`, the costliest,
may rest. docs/learning.md measures what most are worth, docs/real-streams.md what `series` is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import attrgetter
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.bound_mixture import BoundMixture
from streammoe.engine.mixture import Candidate, Scores, learning_options
from streammoe.engine.products import MOST_FEATURES, features_of, linear
from streammoe.engine.state import MMState, copy_state, restored_state, state_at, widen, with_class
from streammoe.experts import Family, Parameters
from streammoe.kernels.features import CENTERED_AT
from streammoe.kernels.state import LearningOptions, SingleExpert
from streammoe.schedules import Constant, Power, Schedule
from streammoe.types import AnyArray, FloatArray, IntArray

Sees: TypeAlias = Literal["all", "nothing", "series", "products"]
EVENTS_PER_FEATURE = 8
"""Least number of events that count in `curved`, for each of its features."""
ROWS_AT_ONCE = 4096
"""Number of rows whose features are in memory at once."""
NEGLIGIBLE = 1e-3
"""A member of less weight does not matter."""
PATIENCE = 2
"""A member rests after so many reviews in a row at which its weight is negligible."""
GROWTH = 1.25
"""It comes back, at the earliest, at so many times the event count at which it began to rest."""
CLASS_ALPHA = 0.85
"""The power of 1/n that steps are where all events of a stream of classes count; of numbers it is 1."""
MOST_SERIES = 16
"""Most outputs or classes of which the last targets are features."""
INTERCEPT = np.zeros((1, 2), dtype=np.int64)
"""The terms of an expert that has nothing but an intercept."""
_of_single_expert = attrgetter(*SingleExpert._fields)


class Kind(NamedTuple):
    """One row of the table of members."""

    name: str
    """Its name in metrics and checkpoints."""
    step: float
    """The least size of a step, whose inverse is how many events count; the first steps are those of a mean."""
    prior_strength: float = 1.0
    """Weight of its prior in events."""
    sees: Sees = "all"
    """The features that it has."""
    is_held: bool = True
    """Whether inputs are held to the range seen before."""
    may_rest: bool = False
    """Whether it learns nothing while its weight is negligible."""


KINDS = (
    Kind("quick", 0.05),
    Kind("recent", 0.01),
    Kind("steady", 0.0, prior_strength=5.0, is_held=False),
    Kind("floor", 1e-3, sees="nothing"),
)
"""Members of every portfolio, from the first event on."""
SERIES = Kind("series", 0.0, sees="series", may_rest=True)
"""The member that also sees the last targets, with `lags = "auto"`; from the first event on."""
CURVED = Kind("curved", 0.01, sees="products", may_rest=True)
"""The member that sees squares and products of inputs; it joins once columns have varied, if at all."""


class Single:
    """One expert of the mixture's family, without a gate.

    Attributes:
        kind: its row of the table.
        state: its state, of one expert without gate features, of which the average is not used.
        terms: (P, 2) the factors of each of its features; None if it sees those of the mixture.
        n_lags: how many of the last targets it sees.
        n_series: how many features these are.
        expert: the part of its state that steps change.
        options: options of its steps.
        notes: (3,) number of reviews in a row at which its weight was negligible; event count at which it last began
            to rest, or 0; and whether it rests. Zeros if it may not rest.
    """

    def __init__(
        self,
        kind: Kind,
        family: Family,
        bound: str,
        state: MMState,
        terms: IntArray | None,
        notes: IntArray | None,
        n_lags: int,
        n_series: int,
    ) -> None:
        self.kind = kind
        self.terms = terms
        self.n_lags = n_lags
        self.n_series = n_series
        self.notes = np.zeros(3, dtype=np.int64) if notes is None else notes
        self._family = family
        self._bound = bound
        self._continue_with(state)

    @classmethod
    def blank(
        cls,
        kind: Kind,
        family: Family,
        bound: str,
        n_outputs: int,
        p_v: int,
        *,
        terms: IntArray | None = None,
        n_lags: int = 0,
    ) -> Single:
        """Return one that has learned nothing, and predicts like its prior.

        Args:
            kind: its row of the table.
            family: family of the experts.
            bound: the curvature bound of a categorical expert.
            n_outputs: Q, or the number of classes.
            p_v: number of features of the mixture's experts, padding included.
            terms: factors of the features of `curved`.
            n_lags: how many of the last targets it sees.
        """
        terms = INTERCEPT if kind.sees == "nothing" else terms
        n_series = series_width(n_outputs, n_lags)
        width = p_v + n_series if terms is None else len(terms)
        prior = family.unit_prior(kind.prior_strength, 0, width, n_outputs)
        state = state_at(
            gate=np.empty((0, 0)),
            experts=prior.experts[None],
            variances=family.variances_of(prior.variances, 1),
            masses=np.ones(1),
            gate_gram=np.empty((0, 0)),
            expert_grams=np.diag(prior.expert_gram)[None],
            prior=prior,
            n=0,
            prior_weight=1.0,
        )
        return cls(kind, family, bound, state, terms, None, n_lags, n_series)

    def _continue_with(self, state: MMState) -> None:
        self._take(state)
        self.options: LearningOptions = learning_options(
            bound=self._bound,
            n_experts=1,
            n_rows=state.experts.shape[1],
            prior_strength=self.kind.prior_strength,
            averaging=None,
            schedule=self._schedule,
        )

    def _take(self, state: MMState) -> None:
        """Take over a state of the same size."""
        self.state = state
        self.expert = SingleExpert(*_of_single_expert(state))

    @property
    def name(self) -> str:
        """Its name in metrics and checkpoints."""
        return self.kind.name

    @property
    def step(self) -> float:
        """The least size of a step."""
        if self.terms is None or self.kind.sees == "nothing":
            return self.kind.step
        n_features: int = self.state.experts.shape[2]
        return min(self.kind.step, 1.0 / (EVENTS_PER_FEATURE * n_features))

    @property
    def steps(self) -> tuple[float, float]:
        """The least size of a step, and the power of 1/n that the first ones are."""
        # One step towards a bound of the curvature of classes is not far enough.
        return self.step, 1.0 if self._family.is_metric or self.step else CLASS_ALPHA

    @property
    def _schedule(self) -> Schedule:
        return Constant(self.step) if self.step else Power(self.steps[1])

    @property
    def parameters(self) -> Parameters:
        """The parameters that predict now."""
        return Parameters(self.state.gate, self.state.experts, self.state.variances)

    def learn(self, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int) -> Scores:
        """Learn rows outside of the portfolio; return the scores of each, from before it was learned.

        Args:
            R: (n, p_v) features of the mixture's experts; Y: targets; weights: (n,).
            n_outputs: Q, or the number of classes.

        Raises:
            UnsoundError: a number is NaN or infinite; discard the member.
        """
        seen = R
        if self.n_lags:
            seen = with_series(R, Y, self.n_lags, n_outputs, is_metric=self._family.is_metric)
            seen[: max(CENTERED_AT + 1 - int(self.state.n[0]), 0), 1 : 1 + self.n_series] = 0.0
        seen = seen if self.terms is None else features_of(R, self.terms)
        candidate = Candidate(self.state, np.empty(0), self.options)
        bound = BoundMixture(self._family, candidate, self._schedule, n_outputs, single=self.steps)
        return bound.learn(np.empty((len(R), 0)), seen, Y, weights)

    def widen(self, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features, of which `n_features` are not padding.

        `curved` sees new ones as they are: they have no scale yet, and products might be enormous.
        """
        if self.kind.sees == "nothing":
            return
        if self.terms is None:
            self._rearrange(expert_at, p_v, self.n_series)
            return
        self.terms = expert_at[self.terms]
        before = len(self.terms)
        new = linear(np.setdiff1d(np.arange(n_features), expert_at))[: MOST_FEATURES - before]
        if len(new):
            self.terms = np.concatenate([self.terms, new])
            at = np.arange(before)
            self._continue_with(widen(self.state, np.empty(0, dtype=np.int64), 0, at, before + len(new)))

    def _rearrange(self, expert_at: IntArray, p_v: int, n_series: int) -> None:
        """Move the mixture's features, and the last targets behind the first of them, to other places."""
        at = np.concatenate([np.arange(1 + self.n_series), n_series + expert_at[1:]])
        self._continue_with(widen(self.state, np.empty(0, dtype=np.int64), 0, at, p_v + n_series))
        self.n_series = n_series

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of features of the mixture's experts, padding excluded."""
        if self.n_series < self.n_lags * MOST_SERIES:
            p_v = self.state.experts.shape[2] - self.n_series
            self._rearrange(np.arange(p_v), p_v, self.n_series + self.n_lags)
        least, alpha = self.steps
        gamma = max(least, (int(self.state.n[0]) + 1.0) ** -alpha)
        # A single expert needs no random numbers.
        self._continue_with(with_class(self.state, np.random.default_rng(0), n_features, gamma))

    # -- Rest ----------------------------------------------------------------------------------------------------------

    def rests(self, weight: float, n: int) -> bool:
        """Return whether it rests from now on, given its weight at a review after n events, of which it takes note."""
        idle, left, _ = self.notes.tolist()
        idle = idle + 1 if weight < NEGLIGIBLE else 0
        rests: bool = idle >= PATIENCE
        self.notes = np.array([0, n, 1] if rests else [idle, left, 0], dtype=np.int64)
        return rests

    @property
    def is_resting(self) -> bool:
        """Whether it rests."""
        return bool(self.notes[2])

    def woken(self) -> Single:
        """Return a copy that does not rest; this one, whose arrays copies of a portfolio share, must not learn."""
        found = self.copy()
        found.notes = self.notes * np.array([1, 1, 0])
        return found

    def comes_back(self, n: int) -> bool:
        """Return whether it may come back after n events."""
        return n >= GROWTH * int(self.notes[1])

    # -- Copies and checkpoints ----------------------------------------------------------------------------------------

    def copy(self, spare: Single | None = None) -> Self:
        """Return an independent copy; arrays of `spare` may be reused."""
        other = copy.copy(self)
        other._take(copy_state(self.state, None if spare is None else spare.state))  # noqa: SLF001 - of the same class
        return other

    def arrays(self) -> Mapping[str, AnyArray]:
        """Return everything that affects future learning, as arrays named ``name.array``."""
        own: dict[str, AnyArray] = {f"{self.name}.{name}": array for name, array in self.expert._asdict().items()}
        if self.kind.may_rest:
            own[f"{self.name}_notes"] = self.notes
        if self.kind.sees == "products" and self.terms is not None:
            own[f"{self.name}_terms"] = self.terms
        return own

    @classmethod
    def restored(
        cls,
        kind: Kind,
        family: Family,
        bound: str,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        n: int,
        n_outputs: int,
        p_v: int,
        n_lags: int = 0,
    ) -> Single:
        """Restore a member of a portfolio that has learned n events from what `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        place, terms, notes = f"{prefix}{kind.name}", None, None
        if kind.sees == "nothing":
            terms = INTERCEPT
        elif kind.sees == "products":
            terms = array_of(given, f"{place}_terms", "int64", (None, 2), least=0, most=p_v - 1).copy()
            possible = 0 < len(terms) <= MOST_FEATURES
            require(possible, f"array {place}_terms holds {len(terms)} of 1 to {MOST_FEATURES} features")
        if kind.may_rest:
            notes = array_of(given, f"{place}_notes", "int64", (3,), least=0, most=LARGEST_COUNT).copy()
            require(notes[0] < PATIENCE, f"array {place}_notes holds {notes[0]} reviews, but it rests at {PATIENCE}")
            require(notes[2] <= 1, f"array {place}_notes ends with {notes[2]}; the last one is 0 or 1")
        n_series = series_width(n_outputs, n_lags)
        width = p_v + n_series if terms is None else len(terms)
        sizes = {"n_experts": 1, "n_outputs": n_outputs, "p_w": 0, "p_v": width}
        state = restored_state(given, place, family, **sizes, saved=SingleExpert._fields)
        counted = int(state.n[0])
        require(counted <= n, f"array {place}.n counts {counted} events, but the mixture has learned {n}")
        return cls(kind, family, bound, state, terms, notes, n_lags, n_series)


def series_width(n_outputs: int, n_lags: int) -> int:
    """Return how many features the last targets are, of so many outputs or classes."""
    return n_lags * min(n_outputs, MOST_SERIES)


def with_series(R: FloatArray, Y: FloatArray, n_lags: int, n_outputs: int, *, is_metric: bool) -> FloatArray:
    """Return features (n, p_v) with those of the last targets behind the first one; Y (n, Q) are those of the rows.

    For each output its scaled values, the latest first; or for each class indicators of it. The rows follow each other,
    and before the first one nothing is known.
    """
    width = series_width(n_outputs, n_lags)
    last = np.zeros((len(R), width // n_lags, n_lags))
    for lag in range(1, n_lags + 1):
        if is_metric:
            last[lag:, :, lag - 1] = Y[:-lag, :MOST_SERIES]
        else:
            last[lag:, :, lag - 1] = Y[:-lag] == np.arange(width // n_lags)
    return np.ascontiguousarray(np.concatenate([R[:, :1], last.reshape(len(R), width), R[:, 1:]], axis=1))
