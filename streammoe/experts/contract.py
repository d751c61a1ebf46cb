"""The contract between the engine and families of experts; `tests/contracts/test_families.py` tests it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from streammoe.distributions import ExpertNoise, Gaussian
from streammoe.experts.on_sums import Sums
from streammoe.kernels.state import VARIANCE_FLOOR, LearningOptions, MMState, Prior
from streammoe.schedules import Schedule
from streammoe.types import FloatArray


class Parameters(NamedTuple):
    """Parameters θ of a mixture: ω (K−1, p_w), coefficients (K, N, p_v), and variances, which may be empty."""

    gate: FloatArray
    experts: FloatArray
    variances: FloatArray

    def copied(self) -> Parameters:
        """Return a deep copy."""
        return Parameters(*(array.copy() for array in self))


class Family(ABC):
    """A kind of expert: its shapes, its kernels, and its part of a batch fit.

    Shapes: n rows, K experts, Q outputs (for categorical experts the M classes), N rows of coefficients for each
    expert, p features. Targets Y are (n, Q) numbers, or (n, 1) class indexes. `tau` (n, K) is responsibilities times
    the weight of each row.
    """

    name: str
    warmup_schedule: ClassVar[Schedule]
    """Step sizes of a mixture before its first fit, when it has one expert."""
    events_per_parameter: ClassVar[int]
    """Number of rows that determine a parameter well."""
    is_metric: ClassVar[bool] = True
    """Whether distances between targets mean anything, so that K-means on (x, y) is a start."""
    is_exact: bool = True
    """Whether one round of `fit_experts` reaches the optimum; otherwise a fit depends on where it starts."""
    has_tails: bool = False
    """Whether experts are normal up to a distance beyond which events count less, so that absurd ones hardly do."""
    most_outputs: int | None = None
    """Largest Q supported; None sets no limit."""
    noise: ExpertNoise = Gaussian()
    """The noise of one output at scale 1; does not apply to classes."""

    # A family is immutable; copies and pickles of a model hold none of its compiled functions.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Family], tuple[Any, ...]]:
        return type(self), ()

    def score_rows(self, gate: FloatArray, experts: FloatArray, *others: Any) -> None:
        """Call the kernel that scores without learning."""
        module, shape = self.compiled(experts)
        module.score_rows(shape, gate, experts, *others)

    @abstractmethod
    def compiled(self, experts: FloatArray) -> tuple[ModuleType, tuple[float, ...]]:
        """Return the module of its kernels, and the numbers of its noise, given coefficients (K, N, p).

        The module holds `learn`, which `streammoe.kernels.event` makes, and `score_rows`.
        """

    @abstractmethod
    def n_rows(self, n_outputs: int) -> int:
        """Return N, the rows of coefficients of each expert."""

    @abstractmethod
    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        """Repeat variances (Q,) for each of K experts, in the shape that the state has."""

    # -- Fits: steps on sums over rows, which may lie in several parts -----------------------------------------------

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
        """Perform the experts' M-step for `tau` in place: exact if there is a closed form, else `rounds` safe steps."""

    @abstractmethod
    def step_sums(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> Sums:
        """Return what one step of `fit_experts` from θ needs of these rows, without the prior."""

    @abstractmethod
    def step_on_sums(self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums) -> None:
        """Take one step of `fit_experts` from θ in place, given the `step_sums` of all rows at θ."""

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
        return self.settle_on_sums(theta, prior, options, self.settle_sums(theta, options, tau, R, Y), len(R))

    @abstractmethod
    def settle_sums(
        self, theta: Parameters, options: LearningOptions, tau: FloatArray, R: FloatArray, Y: FloatArray
    ) -> Sums:
        """Return what `settle` needs of these rows, without the prior."""

    @abstractmethod
    def settle_on_sums(
        self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums, n: int
    ) -> FloatArray:
        """Do what `settle` does, in place, from the `settle_sums` of all n rows."""

    # -- The likelihood ----------------------------------------------------------------------------------------------

    @abstractmethod
    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        """Return the log density of the prior's pseudo-events for the experts, up to a constant."""

    @abstractmethod
    def expert_losses(self, state: MMState) -> FloatArray:
        """Return the mean loss of each expert, (K,): −log e_k(y|x) weighted by τ_k."""

    @abstractmethod
    def divergences(self, state: MMState, options: LearningOptions) -> FloatArray:
        """Return the divergence of each pair of experts in nats, (K, K): the mean of both Kullback-Leibler divergences.

        It is averaged over the inputs that either of them is responsible for, according to their Gram matrices, at the
        served parameters. The diagonal is 0.
        """

    def n_targets(self, n_outputs: int) -> int:
        """Return the number of columns of Y."""
        return n_outputs

    def n_variances(self, n_outputs: int) -> int:
        """Return the number of entries of the prior's variance."""
        return n_outputs

    def first_variances(self, Y: FloatArray) -> FloatArray:
        """Return the prior's variances for a first fit to targets whose scale is unknown, given any number of rows."""
        return np.ones(self.n_variances(Y.shape[1]))

    def unit_prior(self, strength: float, p_w: int, p_v: int, n_outputs: int) -> Prior:
        """Return the prior of a model that has seen nothing: Λ = I, Υ_0 = 0, σ²_0 = 1."""
        return Prior(
            strength,
            np.ones(p_w),
            np.ones(p_v),
            np.zeros((self.n_rows(n_outputs), p_v)),
            np.ones(self.n_variances(n_outputs)),
            VARIANCE_FLOOR,
        )

    def search_prior(self, prior: Prior, Y: FloatArray) -> Prior:
        """Return the prior for the search among fits to a buffer with targets Y."""
        return prior

    def start_prior(self, prior: Prior) -> Prior:
        """Return the weak prior for the one-expert fit to a buffer, from which the actual prior is derived."""
        return prior._replace(strength=1e-3)


def squared_differences(state: MMState) -> FloatArray:
    """Return E[(Υ_i − Υ_j) r rᵀ (Υ_i − Υ_j)ᵀ] of the served coefficients over both experts' inputs, (K, K, N, N)."""
    K, N, _ = state.experts.shape
    found = np.zeros((K, K, N, N))
    for i in range(K):
        for j in range(i):
            apart = state.average_experts[i] - state.average_experts[j]
            gram = state.decay[0] * (state.expert_grams[i] + state.expert_grams[j])
            gram /= state.masses[i] + state.masses[j]
            found[i, j] = found[j, i] = np.einsum("qj,cj->qc", np.einsum("qi,ij->qj", apart, gram), apart)
    return found
