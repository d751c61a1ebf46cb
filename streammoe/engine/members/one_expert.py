"""One expert without a gate that forgets at a constant rate: it follows any change within a hundred events or so."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import attrgetter
from typing import Self

import numpy as np

from streammoe.checked import require
from streammoe.engine import mixture
from streammoe.engine.bound_mixture import BoundMixture
from streammoe.engine.members.contract import Member
from streammoe.engine.mixture import Candidate, Scores
from streammoe.engine.state import (
    MMState,
    copy_state,
    is_finite,
    restored_state,
    state_at,
    widen,
    with_class,
)
from streammoe.experts import Family, Parameters
from streammoe.kernels.linalg import invert_spd
from streammoe.kernels.state import Prior, SingleExpert
from streammoe.schedules import Constant
from streammoe.types import AnyArray, FloatArray, IntArray

STEP = 0.01
"""Size of a step: about the last 100 events count, and without a warm-up the first ones equally."""
PRIOR_STRENGTH = 1.0
"""Weight of the prior in events. With so short a memory there must be some."""
_of_single_expert = attrgetter(*SingleExpert._fields)


class OneExpert(Member):
    """An expert of the mixture's family that learns all events.

    Args:
        family: family of the experts.
        bound: the curvature bound of a categorical expert.
        state: its state, of one expert without gate features, of which the average is not used.

    Attributes:
        expert: the part of its state that steps change.
        options: those of its steps.
    """

    name = "one_expert"

    def __init__(self, family: Family, bound: str, state: MMState) -> None:
        self._family = family
        self._bound = bound
        self._continue_with(state)

    def _continue_with(self, state: MMState) -> None:
        self._take(state)
        self.options = mixture.learning_options(
            bound=self._bound,
            n_experts=1,
            n_rows=state.experts.shape[1],
            prior_strength=PRIOR_STRENGTH,
            averaging=None,
            schedule=Constant(self.step),
        )

    def _take(self, state: MMState) -> None:
        """Take over a state of the same size."""
        self.state = state
        self.expert = SingleExpert(*_of_single_expert(state))

    @property
    def step(self) -> float:
        """Size of a step, but for the first ones."""
        return STEP

    def parameters(self, mixture_state: MMState) -> Parameters:
        return Parameters(self.state.gate, self.state.experts, self.state.variances)

    def learn(self, R: FloatArray, Y: FloatArray, weights: FloatArray, *, n_outputs: int) -> Scores:
        """Learn rows before the member joins; return the scores of each, from before it was learned.

        Args:
            R: (n, p_v) features of the mixture's experts; Y: targets; weights: (n,).
            n_outputs: Q, or the number of classes.

        Raises:
            UnsoundError: a number is NaN or infinite; discard the member.
        """
        candidate = Candidate(self.state, np.empty(0), self.options)
        bound = BoundMixture(self._family, candidate, Constant(self.step), n_outputs, least_step=self.step)
        return bound.learn(np.empty((len(R), 0)), R, Y, weights)

    def count_only(self) -> None:
        self.state.n[0] += 1

    def widen(self, gate_at: IntArray, p_w: int, expert_at: IntArray, p_v: int, n_features: int) -> None:
        self._continue_with(widen(self.state, np.empty(0, dtype=np.int64), 0, expert_at, p_v))

    def add_class(self, n_features: int) -> None:
        # A single expert needs no random numbers.
        gamma = max(self.step, 1.0 / (int(self.state.n[0]) + 1))
        self._continue_with(with_class(self.state, np.random.default_rng(0), n_features, gamma))

    def arrays(self) -> Mapping[str, AnyArray]:
        return {f"{self.name}.{name}": array for name, array in self.expert._asdict().items()}

    def copy(self, spare: Member | None = None) -> Self:
        other = copy.copy(self)
        old = spare.state if isinstance(spare, OneExpert) else None
        other._take(copy_state(self.state, old))  # noqa: SLF001 - of the same class
        return other

    def is_finite(self) -> bool:
        return is_finite(self.state)

    @classmethod
    def of(cls, family: Family, bound: str, mixture_state: MMState) -> OneExpert:
        """Merge the experts of a mixture into one."""
        return cls(family, bound, merged(mixture_state))

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        bound: str,
        given: Mapping[str, AnyArray],
        prefix: str,
        *,
        n: int,
        n_outputs: int,
        p_v: int,
    ) -> OneExpert:
        """Restore an expert that has learned n events from the arrays that `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        place = f"{prefix}{cls.name}"
        state = restored_expert(given, place, family, n_outputs=n_outputs, p_v=p_v)
        counted = int(state.n[0])
        require(counted == n, f"array {place}.n counts {counted} events, but the mixture has learned {n}")
        return cls(family, bound, state)


def blank_expert(family: Family, gram: FloatArray, experts: FloatArray, variances: FloatArray) -> MMState:
    """Return the state of a single expert that has learned nothing, and predicts like its prior.

    Args:
        family: family of the expert.
        gram: (p,) the diagonal of the prior's Gram matrix.
        experts: (N, p) the prior's coefficients.
        variances: the prior's variances.
    """
    return state_at(
        gate=np.empty((0, 0)),
        experts=experts[None],
        variances=family.variances_of(variances, 1),
        masses=np.ones(1),
        gate_gram=np.empty((0, 0)),
        expert_grams=np.diag(gram)[None],
        prior=Prior(PRIOR_STRENGTH, np.empty(0), gram, experts, variances, 0.0),
        n=0,
        prior_weight=1.0,
    )


def restored_expert(given: Mapping[str, AnyArray], place: str, family: Family, *, n_outputs: int, p_v: int) -> MMState:
    """Restore the state of a single expert that is saved without gate and average.

    Raises:
        CheckpointError: an array is missing, has another shape, or holds invalid values.
    """
    sizes = {"n_experts": 1, "n_outputs": n_outputs, "p_w": 0, "p_v": p_v}
    return restored_state(given, place, family, **sizes, saved=SingleExpert._fields)


def merged(mixture_state: MMState) -> MMState:
    """Return the state of one expert whose statistics are the sums of those of a mixture's experts.

    Responsibilities add up to 1, so these are the statistics of one expert that has learned the same events: with
    normal experts exactly, as far as steps were the same. Coefficients of classes do not add up; these begin with the
    prior's, which after a fit are those of one expert fitted to the same events.
    """
    grams = mixture_state.decay[0] * mixture_state.expert_grams
    mass = mixture_state.masses.sum()
    gram = grams.sum(axis=0)
    variances: FloatArray = np.einsum("k,k...->...", mixture_state.masses / mass, mixture_state.variances)
    if not variances.size:
        expert = mixture_state.prior_experts
    else:
        inverse = np.empty_like(gram)
        invert_spd(gram, inverse, np.empty_like(gram))
        pull = np.einsum("kqi,kij->qj", mixture_state.experts, grams, optimize=False)
        expert = np.einsum("qi,ij->qj", pull, inverse, optimize=False)
        apart = mixture_state.experts - expert
        spread = np.einsum("kqi,kij,kcj->qc", apart, grams, apart, optimize=False) / mass
        # Only rounding can make this negative: Gram matrices of extreme values are not quite positive.
        own = np.diagonal(spread)
        if variances.ndim == 1:
            variances = variances + np.maximum(own, 0.0)
        elif (own >= 0.0).all():
            variances = variances + 0.5 * (spread + spread.T)
    prior = Prior(
        PRIOR_STRENGTH,
        np.empty(0),
        mixture_state.prior_expert_gram,
        mixture_state.prior_experts,
        mixture_state.prior_variances,
        0.0,
    )
    return state_at(
        gate=np.empty((0, 0)),
        experts=expert[None],
        variances=variances[None],
        masses=np.array([mass]),
        gate_gram=np.empty((0, 0)),
        expert_grams=gram[None],
        prior=prior,
        n=int(mixture_state.n[0]),
        prior_weight=float(mixture_state.prior_weight[0]),
    )
