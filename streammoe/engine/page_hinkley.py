"""River's Page-Hinkley test as numbers that a checkpoint can hold.

Apart from its users because importing River's detectors takes a second or two, which only those should wait for that
ask for one.
"""

from __future__ import annotations

from river.drift import PageHinkley
from river.stats import Mean

from streammoe.types import FloatArray

PARTS = 4
"""Numbers that the test is made of."""


class KeptPageHinkley(PageHinkley):
    """The test for an increase, whose sums can be read and given back.

    Args:
        threshold: the sum that is a change.
        tolerance: what is taken off each value beyond the mean.
        least: values before which nothing is a change.
        sums: (4,) what `read` said; None for a new one.
    """

    def __init__(self, *, threshold: float, tolerance: float, least: int, sums: FloatArray | None = None) -> None:
        super().__init__(min_instances=least, delta=tolerance, threshold=threshold, mode="up")
        # Before the first value the smallest sum is infinite, which a new test has by itself.
        if sums is not None and sums[0] > 0.0:
            n, mean, self._sum_increase, self._min_increase = sums.tolist()
            self._x_mean = Mean._from_state(n, mean)

    def read(self, sums: FloatArray) -> None:
        """Write values taken, their mean, the sum and the smallest one so far to `sums`; all 0 before the first."""
        n = self._x_mean.n
        sums[:] = (n, self._x_mean.get(), self._sum_increase, self._min_increase) if n else 0.0
