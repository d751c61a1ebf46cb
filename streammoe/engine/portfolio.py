"""A portfolio: the mixture and single experts predict together, each with the weight that its predictions deserve.

All learn every event, except members that rest. A mixture of mixtures is a mixture again: component (i, k) has the
share w_i g_ik(x) (docs/algorithm.md, "The served portfolio").
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.distributions.mixtures import LEVELS, MOST_STRETCH
from streammoe.engine import mixture
from streammoe.engine.members import CURVED, KINDS, SERIES, Single
from streammoe.engine.mixture import Scores
from streammoe.engine.products import features_of
from streammoe.engine.state import copy_array
from streammoe.experts import Family, Parameters
from streammoe.kernels.calibration import DOUBT, LEAST, LEAST_STRETCH, MEMORY, PARTS, PRIOR, gains_of, shares_of
from streammoe.kernels.portfolio import LEAST_WEIGHT, MOST_REMEMBERED, combine, combine_means
from streammoe.kernels.state import MMState, Trace
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray, IntArray

LOGGER = logging.getLogger("streammoe.estimators")
PREFIX = "portfolio."
"""Prefix of the names of its arrays in checkpoints."""
BESIDE = "beside_"
"""Prefix, after `PREFIX`, of the arrays of `Portfolio.beside`."""
OF_MIXTURE = ("average", "fitted", "latest")
"""The members that are the mixture: by the mean of its parameters, by those of its last fit, and by its current ones.
On a stationary stream steps are noise, and one of the former two is best."""
MEMBERS = (*OF_MIXTURE, *(kind.name for kind in (*KINDS, SERIES, CURVED)))
"""The names of all members that there may be, in their order; those that may rest are last."""
REVIEW_EVERY = 1024
"""Members that may rest are reviewed at multiples of this number of events."""
TRUSTED = 0.5
"""Weight of `average` and `fitted` together from which on no resting member comes back."""
LEAST_SAVED = 0.25 * LEAST_WEIGHT
"""Least weight in a checkpoint: below `LEAST_WEIGHT`, since a new member takes its share from all others."""
SUM_TOLERANCE = 1e-9
"""Tolerance for the sum of the weights in a checkpoint."""


class Predictor(NamedTuple):
    """The parameters and features by which a member predicts."""

    theta: Parameters
    terms: IntArray | None = None
    """(P, 2) factors of each feature of its experts; None if it sees the mixture's."""
    is_held: bool = True
    """Whether inputs are held to the range seen before."""
    n_lags: int = 0
    """How many of the last targets it sees."""

    def base(self, R: FloatArray, unheld: FloatArray, last: FloatArray) -> FloatArray:
        """Return the features of rows of which its `terms` are products; arguments are as in `score`."""
        if self.n_lags:
            return np.concatenate([R[:, :1], np.repeat(last, len(R), axis=0), R[:, 1:]], axis=1)
        return R if self.is_held else unheld


