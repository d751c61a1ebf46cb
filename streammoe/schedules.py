"""Step sizes γ_n: how much the n-th event counts, n = 1, 2, ….

A new schedule is a named tuple with its numbers' ranges in the annotations, two methods, and an entry in `SCHEDULES`;
factories, config files and checkpoints read all of it from there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, cast, get_type_hints

import numpy as np
from annotated_types import Interval

from streammoe.errors import ConfigError
from streammoe.text import shown
from streammoe.types import FloatArray, as_python

LARGEST = 1.0 - 1e-12
"""A step of 1 would forget everything before it, and the recursions divide by 1 − γ."""


class Power(NamedTuple):
    """γ_n = min(gamma0 · (n + offset)^(−alpha), 1 − 1e-12)."""

    alpha: Annotated[float, Interval(ge=0.5, le=1)] = 0.6
    gamma0: Annotated[float, Interval(gt=0)] = 1.0
    offset: Annotated[float, Interval(ge=0)] = 0.0

    @property
    def forgets(self) -> bool:
        """Whether old events fade at a constant rate, so that an average must forget too."""
        return False

    @property
    def origin(self) -> int:
        """How many events came before steps last restarted."""
        return 0

    def __call__(self, n: int) -> float:
        """Return γ of the n-th event, counted from 1."""
        return min(self.gamma0 * math.pow(n + self.offset, -self.alpha), LARGEST)

    def steps(self, first: int, count: int) -> FloatArray:
        """Return γ_n for n = first, …, first + count − 1, bit for bit as the scalar call."""
        return _compiled_steps()(first, count, *self)


class Constant(NamedTuple):
    """γ_n = gamma: the last 1/gamma events or so count, which tracks drift."""

    gamma: Annotated[float, Interval(gt=0, lt=1)]

    @property
    def forgets(self) -> bool:
        """Whether old events fade at a constant rate, so that an average must forget too."""
        return True

    @property
    def origin(self) -> int:
        """How many events came before steps last restarted."""
        return 0

    def __call__(self, n: int) -> float:
        """Return γ of the n-th event, counted from 1."""
        return min(self.gamma, LARGEST)

    def steps(self, first: int, count: int) -> FloatArray:
        """Return γ_n for n = first, …, first + count − 1, bit for bit as the scalar call."""
        return np.full(count, self(first))


Schedule: TypeAlias = Power | Constant


class Restarted(NamedTuple):
    """γ_n = max(base(n), again(seen + n − at)): steps that were widened after `at` events, and shrink again.

    Not a setting: a model derives it from its schedule when a drift is detected.
    """

    base: Schedule
    again: Schedule
    at: int
    """Events learned when steps were widened."""
    seen: int
    """Events that `again` counts as seen by then."""

    @property
    def origin(self) -> int:
        """How many events came before steps last restarted."""
        return self.at

    def __call__(self, n: int) -> float:
        """Return γ of the n-th event, n > at."""
        return max(self.base(n), self.again(self.seen + n - self.at))

    def steps(self, first: int, count: int) -> FloatArray:
        """Return γ_n for n = first, …, first + count − 1, bit for bit as the scalar call."""
        again = self.again.steps(self.seen + first - self.at, count)
        return np.maximum(self.base.steps(first, count), again)


Steps: TypeAlias = Schedule | Restarted
"""A source of step sizes."""
SCHEDULES: Mapping[str, type[Schedule]] = {"power": Power, "constant": Constant}
"""The name of each schedule in config files and checkpoints."""


def power(alpha: float = 0.6, gamma0: float = 1.0, offset: float = 0) -> Power:
    """Create steps that shrink like n^(−alpha), so that the estimate converges.

    Args:
        alpha: in [0.5, 1]; 1 with `gamma0` = 1 gives plain running means. Below 1, average the iterates.
        gamma0: scale, above 0.
        offset: pseudo-events before the first one, at least 0; tames the first steps.

    Raises:
        ConfigError: a number is out of its range.

    >>> schedule = power(alpha=1.0)
    >>> schedule(4)
    0.25
    >>> schedule.steps(1, 3).round(3).tolist()
    [1.0, 0.5, 0.333]
    >>> power(alpha=2)
    Traceback (most recent call last):
        ...
    streammoe.errors.ConfigError: alpha must be a number in [0.5, 1], got 2
    """
    return _validated(Power(alpha, gamma0, offset))


def constant(gamma: float) -> Constant:
    """Create steps of one size: the estimate forgets, and so follows a stream that drifts.

    Args:
        gamma: in (0, 1); about the last 1/gamma events count.

    Raises:
        ConfigError: `gamma` is out of its range.

    >>> constant(0.01)(1_000_000)
    0.01
    """
    return _validated(Constant(gamma))


Checked = TypeVar("Checked", bound=Schedule)


def _validated(schedule: Checked) -> Checked:
    """Return the schedule with plain floats; report every number out of range in one error."""
    hints = get_type_hints(type(schedule), include_extras=True)
    numbers: dict[str, Any] = {name: as_python(value) for name, value in schedule._asdict().items()}
    problems = [
        f"{name} must be a number in {_written(interval)}, got {shown(value)}"
        for name, value in numbers.items()
        for interval in hints[name].__metadata__
        if not (not isinstance(value, bool) and isinstance(value, Real) and _contains(interval, value))
    ]
    if problems:
        raise ConfigError(*problems)
    return type(schedule)(*map(float, numbers.values()))


def _contains(interval: Interval, value: Any) -> bool:
    low, high = _ends(interval)
    return bool(abs(value) <= sys.float_info.max and (low < value < high or value in (interval.ge, interval.le)))


def _written(interval: Interval) -> str:
    low, high = _ends(interval)
    return f"{'(' if interval.ge is None else '['}{low}, {high}{')' if interval.le is None else ']'}"


def _ends(interval: Interval) -> tuple[Any, Any]:
    low = interval.gt if interval.ge is None else interval.ge
    high = interval.lt if interval.le is None else interval.le
    return -math.inf if low is None else low, math.inf if high is None else high


# A compiled loop over the scalar power, because rounding in NumPy's vectorized one depends on an element's position in
# the array, and a step must not depend on where a batch was cut.
def _power_steps(first: int, count: int, alpha: float, gamma0: float, offset: float) -> FloatArray:
    steps = np.empty(count)
    for i in range(count):
        steps[i] = min(gamma0 * math.pow(first + i + offset, -alpha), LARGEST)
    return steps


@cache
def _compiled_steps() -> Callable[[int, int, float, float, float], FloatArray]:
    import numba  # takes a second to import, which settings and help can do without

    return cast("Callable[[int, int, float, float, float], FloatArray]", numba.njit(cache=True)(_power_steps))
