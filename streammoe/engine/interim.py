"""A mixture fitted to the first part of a long warm-up's buffer: it learns beside the one expert, and the better serves.

It lives in the units of the events, as the one expert does: how inputs are scaled is only settled by the whole buffer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streammoe.engine import mm
from streammoe.engine.racing import Runner, led
from streammoe.engine.state import MMState, UnsoundError, copy_array, copy_state
from streammoe.experts import Family
from streammoe.schedules import Steps
from streammoe.types import FloatArray

FIRST_FIT = 400
"""Events at which the first mixture is fitted; then at twice as many each."""
LARGEST_PART = 0.7
"""Of the whole buffer; a fit to more of it is hardly worth what it takes, with the last one so near."""
RESTARTS = 2
MOST_ROUNDS = 200.0
"""Of EM in one fit. The fit to the whole buffer has some thousand, where they are affordable."""


def next_fit(n: int, size: int) -> int:
    """The next count after n at which buffered events are fitted, where the buffer holds `size` of them.

    >>> [next_fit(n, 2000) for n in (0, 399, 400, 800)], next_fit(0, 500)
    ([400, 400, 800, 2000], 500)
    """
    due = FIRST_FIT
    while due <= n:
        due *= 2
    return due if due <= LARGEST_PART * size else size


class Interim:
    """A mixture with what it and the one expert have cost since it was fitted.

    Attributes:
        runner: the mixture, with all that its steps need.
        totals: (2,) −log-likelihood of the events since the fit, each predicted before it was learned: of the mixture,
            and of the one expert.
    """

    def __init__(self, runner: Runner, totals: FloatArray | None = None) -> None:
        self.runner = runner
        self.totals = np.zeros(2) if totals is None else totals
        self._spare: MMState | None = None

    @property
    def leads(self) -> bool:
        """Whether the mixture has cost no more than the one expert."""
        return bool(self.totals[0] <= self.totals[1])

    def learn(
        self,
        family: Family,
        steps: Steps,
        W: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        one: mm.Scores,
        *,
        weights: FloatArray,
        n_outputs: int,
        traced: bool,
    ) -> mm.Scores:
        """Learn rows that the one expert has learned; each row's score is that of whoever led before it.

        Args:
            one: what the one expert said of them. The others are those of `mm.learn`.

        Raises:
            UnsoundError: some of them leave no finite mixture, and it is as it was before.
        """
        state, residual, options = self.runner
        # One expert may go on where the mixture cannot, so that the rows themselves must not be refused.
        before = copy_state(state, self._spare)
        try:
            own = mm.learn(
                family,
                state,
                residual,
                options,
                steps,
                W,
                R,
                Y,
                weights=weights,
                n_outputs=n_outputs,
                traced=traced,
            )
        except UnsoundError:
            self.runner = Runner(before, mm.new_residual(family, before, n_outputs), options)
            self._spare = None
            raise
        self._spare = before
        scores, self.totals = led([own, one], self.totals, weights)
        return scores

    def change(self, change: Callable[[MMState], Runner]) -> None:
        """Go on as another state, which has more columns or classes."""
        self.runner = change(self.runner.state)
        self._spare = None

    def copy(self) -> Interim:
        """One that shares nothing with this one."""
        state, residual, options = self.runner
        return Interim(Runner(copy_state(state), copy_array(residual, None), options), self.totals.copy())
