"""The life of experts: told of at fixed counts, begun anew as half of another, and races decided."""

from __future__ import annotations

import logging

import numpy as np

from streammoe.engine.model_selection import CHARGE_EVERY, Candidate, Race, n_parameters, race_start
from streammoe.engine.split_merge import Life, costliest, idle, life, reseeded
from streammoe.engine.state import copy_state
from streammoe.errors import ConfigError
from streammoe.estimators.arguments import is_whole
from streammoe.estimators.starting import Starting
from streammoe.kernels.state import MMState

LOGGER = logging.getLogger("streammoe.estimators")
FIRST_LOOK = 2048
"""Events learned at which experts are looked at first; then at twice as many each, up to `LOOK_EVERY`, and then at each
multiple of that."""
LOOK_EVERY = 65_536
SHORTEST_TRIAL, LONGEST_TRIAL = 1024, 8192
"""Events for which an expert is tried as half of another: a quarter of those that have been learned, within these."""


def next_look(n: int) -> int:
    """The next count after n at which experts are looked at.

    >>> [next_look(n) for n in (0, 2047, 2048, 50_000, 65_536, 131_072)]
    [2048, 2048, 4096, 65536, 131072, 196608]
    """
    if n >= LOOK_EVERY:
        return (n // LOOK_EVERY + 1) * LOOK_EVERY
    return max(FIRST_LOOK, 1 << n.bit_length())


class Living(Starting):
    """Looks at the experts at counts that depend on nothing but the events learned."""

    def reseed_expert(self, expert: int) -> None:
        """Begin an expert anew, at once: as one half of the expert whose loss costs the mixture most.

        What it knew goes to its nearest, so that statistics of the mixture as a whole stay what they are.

        Raises:
            ConfigError: there is no such expert, or no other one.
        """
        state = self._state
        known = state is not None and is_whole(expert, 0) and expert < len(state.masses)
        if state is None or not known or len(state.masses) < 2:
            K = self.chosen_n_experts
            rule = "the warm-up is not over" if K is None else f"the model has {K}; two are the least, 0 the first"
            raise ConfigError(f"reseed_expert: there is no expert {expert!r} to begin anew: {rule}")
        found = life(self._family, state, self._options)
        self._start(self._reseeded(state, found, expert, 0))
        self._reseeds += 1
        self._guard.forget()

    def _reseeded(self, state: MMState, found: Life, expert: int, attempt: int) -> MMState:
        """A state in which an expert is half of another: of the worst one, or in further attempts of the next."""
        parents = costliest(found, expert)
        return reseeded(
            state,
            expert,
            heir=int(found.nearest[expert]),
            parent=parents[attempt % len(parents)],
            rng=np.random.default_rng((self.seed, self.n, attempt)),
            n_features=self._encoder.n_expert_features,
            window=self._window(),
        )

    def _next_event(self) -> int:
        """The count of learned events at which something is due."""
        if self._is_buffering and self._warm_up is not None:
            return self._next_fit(self._warm_up)
        return next_look(self.n) if self._race is None else self._race.due(self.n)

    def _on_due(self) -> None:
        """What is due at this count."""
        if self._is_buffering and self._warm_up is not None:
            self._fit_buffered(self._warm_up)
            self._guard.expire()
        elif self._race is not None:
            self._go_on(self._race)
        elif self._state is not None and len(self._state.masses) > 1:
            self._look(self._state)

    def _go_on(self, race: Race) -> None:
        """Charge the candidates for the events since the last time, and decide when all have been learned."""
        if race.expert < 0:
            # A file may speak of a race that is to begin yet: nothing is owed for that, nor refunded.
            race.charge(min(CHARGE_EVERY, max(self.n - race_start(race.until), 0)))
            self._start_race(race)
        if self.n == race.until:
            self._decide(race)

    def _look(self, state: MMState) -> None:
        found = life(self._family, state, self._options)
        for k in range(len(found.shares)):
            if found.starved[k]:
                self._report(k, "starved", f"it answers for a share of {found.shares[k]:.2g} of the events")
            elif found.duplicate[k]:
                near, apart = found.nearest[k], found.divergences[k]
                self._report(k, "a duplicate", f"it says what expert {near} says, but for {apart:.2g} nats an event")
        expert = idle(found)
        if self.reseed == "off" or expert is None:
            return
        tried = self._reseeded(state, found, expert, int(self._reseeds[0]))
        self._reseeds[0] += 1
        until = self.n + min(max(self.n // 4, SHORTEST_TRIAL), LONGEST_TRIAL)
        # The second is there so that the third does not win by an average that begins anew, and by that alone.
        renewed = copy_state(state)._replace(n_average=tried.n_average.copy())
        candidates = [Candidate(state, self._residual, self._options), self._candidate(renewed), self._candidate(tried)]
        self._start_race(Race(candidates, np.array([0.0, 0.0, self._handicap()]), until, expert))
        LOGGER.info("expert %d is tried as half of another until event %d", expert, until)

    def _window(self) -> int:
        """Events that count for a step: about the last 1/γ."""
        return max(round(1.0 / self._steps(self.n + 1)), 1)

    def _handicap(self) -> float:
        """Nats by which a model with an expert begun anew must predict better: one for each parameter of an expert."""
        encoder = self._encoder
        sizes = (self._n_outputs, encoder.n_gate_features, encoder.n_expert_features)
        return float(n_parameters(self._family, 2, *sizes) - n_parameters(self._family, 1, *sizes))

    def _decide(self, race: Race) -> None:
        """Go on with the best candidate alone."""
        best = int(race.totals.argmin())
        self._race = None
        self._state, self._residual, self._options = race.candidates[best]
        gains = race.totals - race.totals.min()
        if race.expert < 0:
            costs = ", ".join(
                f"{len(candidate.state.masses)}: {gain:.1f}"
                for candidate, gain in zip(race.candidates, gains, strict=True)
            )
            LOGGER.info(
                "the model has %d experts from here; nats lost by each candidate: %s (event %d)",
                len(self._state.masses),
                costs,
                self.n,
            )
        elif best == len(race.candidates) - 1:
            self._reseeds[1] += 1
            # What the average holds of the time in which the halves parted is to fade soon.
            np.minimum(self._state.n_average, self._window(), out=self._state.n_average)
            self._reported = {(k, kind) for k, kind in self._reported if k != race.expert}
            LOGGER.info(
                "expert %d has begun anew as half of another, which predicts better by %.1f nats (event %d)",
                race.expert,
                gains[:-1].min() + self._handicap(),
                self.n,
            )
        else:
            LOGGER.info("expert %d stays as it is: as half of another it did not predict better", race.expert)

    def _report(self, expert: int, what: str, why: str) -> None:
        if (expert, what) not in self._reported:
            self._reported.add((expert, what))
            LOGGER.warning("expert %d is %s: %s; docs/experts.md says what to do (event %d)", expert, what, why, self.n)
