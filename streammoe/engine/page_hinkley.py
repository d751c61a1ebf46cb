"""Page's cumulative sum test, known in stream learning as the Page-Hinkley test.

For values x_1, x_2, … whose mean is 0 unless there is a change, and a tolerance δ, let S_t = Σ_{i ≤ t} (x_i − δ). A
change is detected at the first t at which S_t − min_{s ≤ t} S_s exceeds the threshold λ.

Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954), 100–115, doi:10.1093/biomet/41.1-2.100; with
a running minimum as in J. Gama, R. Sebastião and P. P. Rodrigues, "On evaluating stream learning algorithms", Machine
Learning 90 (2013), 317–346. `river.drift.PageHinkley` is the same with δ as ``delta``, λ as ``threshold`` and
no forgetting (``alpha=1``), but subtracts the mean of all values so far, which adapts to a long drift, and its sums
cannot be saved to a checkpoint.
"""

from __future__ import annotations


class PageHinkleyTest:
    """A test for an increase in the mean of values, normally 0, whose sums can be saved and restored.

    Args:
        threshold: how far the sum must rise above its minimum for a change to be detected.
        tolerance: subtracted from each value.
        total: the sum so far, to restore a test.
        minimum: the smallest sum so far, likewise.
    """

    def __init__(self, *, threshold: float, tolerance: float, total: float = 0.0, minimum: float = 0.0) -> None:
        self._threshold, self._tolerance = threshold, tolerance
        self._total, self._minimum = total, minimum

    @property
    def sums(self) -> tuple[float, float]:
        """The sum, and the smallest sum so far."""
        return self._total, self._minimum

    def update(self, value: float) -> bool:
        """Add a value and return whether a change is detected."""
        # In this order, since a different rounding would change the digests of golden checkpoints.
        self._total = self._total + value - self._tolerance
        self._minimum = min(self._minimum, self._total)
        return self._total - self._minimum > self._threshold
