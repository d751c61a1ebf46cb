"""Page's cumulative sum test, known in stream learning as the Page-Hinkley test, as two numbers in a checkpoint.

With values x_1, x_2, … whose usual mean is 0 and a tolerance δ, the sum is S_t = Σ_{i ≤ t} (x_i − δ); a change is found
at the first t at which S_t − min_{s ≤ t} S_s exceeds the threshold λ.

Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954), 100–115, doi:10.1093/biomet/41.1-2.100; with
a running minimum as in J. Gama, R. Sebastião and P. P. Rodrigues, "On evaluating stream learning algorithms", Machine
Learning 90 (2013), 317–346. `river.drift.PageHinkley` is the same with δ as ``delta``, λ as
``threshold`` and no fading (``alpha=1``), but subtracts the mean of all values so far, which gets used to a drift that
goes on for long, and its sums cannot be read or restored.
"""

from __future__ import annotations


class PageHinkley:
    """The test for an increase of values whose usual mean is 0, with sums that can be read and restored.

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
        """The sum, and the smallest one so far."""
        return self._total, self._least

    def rises(self, value: float) -> bool:
        """Take a value; whether the change is found."""
        # In this order: rounding is part of the state, which golden checkpoints and digests hold to the last bit.
        self._total = self._total + value - self._tolerance
        self._least = min(self._least, self._total)
        return self._total - self._least > self._threshold
