"""A portfolio: several members predict together, each with as much weight as its recent predictions deserve.

All are fed by the same events. A mixture of mixtures is a mixture again: component (i, k) has the share w_i g_ik(x)
(docs/algorithm.md, "The served portfolio").
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine import mixture
from streammoe.engine.members.average import Average
from streammoe.engine.members.contract import Member, Predictor, Rows, features_of
from streammoe.engine.members.curved import Curved
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.mixture import Scores
from streammoe.engine.state import MMState, copy_array
from streammoe.experts import Family
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine
from streammoe.kernels.state import Trace
from streammoe.types import AnyArray, FloatArray, IntArray

LOGGER = logging.getLogger("streammoe.estimators")
PREFIX = "portfolio."
"""Prefix of the names of its arrays."""
REVIEW_EVERY = 1024
"""Members on probation are reviewed at multiples of this number of events."""
TRUSTED = 0.5
"""Weight of the average from which on it is trusted."""
SUM_TOLERANCE = 1e-9
"""Tolerance for the sum of the weights in a checkpoint."""


class Portfolio:
    """Members that predict together, the averaged mixture first.

    Attributes:
        members: the members.
        weights: (m,) the weight of each member's density in the next prediction; they add up to 1.
        resting: the member that has left and may come back, if any; it learns nothing.
    """

    def __init__(self, members: Sequence[Member], weights: FloatArray, resting: Member | None = None) -> None:
        self.members = tuple(members)
        self.weights = weights
        self.resting = resting

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
        others = LEAST_WEIGHT if trusted else 1.0 / len(members)
        weights = np.full(len(members), others)
        weights[0] = 1.0 - others * (len(members) - 1)
        return cls(members, weights)

    @property
    def named_weights(self) -> dict[str, float]:
        """The weight of each member by its name."""
        names = [member.name for member in self.members]
        return dict(zip(names, self.weights.tolist(), strict=True))

    def predictors(self, mixture_state: MMState) -> list[Predictor]:
        """Return what each member predicts by, given the state of the mixture."""
        return [Predictor(member.parameters(mixture_state), member.terms) for member in self.members]

    def admit(self, member: Member, *, trusted: bool) -> None:
        """Add a member, which counts as much as others do in the mean, or unless `trusted` hardly at all."""
        share = 1.0 / (len(self.members) + 1) if trusted else LEAST_WEIGHT
        self.members = (*self.members, member)
        self.weights = np.append((1.0 - share) * self.weights, share)

    def next_review(self, n: int, *, awaits_another: bool = False) -> int:
        """Return the next count after n at which members are reviewed, or another may join."""
        if not awaits_another and not any(member.is_on_probation for member in self.known):
            return sys.maxsize
        return (n // REVIEW_EVERY + 1) * REVIEW_EVERY

    @property
    def known(self) -> tuple[Member, ...]:
        """The members, and the one that has left."""
        return self.members if self.resting is None else (*self.members, self.resting)

    def review(self, n: int, terms: IntArray | None = None) -> None:
        """Let the last member go if it is on probation and its weight is negligible, or try it again if that may help.

        It may where the average, which is the best on a stationary stream, is not trusted.

        Args:
            n: number of events learned.
            terms: features that a member which comes back may see, see `Member.see`.
        """
        last = self.members[-1]
        if self.resting is not None:
            if self.weights[0] < TRUSTED and self.resting.comes_back(n):
                LOGGER.info("the member %s predicts again, on trial (event %d)", self.resting.name, n)
                if terms is not None:
                    self.resting.see(terms)
                self.admit(self.resting, trusted=False)
                self.resting = None
        elif last.is_on_probation and not last.stays(float(self.weights[-1]), n):
            LOGGER.info("the member %s leaves; the others predict as well without it (event %d)", last.name, n)
            self.members, self.resting = self.members[:-1], last
            self.weights = self.weights[:-1] / self.weights[:-1].sum()

    def learn(self, rows: Rows, scores: Scores, *, n_outputs: int, traced: bool) -> Scores:
        """Return the combined scores of rows that the mixture has learned, and let the other members learn them.

        Args:
            rows: the rows.
            scores: the mixture's, with those of its raw iterate.
            n_outputs: Q, or the number of classes.
            traced: whether to record each expert's part.

        Raises:
            UnsoundError: some of them leave a member with NaN or infinity; discard the portfolio.
        """
        member_scores = [member.learn(rows, scores, n_outputs=n_outputs, traced=traced) for member in self.members]
        return combined_scores(member_scores, self.weights, rows.weights, traced=traced)

    def count_only(self) -> None:
        """Count an event that the mixture has not learned either."""
        for member in self.members:
            member.count_only()

    def widen(self, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features of the experts, of which `n_features` are not padding."""
        for member in self.known:
            member.widen(expert_at, p_v, n_features)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of expert features, padding excluded."""
        for member in self.known:
            member.add_class(n_features)

    def copy(self, spare: Portfolio | None = None) -> Portfolio:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = {} if spare is None else {member.name: member for member in spare.known}
        members = [member.copy(old.get(member.name)) for member in self.members]
        resting = self.resting and self.resting.copy(old.get(self.resting.name))
        return Portfolio(members, copy_array(self.weights, None if spare is None else spare.weights), resting)

    def is_finite(self) -> bool:
        """Return whether every number of the members' own is finite."""
        return all(member.is_finite() for member in self.known)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        own = {name: array for member in self.known for name, array in member.arrays().items()}
        return {f"{PREFIX}{name}": array for name, array in {"weights": self.weights, **own}.items()}

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        bound: str,
        arrays: Mapping[str, AnyArray],
        *,
        n: int,
        n_outputs: int,
        p_v: int,
        curved: str = "off",
    ) -> Portfolio:
        """Restore the portfolio of a mixture that has learned n events from the arrays that `arrays` returned.

        There need not be arrays of a curved member; with `curved` "off" there must not be any. It rests where it has no
        weight.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        where = f"{PREFIX}weights"
        one = OneExpert.from_arrays(family, bound, arrays, PREFIX, n=n, n_outputs=n_outputs, p_v=p_v)
        members: list[Member] = [Average(), Latest(), one]
        if curved != "off" and f"{PREFIX}{Curved.name}.n" in arrays:
            asked = curved == "on"
            members.append(
                Curved.restored(family, bound, arrays, PREFIX, n_outputs=n_outputs, p_v=p_v, is_asked_for=asked)
            )
        found = array_of(arrays, where, "float64", (None,), least=0.5 * LEAST_WEIGHT, most=1.0)
        resting = members.pop() if len(members) > len(found) and members[-1].is_on_probation else None
        weights = array_of(arrays, where, "float64", (len(members),))
        total = float(weights.sum())
        require(abs(total - 1.0) <= SUM_TOLERANCE, f"array {where} adds up to {total}; weights add up to 1")
        return cls(members, weights.copy(), resting)


def combined_scores(
    member_scores: Sequence[Scores], weights: FloatArray, event_weights: FloatArray, *, traced: bool
) -> Scores:
    """Combine the members' scores of rows, and update `weights` by rows with a target; outliers are the first member's.

    Args:
        member_scores: what each member said.
        weights: (m,) changed in place, unless `event_weights` is empty.
        event_weights: (n,) how much each row counts; empty if the rows are not learned.
        traced: whether the members have recorded their experts' parts.
    """
    n, M = member_scores[0].predictions.shape
    losses, predictions, shares = np.empty(n), np.empty((n, M)), np.empty((n, len(member_scores)))
    combine(
        weights,
        event_weights,
        np.array([each.losses for each in member_scores]),
        np.array([each.predictions for each in member_scores]),
        losses,
        predictions,
        shares,
    )
    outliers = member_scores[0].outliers
    if not traced:
        return Scores(losses, predictions, mixture.no_trace(), outliers)
    trace = Trace(
        np.concatenate([shares[:, [i]] * each.trace.shares for i, each in enumerate(member_scores)], axis=1),
        np.concatenate([each.trace.means for each in member_scores], axis=1),
        np.concatenate([each.trace.variances for each in member_scores], axis=1),
    )
    return Scores(losses, predictions, trace, outliers, gate=member_scores[0].trace.shares)


def score(
    family: Family,
    members: Sequence[Predictor],
    weights: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray | None = None,
    *,
    n_outputs: int,
    traced: bool = False,
) -> tuple[Scores, FloatArray]:
    """Score rows by one member or several, without learning.

    Args:
        family: family of the experts.
        members: what each predicts by.
        weights: (m,) the weight of each.
        W: (n, p_w) gate features; R: (n, p_v) expert features; Y: targets, if known.
        n_outputs: Q, or the number of classes.
        traced: whether to record each expert's part.

    Returns:
        The scores, and the first member's responsibilities (n, K), or gate probabilities where there is no target.
    """
    # Made once for all members; an event is predicted in a few microseconds.
    targets = np.full((len(W), family.n_targets(n_outputs)), np.nan) if Y is None else Y
    found = []
    for theta, terms in members:
        seen = R if terms is None else features_of(R, terms)
        # One expert has no gate; in a warm-up its state has expert features in their place.
        gate = seen if len(theta.experts) == 1 else W
        found.append(mixture.score(family, theta, gate, seen, targets, n_outputs=n_outputs, traced=traced))
    if len(found) == 1:
        return found[0]
    member_scores = [scores for scores, _ in found]
    return combined_scores(member_scores, weights, np.empty(0), traced=traced), found[0][1]
