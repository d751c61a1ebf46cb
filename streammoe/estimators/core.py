"""What a model holds: an encoder, a warm-up, then a state; how it grows with what events bring, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streammoe.bounds import LARGEST_BUFFER, LARGEST_MODEL, buffer_bytes, model_bytes
from streammoe.engine import mm
from streammoe.engine.drift import Drift, DriftWatch
from streammoe.engine.model_selection import Candidate, Race
from streammoe.engine.state import MMState, copy_array, copy_state, grouping, widen
from streammoe.engine.warming import WarmUp
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators.checks import names_in
from streammoe.estimators.outputs import Outputs
from streammoe.estimators.provisional import ProvisionalMixture
from streammoe.estimators.undo import Snapshot, Undo
from streammoe.features import Encoder
from streammoe.kernels.state import LearningOptions
from streammoe.layout import NO_NEWS, Layout, News
from streammoe.schedules import Restarted, Steps
from streammoe.types import FloatArray
from streammoe.values import check_name


class Core(Outputs):
    """All that learning changes."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._schedule = self.options.schedule
        self._encoder = self._new_encoder()
        self._state: MMState | None = None
        self._race: Race | None = None
        """Candidates side by side. State, residual and options are then those of the one that leads."""
        self._reseeds = np.zeros(2, dtype=np.int64)
        """How many experts were tried as half of another, and how many of those were kept."""
        self._warm_up: WarmUp | None = None
        self._interim: ProvisionalMixture | None = None
        """What may predict while the warm-up lasts."""
        self._residual = np.zeros(0)
        self._options = self._new_options()
        self._watch = None if self.options.drift is None else DriftWatch()
        self._guard = Undo()
        self._reported: set[tuple[int, str]] = set()
        """Which experts the log has told of, and what."""
        self._gathers = False
        """Whether learned rows are only kept, for a batch fit."""

    @property
    def n(self) -> int:
        """Events learned, those in the warm-up buffer, and those that wait for their group, included."""
        if self._state is not None:
            return int(self._state.n[0])
        return 0 if self._warm_up is None else self._warm_up.count

    @property
    def _is_buffering(self) -> bool:
        """Whether learned rows go into a buffer."""
        return self._gathers or self._state is None

    @property
    def fields(self) -> list[Any]:
        """Names of what events hold, in the order of raw rows; without categories and times, `feature_names`."""
        return list(self._encoder.fields)

    @property
    def drifts(self) -> int:
        """Changes of the relation that were found so far; 0 without a detector."""
        return 0 if self._watch is None else self._watch.drifts

    @property
    def last_drift(self) -> Drift | None:
        """The latest of them, its losses in the target's own units; None if there was none."""
        found = None if self._watch is None else self._watch.last
        if found is None:
            return None
        shift = sum(map(math.log, self._encoder.scaler.target_scale.tolist()))
        return found._replace(before=found.before + shift, after=found.after + shift)

    @property
    def _steps(self) -> Steps:
        """Step sizes from here on."""
        drift = self.options.drift
        if drift is None or self._watch is None or self._watch.last is None:
            return self._schedule
        again = self.default_schedule if self._schedule.forgets else self._schedule
        return Restarted(self._schedule, again, self._watch.last.n, drift.restart)

    def _new_encoder(self, columns: Sequence[Any] = ()) -> Encoder:
        encoder = Encoder(
            n_outputs=self._family.n_targets(self._n_outputs),
            degree=self.degree,
            gate_degree=self.gate_degree,
            range_factor=self.range_factor,
            categorical=self.categorical or (),
            timestamps=self.timestamps or (),
            max_levels=self.max_levels,
        )
        encoder.set_columns(columns)
        return encoder

    @property
    def chosen_n_experts(self) -> int | None:
        """K of the mixture that serves now; None before there is one. It may change while candidates race."""
        return None if self._state is None else len(self._state.masses)

    @property
    def n_candidates(self) -> int:
        """How many mixtures learn side by side: 0 before there is one, 1 unless there is a race."""
        if self._race is not None:
            return len(self._race.candidates)
        return 0 if self._state is None else 1

    @property
    def n_reseeds(self) -> tuple[int, int]:
        """How many experts were tried as half of another, and how many of those were kept."""
        tried, kept = self._reseeds.tolist()
        return tried, kept

    def _new_options(self, n_experts: int | None = None) -> LearningOptions:
        return mm.learning_options(
            bound=self.bound,
            n_experts=n_experts or self.chosen_n_experts or self.most_experts,
            n_rows=self._family.n_rows(self._n_outputs),
            prior_strength=self.prior_strength,
            averaging=self.options.averaging_kind,
            schedule=self._schedule,
            averaging_rate=self.options.averaging_rate,
            top_k=self.top_k,
        )

    # -- Changed from outside ------------------------------------------------------------------------------------------

    def set_range_factor(self, range_factor: float) -> None:
        """Judge from now on by another `range_factor`; it says nothing about what was learned.

        Raises:
            ConfigError: it is none that the constructor would take.
        """
        self._change("range_factor", range_factor)
        self._encoder.range_factor = range_factor
        self._guard.forget()

    def set_reseed(self, reseed: str) -> None:
        """Let idle experts be tried as half of another from now on (``"auto"``), or no more (``"off"``).

        Raises:
            ConfigError: it is neither.
        """
        self._change("reseed", reseed)
        self._guard.forget()

    def set_max_levels(self, max_levels: int) -> None:
        """Let categories have more levels from now on; those that had no column until now have to come again.

        Raises:
            ConfigError: it is none that the constructor would take.
        """
        self._change("max_levels", max_levels)
        self._encoder.max_levels = max_levels

    def set_columns(self, names: Sequence[Any]) -> None:
        """Fix the columns of a model that has none yet, in this order."""
        if self._encoder.fields:
            raise ConfigError(f"set_columns: the model has columns already: {self._encoder.fields!r}")
        names = names_in(names, "set_columns")
        for name in names:
            check_name(name, place="set_columns")
        if problem := self._excess(News(tuple(names))):
            raise ConfigError(problem)
        self._encoder.set_columns(names)
        self._guard.forget()

    # -- Growing -------------------------------------------------------------------------------------------------------

    def _candidate(self, state: MMState) -> Candidate:
        """A candidate that goes on from a state."""
        state = grouping(state, self.batch_size, self._family.n_targets(self._n_outputs))
        residual = mm.new_residual(self._family, state, self._n_outputs)
        return Candidate(state, residual, self._new_options(len(state.masses)))

    def _start(self, state: MMState) -> None:
        self._race = None
        self._state, self._residual, self._options = self._candidate(state)

    def _start_race(self, race: Race) -> None:
        self._race = race
        self._state, self._residual, self._options = race.leader()

    def _grow(self, change: Callable[[MMState], MMState]) -> None:
        """Let the mixture, or each candidate, go on as a state with more columns or classes."""
        if self._race is not None:
            self._race.each(lambda state: self._candidate(change(state)))
            self._start_race(self._race)
        elif self._state is not None:
            self._start(change(self._state))
        else:
            self._options = self._new_options()
            if self._interim is not None:
                self._interim.change(lambda state: self._candidate(change(state)), len(self._encoder.feature_names))

    def _take(self, rows: FloatArray, targets: FloatArray, news: News = NO_NEWS) -> None:
        """Let rows into the ranges, and the columns that they bring into the state.

        Raises:
            InvalidEvent: a value is out of range, or the model would become too large.
        """
        if not news:
            self._encoder.take(rows, self._ranged(targets))
            return
        if problem := self._excess(news):
            raise InvalidEvent(problem, reason="too_many_columns", row=0)
        layout = self._encoder.layout
        self._encoder.take(rows, self._ranged(targets), news)
        self._widen(layout)

    def _ranged(self, targets: FloatArray) -> FloatArray:
        """Targets as the ranges are to see them: class indexes have none, but NaN stays "no target"."""
        return targets if self._family.is_metric else 0.0 * targets

    def _append(self, levels: Sequence[tuple[Any, str]]) -> None:
        if levels:
            if problem := self._excess(News((), tuple(levels))):
                raise ConfigError(problem)
            layout = self._encoder.layout
            self._encoder.append_levels(levels)
            self._widen(layout)

    def _widen(self, layout: Layout) -> None:
        """Follow the encoder after it grew from this layout."""
        encoder = self._encoder
        gate_at = encoder.moved(layout, self.gate_degree)
        expert_at = encoder.moved(layout, self.degree)
        if self._warm_up is not None:
            self._warm_up.widen(len(encoder.fields), expert_at, encoder.expert_width)
        self._grow(lambda state: widen(state, gate_at, encoder.gate_width, expert_at, encoder.expert_width))

    def _excess(self, news: News) -> str | None:
        """What is wrong with the size that the model would have with these fields and levels, if anything."""
        K, (p_w, p_v) = self.most_experts, self._encoder.widths_with(news)
        size = model_bytes(K, self._family.n_rows(self._most_outputs), p_w, p_v)
        if size > LARGEST_MODEL:
            return (
                f"a model of {K:,} experts with {p_v:,} features, and {p_w:,} of the gate, would take "
                f"{size / 2**30:,.1f} GiB, and {LARGEST_MODEL >> 30} GiB is the most: give fewer features or levels "
                "(max_levels), or lower degree, gate_degree or n_experts"
            )
        for name, rows in (("warmup", self.options.warmup.size or 0), ("batch_size", self.batch_size)):
            size = buffer_bytes(rows, p_w, p_v)
            if size > LARGEST_BUFFER:
                return (
                    f"{rows:,} events with {p_v:,} features would take {size / 2**30:,.1f} GiB, and "
                    f"{LARGEST_BUFFER >> 30} GiB is the most: lower {name}, degree or gate_degree, or give fewer "
                    "features"
                )
        return None

    # -- The way back --------------------------------------------------------------------------------------------------

    def copied(self, spare: Snapshot | None = None) -> Snapshot:
        """All that learning changes, as it is now; arrays of `spare` are taken for it where they fit."""
        return Snapshot(
            self._encoder.copy(),
            {name: getattr(self, name).copy() for name in self.growing},
            None if self._warm_up is None else self._warm_up.copy(),
            self._interim and self._interim.copy(),
            None if self._state is None or self._race else copy_state(self._state, spare and spare.state),
            copy_array(self._residual, spare and spare.residual),
            self._options,
            self._race and self._race.copy(),
            self._reseeds.copy(),
            self._watch and self._watch.copy(),
        )

    def go_back(self, copied: Snapshot) -> None:
        """The inverse of `copied`, which is used up by it."""
        self._encoder, outputs, self._warm_up, self._interim = copied[:4]
        self._state, self._residual, self._options = copied[4:7]
        self._race, self._reseeds = copied.race, copied.reseeds
        self._watch = copied.watch
        if copied.race is not None:
            self._start_race(copied.race)
        for name, value in outputs.items():
            setattr(self, name, value)
