"""River's Page-Hinkley test as numbers that a checkpoint can hold.

Apart from its users because importing River's detectors takes a second or two, which only those should wait for that
ask for one.
"""

from __future__ import annotations

import math

from river.drift import PageHinkley
from river.stats import Mean


class KeptPageHinkley(PageHinkley):
    """The test for an increase of values whose usual mean is 0, with sums that can be read and given back.

    River's own mean, of all values so far, would get used to a drift that goes on for long.

    Args:
        threshold: how far the sum of values must rise above its smallest to be a change.
        tolerance: what is taken off each value.
        total: the sum so far.
        least: the smallest one so far.
    """

    def __init__(self, *, threshold: float, tolerance: float, total: float = 0.0, least: float = 0.0) -> None:
        super().__init__(min_instances=0, delta=tolerance, threshold=threshold, alpha=1.0, mode="up")
        self._x_mean = Mean()
        self._x_mean.n = math.inf  # values that the mean of 0 is worth, so that no others move it
        self._sum_increase, self._min_increase = total, least

    @property
    def sums(self) -> tuple[float, float]:
        """The sum, and the smallest one so far."""
        return self._sum_increase, self._min_increase

    def rises(self, value: float) -> bool:
        """Take a value; whether the change is found."""
        self.update(value)  # type: ignore[no-untyped-call]
        return self.drift_detected