class Trust(NamedTuple):
    """What weighs m members; all arrays change in place."""

    weights: FloatArray
    """(m,) the weight of each member's density in the next prediction; they add up to 1."""
    surprise: FloatArray
    """(1,) nats beyond the bound of an event by which trusted members were behind of late, see `kernels.portfolio`."""
    mean_weights: FloatArray
    """(1 + m,) the weight of the mean of the served density in the point prediction, and of each member's mean."""
    mean_surprise: FloatArray
    """(1,) the same for `mean_weights`."""
    mean_squares: FloatArray
    """(Q,) running mean of the squared errors of point predictions; empty for classes, which have no `mean_weights`."""
    mean_count: IntArray
    """(1,) number of events behind it."""
    ranks: FloatArray
    """(Q, `PARTS`) number of targets of late in each part of the served distribution; (0, `PARTS`) for classes."""
    belief: FloatArray
    """(Q,) how much these count, see `kernels.calibration`."""
    stretch: FloatArray
    """(Q, 2, L) factors by which the ends of intervals are moved, lower and upper, at each of `LEVELS`."""

    @classmethod
    def beginning(cls, n_members: int, n_outputs: int, *, is_trusted: bool) -> Trust:
        """Return equal weights, or nearly all of it for the first member and the mean of the density."""
        weights, means = _first_weights(n_members, is_trusted), _first_weights(1 + n_members, is_trusted)
        count, ranks = np.zeros(1, dtype=np.int64), np.full((n_outputs, PARTS), PRIOR / PARTS)
        belief = np.full(n_outputs, DOUBT)
        stretch = np.ones((n_outputs, 2, len(LEVELS)))
        return cls(weights, np.zeros(1), means, np.zeros(1), np.zeros(n_outputs), count, ranks, belief, stretch)

    @property
    def of_predictions(self) -> FloatArray:
        """(m,) The share of each member in point predictions, or in probabilities of classes."""
        if not self.mean_squares.size:
            return self.weights
        found: FloatArray = self.mean_weights[0] * self.weights + self.mean_weights[1:]
        return found

    @property
    def of_members(self) -> FloatArray:
        """(m,) How much each member matters: the larger of its weights in the density and in the point prediction."""
        found: FloatArray = np.maximum(self.weights, self.of_predictions)
        return found

    def with_another(self, share: float, at: int) -> Trust:
        """Return the trust in one more member, which gets this index and this share of all weight."""
        weights = np.insert((1.0 - share) * self.weights, at, share)
        return self._replace(weights=weights, mean_weights=np.insert((1.0 - share) * self.mean_weights, 1 + at, share))

    def without(self, at: int) -> Trust:
        """Return the trust in all members but one."""
        left, means = np.delete(self.weights, at), np.delete(self.mean_weights, 1 + at)
        return self._replace(weights=left / left.sum(), mean_weights=means / means.sum())

    def copied(self, spare: Trust | None = None) -> Trust:
        """Return an independent copy; arrays of `spare` may be reused."""
        old: Sequence[Any] = (None,) * len(self) if spare is None else spare
        own: Sequence[Any] = self
        return Trust(*cast("Iterable[Any]", map(copy_array, own, old)))

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], n_members: int, n_outputs: int, prefix: str = "") -> Trust:
        """Restore what `_asdict` returned, with `PREFIX` and this one.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        Q, m = n_outputs, n_members
        declared: dict[str, tuple[tuple[int, ...], float, float]] = {
            "weights": ((m,), LEAST_SAVED, 1.0),
            "surprise": ((1,), 0.0, MOST_REMEMBERED),
            "mean_weights": ((1 + m,), LEAST_SAVED, 1.0),
            "mean_surprise": ((1,), 0.0, MOST_REMEMBERED),
            "mean_squares": ((Q,), 0.0, math.inf),
            "mean_count": ((1,), 0.0, LARGEST_COUNT),
            "ranks": ((Q, PARTS), 0.9 * PRIOR / PARTS, math.inf),
            "belief": ((Q,), 0.9 * LEAST, 1.0 - 0.9 * LEAST),
            "stretch": ((Q, 2, len(LEVELS)), LEAST_STRETCH, MOST_STRETCH),
        }
        found, prefix = {}, f"{PREFIX}{prefix}"
        for name, (shape, least, most) in declared.items():
            kind = "int64" if name == "mean_count" else "float64"
            found[name] = array_of(arrays, f"{prefix}{name}", kind, shape, least=least, most=most)
        for name in ("weights", "mean_weights"):
            total = float(found[name].sum())
            is_whole = abs(total - 1.0) <= SUM_TOLERANCE
            require(is_whole, f"array {prefix}{name} adds up to {total}; weights add up to 1")
        largest, most = found["ranks"].sum(axis=1).max(initial=0.0), PRIOR + MEMORY
        is_possible = largest <= most + SUM_TOLERANCE
        require(is_possible, f"array {prefix}ranks has rows that add up to {largest}, above {most:g}")
        return cls(**found).copied()


def _first_weights(count: int, is_trusted: bool) -> FloatArray:
    weights = np.full(count, LEAST_WEIGHT if is_trusted else 1.0 / count)
    weights[0] = 1.0 - weights[1:].sum()
    return weights


class Portfolio(Noticed):
    """Members that predict together: the mixture by three sets of parameters, then single experts.

    Attributes:
        singles: the single experts.
        trust: what weighs the members.
        beside: what weighs them for rows whose last targets are not known, where the first member stands in for
            `series`; None without that member.
        resting: members of negligible weight, which neither learn nor predict.
    """

    def __init__(
        self, singles: Iterable[Single], trust: Trust, beside: Trust | None, resting: Iterable[Single] = ()
    ) -> None:
        self.singles = tuple(singles)
        self.trust = trust
        self.beside = beside
        self.resting = tuple(resting)

    @classmethod
    def blank(
        cls,
        family: Family,
        bound: str,
        n_outputs: int,
        p_v: int,
        *,
        terms: IntArray | None,
        n_lags: int,
        is_trusted: bool = False,
    ) -> Portfolio:
        """Return a portfolio of single experts that have learned nothing.

        Args:
            family: family of the experts.
            bound: the curvature bound of categorical experts.
            n_outputs: Q, or the number of classes.
            p_v: number of features of the mixture's experts, padding included.
            terms: factors of the features of `curved`; None if there is no such member.
            n_lags: how many of the last targets `series` sees; 0 if there is no such member.
            is_trusted: whether the mixture has almost all the weight until events show that another member is better.
        """
        singles = [Single.blank(kind, family, bound, n_outputs, p_v) for kind in KINDS]
        if n_lags:
            singles.append(Single.blank(SERIES, family, bound, n_outputs, p_v, n_lags=n_lags))
        if terms is not None:
            singles.append(Single.blank(CURVED, family, bound, n_outputs, p_v, terms=terms))
        n_means = n_outputs if family.is_metric else 0
        trust = Trust.beginning(len(OF_MIXTURE) + len(singles), n_means, is_trusted=is_trusted)
        return cls(singles, trust, trust.copied() if n_lags else None)

    def take_over(self, again: Portfolio) -> None:
        """Let the single experts of another portfolio take the place of these, with their trust."""
        for at, name in reversed([*enumerate(self.names)]):
            if name not in again.names:
                self._leave_out(at)
        for at, name in enumerate(again.names):
            if name not in self.names:
                self._add(at, name, 1.0 / len(again.names))
        self.singles, self.resting = again.singles, ()

    def join(self, single: Single) -> None:
        """Let a further single expert predict, with the share of trust that it would have at the beginning."""
        self._add(len(self.names), single.name, 1.0 / (len(self.names) + 1))
        self.singles = (*self.singles, single)

    def _add(self, at: int, name: str, share: float) -> None:
        """Give a member, which gets this index, this share of all trust."""
        self.trust = self.trust.with_another(share, at)
        if name == SERIES.name:
            self.beside = self.trust.copied()
        elif self.beside is not None:
            self.beside = self.beside.with_another(share, at)

    def _leave_out(self, at: int) -> None:
        """Divide the trust in one member among all others."""
        is_series = at == self.at_series
        self.trust = self.trust.without(at)
        self.beside = None if self.beside is None or is_series else self.beside.without(at)

    @property
    def names(self) -> list[str]:
        """The name of each member."""
        return [*OF_MIXTURE, *(single.name for single in self.singles)]

    @property
    def named_weights(self) -> dict[str, float]:
        """The weight of each member by its name."""
        return dict(zip(self.names, self.trust.weights.tolist(), strict=True))

    @property
    def known(self) -> tuple[Single, ...]:
        """All single experts, those that rest included."""
        return (*self.singles, *self.resting)

    @property
    def at_series(self) -> int:
        """Index of the member that sees the last targets; 0 if there is none."""
        return self.names.index(SERIES.name) if SERIES.name in self.names else 0

    def predictors(self, mixture_state: MMState, fitted: Parameters) -> list[Predictor]:
        """Return what each member predicts by, given the state of the mixture and its parameters at the last fit."""
        own = [
            Predictor(single.parameters, single.terms, single.kind.is_held, single.n_lags) for single in self.singles
        ]
        average, latest = mixture.served_parameters(mixture_state), mixture.latest_parameters(mixture_state)
        return [*map(Predictor, (average, fitted, latest)), *own]

    # -- Rest ----------------------------------------------------------------------------------------------------------

    def next_review(self, n: int) -> int:
        """Return the next count after n at which members that may rest are reviewed."""
        may_rest = any(single.kind.may_rest for single in self.known)
        return (n // REVIEW_EVERY + 1) * REVIEW_EVERY if may_rest else sys.maxsize

    def review(self, n: int, *, staying: Collection[str] = ()) -> None:
        """Let members rest whose weight is negligible, and try others again where that may help.

        It may where `average` and `fitted`, of which one is best on a stationary stream, are not trusted.

        Args:
            n: number of events learned.
            staying: names of members that do not rest.
        """
        back = [one for one in self.resting if one.comes_back(n)] if self.trust.weights[:2].sum() < TRUSTED else []
        weights = dict(zip(self.names, self.trust.of_members.tolist(), strict=True))
        for single in self.singles:
            if single.kind.may_rest and single.name not in staying and single.rests(weights[single.name], n):
                LOGGER.info("the member %s rests; the others predict as well without it (event %d)", single.name, n)
                self._leave_out(self.names.index(single.name))
                self.singles = tuple(one for one in self.singles if one is not single)
                self.resting = (*self.resting, single)
        for single in back:
            LOGGER.info("the member %s predicts again (event %d)", single.name, n)
            self._wake(single)

    def _wake(self, single: Single) -> None:
        """Let a member predict that rests."""
        self.resting = tuple(one for one in self.resting if one is not single)
        order = MEMBERS.index(single.name)
        at = sum(MEMBERS.index(one.name) < order for one in self.singles)
        self._add(len(OF_MIXTURE) + at, single.name, LEAST_WEIGHT)
        self.singles = (*self.singles[:at], single.woken(), *self.singles[at:])

    def begin_again(self) -> None:
        """After a drift, let members predict that rest, and find the scale of errors, and their calibration, anew."""
        for single in self.resting:
            self._wake(single)
        for trust in self._trusts:
            trust.mean_count[:] = 0
            trust.ranks[:], trust.belief[:], trust.stretch[:] = PRIOR / PARTS, DOUBT, 1.0

    @property
    def _trusts(self) -> list[Trust]:
        return [self.trust, *([] if self.beside is None else [self.beside])]

    # -- Changes -------------------------------------------------------------------------------------------------------

    def widen(self, expert_at: IntArray, p_v: int, n_features: int) -> None:
        """Adapt to new features, of which `n_features` of the experts are not padding."""
        self._own_resting()
        for single in self.known:
            single.widen(expert_at, p_v, n_features)

    def add_class(self, n_features: int) -> None:
        """Adapt to a new class; `n_features` is the number of expert features, padding excluded."""
        self._own_resting()
        for single in self.known:
            single.add_class(n_features)

    def _own_resting(self) -> None:
        """Copy the members that rest, which copies of this portfolio share, since they are to change."""
        self.resting = tuple(single.copy() for single in self.resting)

    # -- Copies and checkpoints ----------------------------------------------------------------------------------------

    def copy(self, spare: Portfolio | None = None) -> Portfolio:
        """Return an independent copy; arrays of `spare` may be reused."""
        old = {} if spare is None else {single.name: single for single in spare.singles}
        singles = [single.copy(old.get(single.name)) for single in self.singles]
        # Members that rest may be shared, since their arrays do not change.
        trust = self.trust.copied(None if spare is None else spare.trust)
        beside = self.beside and self.beside.copied(None if spare is None else spare.beside)
        return Portfolio(singles, trust, beside, self.resting)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        own = {name: array for single in self.known for name, array in single.arrays().items()}
        if self.beside is not None:
            own |= {f"{BESIDE}{name}": array for name, array in self.beside._asdict().items()}
        return {f"{PREFIX}{name}": array for name, array in {**self.trust._asdict(), **own}.items()}

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
        n_lags: int,
    ) -> Portfolio:
        """Restore the portfolio of a mixture that has learned n events from the arrays that `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        kinds = (*KINDS, *(SERIES,) * (n_lags > 0), *(CURVED,) * (f"{PREFIX}{CURVED.name}.n" in arrays))
        sizes = {"n": n, "n_outputs": n_outputs, "p_v": p_v}
        singles: list[Single] = [
            Single.restored(kind, family, bound, arrays, PREFIX, **sizes, n_lags=n_lags * (kind is SERIES))
            for kind in kinds
        ]
        n_means = n_outputs if family.is_metric else 0
        active = [single for single in singles if not single.is_resting]
        resting = [single for single in singles if single.is_resting]
        m = len(OF_MIXTURE) + len(active)
        beside = Trust.restored(arrays, m, n_means, BESIDE) if any(single.n_lags for single in active) else None
        return cls(active, Trust.restored(arrays, m, n_means), beside, resting)


def combined_scores(member_scores: Sequence[Scores], trust: Trust, *, replaced: int = 0, traced: bool) -> Scores:
    """Combine the members' scores of rows that are not learned; losses are those of the density before calibration.

    Args:
        member_scores: of each member.
        trust: what weighs them.
        replaced: index of a member for which the first one stands in, or 0.
        traced: whether the scores keep the parameters of each component.
    """
    parts = [each.trace for each in member_scores]
    member_scores = [member_scores[0] if i == replaced else each for i, each in enumerate(member_scores)]
    n, M = member_scores[0].predictions.shape
    m = len(member_scores)
    losses, predictions, shares = np.empty(n), np.empty((n, M)), np.empty((n, m))
    said = np.array([each.predictions for each in member_scores])
    losses_said = np.array([each.losses for each in member_scores])
    unlearned, scratch = np.empty(0), np.empty((2, 1 + m))
    trust = trust.copied()
    combine(trust.weights, trust.surprise, unlearned, losses_said, said, losses, predictions, shares, scratch)
    if trust.mean_squares.size:
        unknown = np.full((n, M), np.nan)
        combine_means(*trust[2:6], unlearned, said, unknown, predictions, scratch)
    if not traced:
        return Scores(losses, predictions, mixture.NO_TRACE)
    shares = _stood_in(shares, replaced)
    trace = Trace(
        np.concatenate([shares[:, [i]] * each.shares for i, each in enumerate(parts)], axis=1),
        np.concatenate([each.means for each in parts], axis=1),
        np.concatenate([each.variances for each in parts], axis=1),
        np.broadcast_to(shares_of(trust.ranks, trust.belief), (n, *trust.ranks.shape)),
        np.broadcast_to(trust.stretch, (n, *trust.stretch.shape)),
    )
    return Scores(losses, predictions, trace, gate=member_scores[0].trace.shares)


def _stood_in(weights: FloatArray, replaced: int) -> FloatArray:
    """Return weights (..., m) of members, those of a replaced one, unless that is 0, added to the first one's."""
    found = weights.copy()
    if replaced:
        found[..., 0] += found[..., replaced]
        found[..., replaced] = 0.0
    return found


def _at_series(members: Sequence[Predictor]) -> int:
    return next(at for at, member in enumerate(members) if member.n_lags)


def shares_of_members(
    members: Sequence[Predictor], trust: Trust | None, beside: Trust | None, *, is_next: bool, in_density: bool = False
) -> FloatArray:
    """Return the share (m,) of each member in what `score` predicts, or in its density, given these arguments of it."""
    if trust is None:
        return np.ones(len(members))
    replaced = 0
    if beside is not None and not is_next:
        trust, replaced = beside, _at_series(members)
    return _stood_in(trust.weights if in_density else trust.of_predictions, replaced)


def _below(family: Family, trace: Trace, y: FloatArray) -> FloatArray:
    """Return P(Y ≤ y) of rows by a member, (n,), for one target each."""
    shares, means, variances = trace[:3]
    scores = (y[:, None] - means[:, :, 0]) / np.sqrt(variances[:, :, 0])
    return np.asarray((shares * family.noise.cdf(scores)).sum(axis=1))


def score(
    family: Family,
    members: Sequence[Predictor],
    trust: Trust | None,
    beside: Trust | None,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray | None = None,
    *,
    unheld: FloatArray,
    last: FloatArray,
    is_next: bool,
    n_outputs: int,
    traced: bool = False,
) -> tuple[Scores, FloatArray]:
    """Score rows by one member or several, without learning.

    Args:
        family: family of the experts.
        members: what each predicts by.
        trust: what weighs them; None if there is one alone.
        beside: what weighs them unless `is_next`; None if that is the same.
        W: (n, p_w) gate features; R: (n, p_v) expert features; Y: targets, if known.
        unheld: R with inputs held only where they are far beyond their range, for members that are not `is_held`.
        last: (1, S) last targets as features of `series`.
        is_next: whether rows are the next event, so that these are known; else the first member stands in for `series`.
        n_outputs: Q, or the number of classes.
        traced: whether to keep the parameters of each component.

    Returns:
        The scores, and the first member's responsibilities (n, K), or gate probabilities where there is no target.
    """
    # Made once for all members; an event is predicted in a few microseconds.
    targets = np.full((len(W), family.n_targets(n_outputs)), np.nan) if Y is None else Y
    found: list[tuple[Scores, FloatArray]] = []
    replaced = 0
    # What is said of several targets together stays as it is.
    is_calibrated = Y is not None and trust is not None and len(trust.ranks) == 1
    ranks = np.zeros(len(W))
    if beside is not None and not is_next:
        trust, replaced = beside, _at_series(members)
    for at, member in enumerate(members):
        theta, terms = member.theta, member.terms
        if member.n_lags and replaced and not traced:
            found.append(found[0])
            continue
        base = member.base(R, unheld, last)
        seen = base if terms is None else features_of(base, terms)
        gate = seen if len(theta.experts) == 1 else W  # one expert has no gate
        keeps = traced or is_calibrated
        scores, own = mixture.score(family, theta, gate, seen, targets, n_outputs=n_outputs, traced=keeps)
        if is_calibrated and trust is not None:
            ranks += _stood_in(trust.weights, replaced)[at] * _below(family, scores.trace, targets[:, 0])
            scores = scores if traced else scores._replace(trace=mixture.NO_TRACE)
        found.append((scores, own))
    if trust is None:
        return found[0]
    scores = combined_scores([scores for scores, _ in found], trust, replaced=replaced, traced=traced)
    if is_calibrated:
        scores = scores._replace(losses=scores.losses - gains_of(trust.ranks[0], trust.belief[0], ranks))
    return scores, found[0][1]
