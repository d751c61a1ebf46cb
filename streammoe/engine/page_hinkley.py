"""Page's cumulative sum test, known in stream learning as the Page-Hinkley test, as two numbers in a checkpoint.

With values x_1, x_2, … whose usual mean is 0 and a tolerance δ, the sum is S_t = Σ_{i ≤ t} (x_i − δ); a change is found
at the first t at which S_t − min_{s ≤ t} S_s exceeds the threshold λ.

Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954), 100–115, doi:10.1093/biomet/41.1-2.100; with
a running minimum as in J. Gama, R. Sebastião and P. P. Rodrigues, "On evaluating stream learning algorithms", Machine
Learning 90 (2013), 317–346. `river.drift.PageHinkley` is the same with δ as ``delta``, λ as
``threshold`` and no fading (``alpha=1``), but subtracts the mean of all values so far, which adapts to a long drift,
and its sums cannot be read or restored.
"""

from __future__ import annotations


class PageHinkley:
    """A test for an increase of values whose usual mean is 0, with sums that can be read and restored.

    Args:
        threshold: how far the sum of values must rise above its smallest to be a change.
        tolerance: subtracted from each value.
        total: the sum so far.
        least: the smallest sum so far.
    """

    def __init__(self, *, threshold: float, tolerance: float, total: float = 0.0, least: float = 0.0) -> None:
        self._threshold, self._tolerance = threshold, tolerance
        self._total, self._least = total, least

    @property
    def sums(self) -> tuple[float, float]:
        """The sum, and the smallest sum so far."""
        return self._total, self._least

    def update(self, value: float) -> bool:
        """Add a value and return whether a change is detected."""
        # In this order: rounding is part of the state, which golden checkpoints and digests hold to the last bit.
        self._total = self._total + value - self._tolerance
        self._least = min(self._least, self._total)
        return self._total - self._least > self._threshold
