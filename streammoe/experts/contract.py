"""What the engine asks of a family of experts; `streammoe.testing.FamilyContract` holds each one to it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from streammoe.kernels.state import VARIANCE_FLOOR, LearningOptions, MMState, Prior
from streammoe.noise import NORMAL, Noise
from streammoe.schedules import Schedule
from streammoe.types import FloatArray

Kernel = Callable[..., None]
LearningKernel = Callable[..., bool]


LONGEST_MOVE = 50.0
"""Of the logarithm of a variance in one step, so that no step makes it 0 or infinite."""


class Parameters(NamedTuple):
    """θ of a mixture: ω (K−1, p_w), the experts' coefficients (K, N, p_v), and variances, which may be empty."""

    gate: FloatArray
    experts: FloatArray
    variances: FloatArray

    def copied(self) -> Parameters:
        """The same numbers in arrays of their own."""
        return Parameters(*(array.copy() for array in self))


class Family(ABC):
    """One kind of expert: its shapes, its kernels, and its part of a batch fit.

    Shapes: n rows, K experts, Q outputs (for categorical experts the M classes), N rows of coefficients for each
    expert, p features. Targets Y are (n, Q) numbers, or (n, 1) class indexes. `tau` (n, K) is responsibilities times
    the weight of each row.
    """

    name: ClassVar[str]
    learn_rows: LearningKernel
    """The hot loop that `streammoe.kernels.loop` makes of the family's noise, without the first argument."""
    score_rows: Kernel
    """The same without learning."""
    warmup_schedule: ClassVar[Schedule]
    """Steps of the one-expert fit that predicts during warm-up."""
    warmup_averaging: ClassVar[str | None]
    """What serves its predictions."""
    events_per_parameter: ClassVar[int]
    """How many events a warm-up buffer holds for each parameter, unless told."""
    is_metric: ClassVar[bool] = True
    """Whether distances between targets mean anything, so that K-means on (x, y) is a start."""
    is_exact: ClassVar[bool] = True
    """Whether one round of `fit_experts` is all that it takes; elsewhere a fit depends on where it starts."""
    most_outputs: ClassVar[int | None] = None
    """Q beyond which there is no such expert; None sets no limit."""
    noise: Noise = NORMAL
    """The noise of one output at scale 1, of experts whose targets are numbers."""

    # A family never changes; copies and pickles of a model hold none of its compiled functions.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Family], tuple[Any, ...]]:
        return type(self), ()

    @abstractmethod
    def n_rows(self, n_outputs: int) -> int:
        """N, rows of coefficients for each expert."""

    @abstractmethod
    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        """Variances (Q,) in the shape that the state keeps for each of K experts."""

    @abstractmethod
    def fit_experts(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        rounds: int,
    ) -> None:
        """The experts' M-step under `tau`, in place: exact where there is a closed form, else `rounds` safe steps."""

    @abstractmethod
    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        """Log density of the prior's pseudo-events for the experts, up to a constant."""

    @abstractmethod
    def settle(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> FloatArray:
        """Form the experts' part of s_0, the average of S̄ over the rows at θ, and move θ to θ̄(s_0), in place.

        The prior counts as `prior.strength` more rows. Returns the averaged Gram matrices (K, p, p).
        """

    @abstractmethod
    def gradient(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Of Σ_i Σ_k τ_ik log e_k(y_i | x_i) + `log_prior` at θ, by the coefficients and by moves of the variances.

        Returns:
            (K, N, p), and an array of the variances' shape, in the coordinates of `moved_variances` at 0.
        """

    def moved_variances(self, variances: FloatArray, moves: FloatArray) -> FloatArray:
        """Variances after moves in coordinates in which they cannot leave what is positive: here their logarithms."""
        return variances * np.exp(np.clip(moves, -LONGEST_MOVE, LONGEST_MOVE))

    @abstractmethod
    def residual_size(self, n_outputs: int, p_v: int) -> int:
        """Entries of one expert in the convergence residual."""

    def expert_losses(self, state: MMState) -> FloatArray:
        """(K,) what an event costs the expert that answers for it: the mean of −log e_k(y|x), weighted by τ_k.

        Unless a family says otherwise, ½ Σ_q log 2πe σ²_kq: exact for normal distributions, whose variance is the
        running mean of their squared errors.
        """
        losses: FloatArray = 0.5 * np.sum(np.log(2.0 * math.pi * math.e * state.variances), axis=1)
        return losses

    def divergences(self, state: MMState, options: LearningOptions) -> FloatArray:
        """(K, K) how far what two experts say is apart: the mean of both Kullback-Leibler divergences, in nats.

        It is a mean over the inputs that either of them answers for, by their Gram matrices, and about the served
        parameters. 0 on the diagonal. Unless a family says otherwise, that of normal distributions with a mean and a
        variance for each output.
        """
        variances = state.average_variances
        ratios = variances[:, None] / variances[None]
        spread = 0.25 * np.sum(ratios + 1.0 / ratios - 2.0, axis=2)
        sharpness = 0.25 * (1.0 / variances[:, None] + 1.0 / variances[None])
        found: FloatArray = spread + np.einsum("ijq,ijqq->ij", sharpness, squared_differences(state))
        return found

    def n_targets(self, n_outputs: int) -> int:
        """Columns of Y."""
        return n_outputs

    def n_variances(self, n_outputs: int) -> int:
        """Entries of the prior's variance."""
        return n_outputs

    def first_variances(self, Y: FloatArray) -> FloatArray:
        """The prior's variances for a first fit to targets of which nothing is known yet; of any number of rows."""
        return np.ones(self.n_variances(Y.shape[1]))

    def unit_prior(self, strength: float, p_w: int, p_v: int, n_outputs: int) -> Prior:
        """The prior of a model that has seen nothing: Λ = I, Υ_0 = 0, σ²_0 = 1."""
        return Prior(
            strength,
            np.ones(p_w),
            np.ones(p_v),
            np.zeros((self.n_rows(n_outputs), p_v)),
            np.ones(self.n_variances(n_outputs)),
            VARIANCE_FLOOR,
        )

    def start_prior(self, prior: Prior) -> Prior:
        """The weak prior under which one expert is fitted to a buffer, for the prior's own target."""
        return prior._replace(strength=1e-3)


def squared_differences(state: MMState) -> FloatArray:
    """(K, K, N, N) E[(Υ_i − Υ_j) r rᵀ (Υ_i − Υ_j)ᵀ] of the served coefficients, over the inputs of both experts."""
    K, N, _ = state.experts.shape
    found = np.zeros((K, K, N, N))
    for i in range(K):
        for j in range(i):
            apart = state.average_experts[i] - state.average_experts[j]
            gram = state.decay[0] * (state.expert_grams[i] + state.expert_grams[j])
            gram /= state.masses[i] + state.masses[j]
            found[i, j] = found[j, i] = np.einsum("qj,cj->qc", np.einsum("qi,ij->qj", apart, gram), apart)
    return found
