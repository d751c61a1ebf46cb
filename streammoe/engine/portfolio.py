"""A portfolio: several members predict together, each with as much weight as its recent predictions deserve.

All are fed by the same events. A mixture of mixtures is a mixture again: component (i, k) has the share w_i g_ik(x)
(docs/algorithm.md, "The served portfolio").
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from streammoe.checked import array_of
from streammoe.engine import growing, mixture, trust
from streammoe.engine.growing import GrowingRows
from streammoe.engine.mean_trust import MeanTrust
from streammoe.engine.members.average import Average
from streammoe.engine.members.contract import Member, Predictor, features_of
from streammoe.engine.members.curved import Curved
from streammoe.engine.members.floor import Floor
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.members.quick import Quick
from streammoe.engine.members.refitted import Refitted
from streammoe.engine.members.steady import Steady
from streammoe.engine.mixture import Scores
from streammoe.engine.state import MMState, copy_array
from streammoe.experts import Family, Parameters
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine
from streammoe.kernels.state import Trace
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray, IntArray

LOGGER = logging.getLogger("streammoe.estimators")
PREFIX = "portfolio."
"""Prefix of the names of its arrays."""
REVIEW_EVERY = 1024
"""Members on probation are reviewed at multiples of this number of events."""
SETTLED_AT = 16_384
"""From this event count on reviews are rarer, since arrays are cut at each of them."""
REVIEW_SELDOM = 4096
"""They then take place at multiples of this number of events."""
N_PERMANENT = 3
"""Number of members that never leave, which come first."""
SINGLE = (Steady, Quick, Floor)
"""Further single experts, in the order in which they come after a warm-up."""
TRUSTED = 0.5
"""Weight of the average from which on it is trusted."""


def no_terms() -> None:
    """Return that there are no further features to see."""


class Portfolio(Noticed):
    """Members that predict together, the averaged mixture first.

    Attributes:
        members: the members.
        weights: (m,) the weight of each member's density in the next prediction; they add up to 1.
        surprise: (1,) see `kernels.portfolio.combine`.
        resting: the member that has left and may come back, if any; it learns nothing.
        growing: the rows to which the mixture will be fitted again, if any.
        means: weights of the members' means in the point prediction of numbers; None for classes leaves that to the
            density.
    """

    def __init__(
        self,
        members: Sequence[Member],
        weights: FloatArray,
        resting: Member | None = None,
        rows: GrowingRows | None = None,
        means: MeanTrust | None = None,
        surprise: FloatArray | None = None,
    ) -> None:
        self.weights = weights
        self.surprise = np.zeros(1) if surprise is None else surprise
        self.growing = rows
        self.means = means
        self._set(members, resting)

    def _set(self, members: Iterable[Member], resting: Member | None) -> None:
        self.members = tuple(members)
        self.resting = resting
        # For each event, Python asks for these.
        self._has_curved = any(isinstance(member, Curved) for member in self.known)
        self._has_probation = any(member.is_on_probation for member in self.known)

    @classmethod
    def of(cls, family: Family, bound: str, mixture_state: MMState, *, trusted: bool = False) -> Portfolio:
        """Return the portfolio that begins with a mixture.

        Args:
            family: family of the experts.
            bound: the curvature bound.
            mixture_state: state of the mixture.
            trusted: whether its average has almost all the weight until events show that another member is better. By
                default weights are equal.
        """
        members = [Average(), Latest(), OneExpert.of(family, bound, mixture_state)]
        weights = trust.beginning(len(members), trusted=trusted)
        n_outputs = mixture_state.experts.shape[1]
        means = MeanTrust.of(len(members), n_outputs, trusted=trusted) if family.is_metric else None
        return cls(members, weights, means=means)

    @property
    def named_weights(self) -> dict[str, float]:
        """The weight of each member by its name."""
        names = [member.name for member in self.members]
        return dict(zip(names, self.weights.tolist(), strict=True))

    @property
    def matters(self) -> FloatArray:
        """(m,) How much each member matters: the larger of its weights in the density and in the point prediction."""
        return self.weights if self.means is None else np.maximum(self.weights, self.means.of_members(self.weights))

    def predictors(self, mixture_state: MMState) -> list[Predictor]:
        """Return what each member predicts by, given the state of the mixture."""
        return [Predictor(member.parameters(mixture_state), member.terms, member.is_held) for member in self.members]

    def admit(self, member: Member, *, trusted: bool) -> None:
        """Add a member, which counts as much as others do in the mean, or unless `trusted` hardly at all."""
        self._insert(len(self.members), member, 1.0 / (len(self.members) + 1) if trusted else LEAST_WEIGHT)

    def _insert(self, at: int, member: Member, share: float) -> None:
        self._set((*self.members[:at], member, *self.members[at:]), self.resting)
        self.weights = trust.with_another(self.weights, at, share)
        if self.means is not None:
            self.means.insert(at, share)

    def take_refitted(self, family: Family, theta: Parameters) -> None:
        """Let the mixture as it was fitted again predict, with the weight of the fit before, or hardly any at first."""
        member, at = Refitted(family, theta), self._refitted_at
        if at is None:
            self._insert(N_PERMANENT, member, LEAST_WEIGHT)
        else:
            self._set((*self.members[:at], member, *self.members[at + 1 :]), self.resting)

    @property
    def _refitted_at(self) -> int | None:
        at = N_PERMANENT
        return at if len(self.members) > at and isinstance(self.members[at], Refitted) else None

    @property
    def best_mixture(self) -> Refitted | None:
        """The mixture as it was fitted again, if it is trusted more than the one that learns by steps."""
        at = self._refitted_at
        member = None if at is None or self.weights[at] <= self.weights[:2].sum() else self.members[at]
        return member if isinstance(member, Refitted) else None

    def next_review(self, n: int, *, awaits_another: bool = False) -> int:
        """Return the next count after n at which members are reviewed, or another may join."""
        if not awaits_another and not self._has_probation:
            return sys.maxsize
        every = REVIEW_EVERY if n < SETTLED_AT else REVIEW_SELDOM
        return (n // every + 1) * every

    @property
    def has_curved(self) -> bool:
        """Whether there is a member of squares and products, or one that has left."""
        return self._has_curved

    @property
    def known(self) -> tuple[Member, ...]:
        """The members, and the one that has left."""
        return self.members if self.resting is None else (*self.members, self.resting)

    def review(self, n: int, terms: Callable[[], IntArray | None] = no_terms) -> None:
        """Let members on probation go if their weights are negligible, or try one again if that may help.

        It may where the average, which is the best on a stationary stream, is not trusted.

        Args:
            n: number of events learned.
            terms: returns features that a member which comes back may see, see `Member.see`.
        """
        resting, matters = self.resting, self.matters
        for at in reversed(range(N_PERMANENT, len(self.members))):
            member = self.members[at]
            if member.is_on_probation and not member.stays(float(matters[at]), n):
                LOGGER.info("the member %s leaves; the others predict as well without it (event %d)", member.name, n)
                self._remove(at)
        if resting is not None and self._trust_in_average < TRUSTED and resting.comes_back(n):
            LOGGER.info("the member %s predicts again, on trial (event %d)", resting.name, n)
            self._try_again(terms)

    def begin_again(self, terms: Callable[[], IntArray | None] = no_terms) -> None:
        """After a drift, forget the rows of what was true before, and try the member that has left again."""
        self.growing = None
        self._try_again(terms)

    def renew(self, family: Family, bound: str, mixture_state: MMState) -> None:
        """Begin anew what has a prior or scale that is out of date: the expert that forgets, and the trust in means."""
        renewed = OneExpert.of(family, bound, mixture_state)
        self._set((renewed if member.name == renewed.name else member for member in self.members), self.resting)
        if self.means is not None:
            self.means = MeanTrust.of(len(self.members), len(self.means.squares), trusted=True)

    def _try_again(self, terms: Callable[[], IntArray | None]) -> None:
        """Let the member that has left, if any, predict on trial; it may see these features, see `Member.see`."""
        if self.resting is not None:
            # It will learn, and copies of the portfolio share its arrays.
            member, seen = self.resting.copy(), terms()
            if seen is not None:
                member.see(seen)
            self.resting = None
            self.admit(member, trusted=False)

    @property
    def _trust_in_average(self) -> float:
        """The weight of those members that are the best on a stationary stream."""
        at = self._refitted_at
        return float(self.weights[0] + (0.0 if at is None else self.weights[at]))

    def _remove(self, at: int) -> None:
        member = self.members[at]
        self._set((*self.members[:at], *self.members[at + 1 :]), member if member.rests else self.resting)
        self.weights = trust.without(self.weights, at)
        if self.means is not None:
            self.means.remove(at)
        if isinstance(member, Refitted) and self.growing is not None and self.growing.has_been_tried:
            self.growing = None  # where fits to more rows have not helped, the next one hardly will

    def count_only(self) -> None:
        """Count an event that the mixture has not learned either."""
        for member in self.members:
            member.count_only()

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features, of which `n_features` of the experts are not padding; a fit in progress is left."""
        if self.growing is not None:
            self.growing.end()
        for member in self.known:
            member.widen(gate_at, p_w, expert_at, p_v, n_features)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of expert features, padding excluded.

        What was fitted without that class leaves, and no fit follows.
        """
        if self._refitted_at is not None:
            self._remove(self._refitted_at)
        self.growing = None
        for member in self.known:
            member.add_class(n_features)

    def copy(self, spare: Portfolio | None = None) -> Portfolio:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = {} if spare is None else {member.name: member for member in spare.members}
        members = [member.copy(old.get(member.name)) for member in self.members]
        resting = copy.copy(self.resting)  # its arrays, which may be shared, stay as they are while it rests
        weights = copy_array(self.weights, None if spare is None else spare.weights)
        means = self.means and self.means.copy(None if spare is None else spare.means)
        return Portfolio(members, weights, resting, self.growing and self.growing.copy(), means, self.surprise.copy())

    def is_finite(self) -> bool:
        """Return whether every number of the members' own is finite."""
        return all(member.is_finite() for member in self.known) and (self.means is None or self.means.is_finite())

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        own = {name: array for member in self.known for name, array in member.arrays().items()}
        own |= {} if self.growing is None else self.growing.arrays()
        own |= {} if self.means is None else self.means.arrays()
        return {
            f"{PREFIX}{name}": array
            for name, array in {"weights": self.weights, "surprise": self.surprise, **own}.items()
        }

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        bound: str,
        arrays: Mapping[str, AnyArray],
        *,
        n: int,
        n_outputs: int,
        p_w: int,
        p_v: int,
        most_experts: int,
        curved: str = "off",
        refits: bool = False,
    ) -> Portfolio:
        """Restore the portfolio of a mixture that has learned n events from the arrays that `arrays` returned.

        There need not be arrays of a steady member, of a quick one, nor of a curved one; with `curved` "off" there must
        not be any of that. It rests where it has no weight. The same holds for those of refits.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        where = f"{PREFIX}weights"
        of_one = {"n": n, "n_outputs": n_outputs, "p_v": p_v}
        one = OneExpert.from_arrays(family, bound, arrays, PREFIX, **of_one)
        members: list[Member] = [Average(), Latest(), one]
        sizes = {"n_outputs": n_outputs, "p_w": p_w, "p_v": p_v}
        if refits and f"{PREFIX}{Refitted.name}.experts" in arrays:
            members.append(Refitted.from_arrays(family, arrays, PREFIX, most=most_experts, **sizes))
        rows = None
        if refits and f"{PREFIX}{growing.NAME}.counts" in arrays:
            rows = GrowingRows.from_arrays(arrays, PREFIX, family, n=n, most_experts=most_experts, **sizes)
        members += [
            kind.from_arrays(family, bound, arrays, PREFIX, **of_one)
            for kind in SINGLE
            if f"{PREFIX}{kind.name}.n" in arrays
        ]
        if curved != "off" and f"{PREFIX}{Curved.name}.n" in arrays:
            asked = curved == "on"
            members.append(
                Curved.restored(family, bound, arrays, PREFIX, n_outputs=n_outputs, p_v=p_v, is_asked_for=asked)
            )
        found = array_of(arrays, where, "float64", (None,), least=trust.LEAST_SAVED, most=1.0)
        may_rest = members[-1].rests and members[-1].is_on_probation
        resting = members.pop() if may_rest and len(members) > len(found) else None
        weights, means = trust.restored(arrays, where, len(members)), None
        if family.is_metric:
            means = MeanTrust.from_arrays(arrays, PREFIX, n_members=len(members), n_outputs=n_outputs)
        surprise = trust.restored_surprise(arrays, f"{PREFIX}surprise")
        return cls(members, weights, resting, rows, means, surprise)


def combined_scores(
    member_scores: Sequence[Scores],
    weights: FloatArray,
    surprise: FloatArray,
    event_weights: FloatArray,
    means: MeanTrust | None = None,
    targets: FloatArray | None = None,
    *,
    traced: bool,
) -> Scores:
    """Combine the members' scores of rows, and update `weights` by rows with a target.

    Args:
        member_scores: what each member said.
        weights: (m,) and `surprise` (1,) changed in place, unless `event_weights` is empty.
        event_weights: (n,) how much each row counts; empty if the rows are not learned.
        means: weights of the members' means in the predictions, updated likewise; None: the mean of the density.
        targets: (n, Q) targets, for `means`.
        traced: whether the members have recorded their experts' parts.
    """
    n, M = member_scores[0].predictions.shape
    losses, predictions, shares = np.empty(n), np.empty((n, M)), np.empty((n, len(member_scores)))
    said = np.array([each.predictions for each in member_scores])
    losses_said = np.array([each.losses for each in member_scores])
    scratch = np.empty((2, len(weights)))
    combine(weights, surprise, event_weights, losses_said, said, losses, predictions, shares, scratch)
    if means is not None:
        means.combine(said, np.full((n, M), np.nan) if targets is None else targets, event_weights, predictions)
    if not traced:
        return Scores(losses, predictions, mixture.no_trace())
    trace = Trace(
        np.concatenate([shares[:, [i]] * each.trace.shares for i, each in enumerate(member_scores)], axis=1),
        np.concatenate([each.trace.means for each in member_scores], axis=1),
        np.concatenate([each.trace.variances for each in member_scores], axis=1),
    )
    return Scores(losses, predictions, trace, gate=member_scores[0].trace.shares)


def score(
    family: Family,
    members: Sequence[Predictor],
    weights: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray | None = None,
    *,
    unheld: FloatArray,
    n_outputs: int,
    means: MeanTrust | None = None,
    traced: bool = False,
) -> tuple[Scores, FloatArray]:
    """Score rows by one member or several, without learning.

    Args:
        family: family of the experts.
        members: what each predicts by.
        weights: (m,) the weight of each.
        W: (n, p_w) gate features; R: (n, p_v) expert features; Y: targets, if known.
        unheld: R of rows of which only inputs far beyond their range are held; R itself if there are none.
        n_outputs: Q, or the number of classes.
        means: weights of their means in the point prediction, if it has any of its own.
        traced: whether to record each expert's part.

    Returns:
        The scores, and the first member's responsibilities (n, K), or gate probabilities where there is no target.
    """
    # Made once for all members; an event is predicted in a few microseconds.
    targets = np.full((len(W), family.n_targets(n_outputs)), np.nan) if Y is None else Y
    found = []
    for theta, terms, is_held in members:
        seen = unheld if not is_held else R if terms is None else features_of(R, terms)
        # One expert has no gate; in a warm-up its state has expert features in their place.
        gate = seen if len(theta.experts) == 1 else W
        found.append(mixture.score(family, theta, gate, seen, targets, n_outputs=n_outputs, traced=traced))
    if len(found) == 1:
        return found[0]
    member_scores = [scores for scores, _ in found]
    return combined_scores(member_scores, weights, np.zeros(1), np.empty(0), means, traced=traced), found[0][1]
