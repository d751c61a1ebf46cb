"""What the engine asks of a family of experts; `streammoe.testing.FamilyContract` holds each one to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from streammoe.kernels.state import VARIANCE_FLOOR, LearningOptions, Prior
from streammoe.laws import NORMAL, Law
from streammoe.schedules import Schedule
from streammoe.types import FloatArray

Kernel = Callable[..., None]
LearningKernel = Callable[..., bool]


class Parameters(NamedTuple):
    """θ of a mixture: ω (K−1, p_w), the experts' coefficients (K, N, p_v), and variances, which may be empty."""

    gate: FloatArray
    experts: FloatArray
    variances: FloatArray


class Family(ABC):
    """One kind of expert: its shapes, its kernels, and its part of a batch fit.

    Shapes: n rows, K experts, Q outputs (for categorical experts the M classes), N rows of coefficients for each
    expert, p features. Targets Y are (n, Q) numbers, or (n, 1) class indexes. `tau` (n, K) is responsibilities times
    the weight of each row.
    """

    name: ClassVar[str]
    learn_rows: LearningKernel
    """The hot loop, with arguments and result of `streammoe.kernels.gaussian.learn_rows`."""
    score_rows: Kernel
    """The same without learning, with the arguments of `streammoe.kernels.gaussian.score_rows`."""
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
    law: Law = NORMAL
    """The noise of one output at scale 1, of experts whose targets are numbers."""

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
    def residual_size(self, n_outputs: int, p_v: int) -> int:
        """Entries of one expert in the convergence residual."""

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
