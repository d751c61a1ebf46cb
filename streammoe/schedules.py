"""Step sizes γ_n: how much the n-th event counts, n = 1, 2, ….

A new schedule is a `part` with a method and two facts, and an entry in `SCHEDULES`; config files and checkpoints
read all of it from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeAlias

from streammoe.fields import option, part

LARGEST = 1.0 - 1e-12
"""A step of 1 would forget everything before it, and the recursions divide by 1 − γ."""


@part
class Power:
    """Steps that shrink like n^(−alpha), so that the estimate converges.

    γ_n = min(gamma0 · (n + offset)^(−alpha), 1 − 1e-12). With `alpha` 1 and `gamma0` 1 they give plain running means.
    Below 1, average the iterates.

    >>> Power(1.0)(4)
    0.25
    >>> Power(alpha=2)
    Traceback (most recent call last):
        ...
    streammoe.errors.ConfigError: Power.alpha: must be at most 1, got 2
    """

    alpha: float = option(0.6, "How fast they shrink.", ge=0.5, le=1)
    gamma0: float = option(1.0, "Their scale.", gt=0)
    offset: float = option(0.0, "Pseudo-events before the first one, which tame the first steps.", ge=0)

    forgets: ClassVar[bool] = False
    """Whether old events fade at a constant rate, so that an average must forget too."""
    origin: ClassVar[int] = 0
    """How many events came before steps last restarted."""

    def __call__(self, n: int) -> float:
        """Return γ of the n-th event, counted from 1."""
        return min(self.gamma0 * math.pow(n + self.offset, -self.alpha), LARGEST)


@part
class Constant:
    """Steps of one size: about the last 1/gamma events count, so that the estimate follows a stream that drifts.

    >>> Constant(0.01)(1_000_000)
    0.01
    """

    gamma: float = option(..., "Their size.", gt=0, lt=1)

    forgets: ClassVar[bool] = True
    origin: ClassVar[int] = 0

    def __call__(self, n: int) -> float:
        """Return γ of the n-th event, counted from 1."""
        return min(self.gamma, LARGEST)


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


Steps: TypeAlias = Schedule | Restarted
"""A source of step sizes."""
SCHEDULES: Mapping[str, type[Schedule]] = {"power": Power, "constant": Constant}
"""The name of each schedule in config files and checkpoints."""
