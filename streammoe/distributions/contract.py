"""The contract of noise that experts may have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar

import numpy as np

from streammoe.distributions.multivariate import MultivariateMixture
from streammoe.distributions.univariate import Mixture, ScaleMixture
from streammoe.noise import Noise
from streammoe.types import FloatArray


class ExpertNoise(Noise):
    """Noise of experts: the object that users pass as `expert`, and that makes their predictive distributions.

    A subclass is made a frozen object of options by `streammoe.fields.part`; all options have defaults. Its docstring
    begins with the sentence that the reference shows. Settings are read without SciPy, whose import takes a while:
    methods get its functions from `streammoe.noise.special`.
    """

    name: ClassVar[str]
    """Its kind in settings, which is short for the object with its defaults, and the name of its file of kernels."""
    most_outputs: ClassVar[int | None] = 1
    """Largest number of outputs; None sets no limit, which takes a `joint_mixture`."""

    @property
    def family(self) -> str:
        """Name of the family of experts with this noise."""
        return self.name

    def shape(self, n_outputs: int) -> tuple[float, ...]:
        """Return the numbers that its kernels get at run time."""
        return ()

    @abstractmethod
    def entropy(self, n_outputs: int) -> float:
        """Return the entropy of the noise of Q outputs at scale 1, in nats."""

    def mixture(self, shares: FloatArray, means: FloatArray, squares: FloatArray) -> Mixture:
        """Return the mixture of K components with this noise; `squares` are squared scales, (K,)."""
        return ScaleMixture(shares, means, np.sqrt(squares), self)

    def joint_mixture(
        self, shares: FloatArray, means: FloatArray, squares: FloatArray, names: Sequence[Hashable]
    ) -> MultivariateMixture:
        """Return the mixture of K components of Q outputs; `squares` are squared scales, (K, Q).

        Only noise without a limit on outputs has one.
        """
        raise NotImplementedError
