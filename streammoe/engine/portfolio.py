"""A portfolio: several members predict together, each with as much weight as its recent predictions deserve.

All are fed by the same events. A mixture of mixtures is a mixture again: component (i, k) has the share w_i g_ik(x)
(docs/algorithm.md, "The served portfolio").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine import mixture
from streammoe.engine.members.average import Average
from streammoe.engine.members.contract import Member, Rows
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.mixture import Scores
from streammoe.engine.state import MMState, copy_array
from streammoe.experts import Family, Parameters
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine
from streammoe.kernels.state import Trace
from streammoe.types import AnyArray, FloatArray, IntArray

PREFIX = "portfolio."
"""Prefix of the names of its arrays."""
MEMBERS = (Average.name, Latest.name, OneExpert.name)
"""Names of the members, in the order of their weights."""
SUM_OFF = 1e-9
"""Tolerance for the sum of the weights in a checkpoint."""


class Portfolio:
    """Members that predict together, the averaged mixture first.

    Attributes:
        members: the members.
        weights: (m,) the weight of each member's density in the next prediction; they add up to 1.
    """

    def __init__(self, members: Sequence[Member], weights: FloatArray) -> None:
        self.members = tuple(members)
        self.weights = weights

    @classmethod
    def of(cls, family: Family, bound: str, whole: MMState, *, trusted: bool = False) -> Portfolio:
        """Return the portfolio that begins with a mixture.

        Args:
            family: family of the experts.
            bound: the curvature bound.
            whole: state of the mixture.
            trusted: whether its average predicts all but alone until events show that another member is better. By
                default weights are equal.
        """
        members = [Average(), Latest(), OneExpert.of(family, bound, whole)]
        others = LEAST_WEIGHT if trusted else 1.0 / len(members)
        weights = np.full(len(members), others)
        weights[0] = 1.0 - others * (len(members) - 1)
        return cls(members, weights)

    @property
    def named_weights(self) -> dict[str, float]:
        """The weight of each member by its name."""
        names = [member.name for member in self.members]
        return dict(zip(names, self.weights.tolist(), strict=True))

    def parameters(self, whole: MMState) -> list[Parameters]:
        """Return the parameters of each member, given the state of the mixture."""
        return [member.parameters(whole) for member in self.members]

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
        said = [member.learn(rows, scores, n_outputs=n_outputs, traced=traced) for member in self.members]
        return combined_scores(said, self.weights, rows.weights, traced=traced)

    def count_only(self) -> None:
        """Count an event that the mixture has not learned either."""
        for member in self.members:
            member.count_only()

    def widen(self, expert_at: IntArray, p_v: int) -> None:
        """Adapt to new features of the experts."""
        for member in self.members:
            member.widen(expert_at, p_v)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of expert features, padding excluded."""
        for member in self.members:
            member.add_class(n_features)

    def copy(self, spare: Portfolio | None = None) -> Portfolio:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = [None] * len(self.members) if spare is None else spare.members
        members = [member.copy(before) for member, before in zip(self.members, old, strict=True)]
        return Portfolio(members, copy_array(self.weights, None if spare is None else spare.weights))

    def is_finite(self) -> bool:
        """Return whether every number of the members' own is finite."""
        return all(member.is_finite() for member in self.members)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        own = {name: array for member in self.members for name, array in member.arrays().items()}
        return {f"{PREFIX}{name}": array for name, array in {"weights": self.weights, **own}.items()}

    @classmethod
    def from_arrays(
        cls, family: Family, bound: str, arrays: Mapping[str, AnyArray], *, n: int, n_outputs: int, p_v: int
    ) -> Portfolio:
        """Restore the portfolio of a mixture that has learned n events from the arrays that `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        where = f"{PREFIX}weights"
        weights = array_of(arrays, where, "float64", (len(MEMBERS),), least=0.5 * LEAST_WEIGHT, most=1.0)
        total = float(weights.sum())
        require(abs(total - 1.0) <= SUM_OFF, f"array {where} adds up to {total}; weights add up to 1")
        one = OneExpert.from_arrays(family, bound, arrays, PREFIX, n=n, n_outputs=n_outputs, p_v=p_v)
        return cls([Average(), Latest(), one], weights.copy())


def combined_scores(said: Sequence[Scores], weights: FloatArray, counts: FloatArray, *, traced: bool) -> Scores:
    """Combine the members' scores of rows; `weights` learn from rows with a target. The first one counts outliers.

    Args:
        said: what each member said.
        weights: (m,) changed in place, unless `counts` is empty.
        counts: (n,) how much each row counts; empty if the rows are not learned.
        traced: whether the members have recorded their experts' parts.
    """
    n, M = said[0].predictions.shape
    losses, predictions, shares = np.empty(n), np.empty((n, M)), np.empty((n, len(said)))
    combine(
        weights,
        counts,
        tuple([each.losses for each in said]),
        tuple([each.predictions for each in said]),
        losses,
        predictions,
        shares,
    )
    outliers = said[0].outliers
    if not traced:
        return Scores(losses, predictions, mixture.no_trace(), outliers)
    trace = Trace(
        np.concatenate([shares[:, [i]] * each.trace.shares for i, each in enumerate(said)], axis=1),
        np.concatenate([each.trace.means for each in said], axis=1),
        np.concatenate([each.trace.variances for each in said], axis=1),
    )
    return Scores(losses, predictions, trace, outliers, gate=said[0].trace.shares)


def score(
    family: Family,
    members: Sequence[Parameters],
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
        members: the parameters of each.
        weights: (m,) the weight of each.
        W: (n, p_w) gate features; R: (n, p_v) expert features; Y: targets, if known.
        n_outputs: Q, or the number of classes.
        traced: whether to record each expert's part.

    Returns:
        The scores, and the first member's responsibilities (n, K), or gate probabilities where there is no target.
    """
    # Made once for all members; an event is predicted in a few microseconds.
    targets = np.full((len(W), family.n_targets(n_outputs)), np.nan) if Y is None else Y
    found = [
        # One expert has no gate; in a warm-up its state has expert features in their place.
        mixture.score(
            family, theta, R if len(theta.experts) == 1 else W, R, targets, n_outputs=n_outputs, traced=traced
        )
        for theta in members
    ]
    if len(found) == 1:
        return found[0]
    said = [scores for scores, _ in found]
    return combined_scores(said, weights, np.empty(0), traced=traced), found[0][1]
