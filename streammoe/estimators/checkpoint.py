"""What a checkpoint holds of a model, and the model that a checkpoint holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.drift import DriftWatch
from streammoe.engine.model_selection import Candidate, Race
from streammoe.engine.state import MMState, restored_state, state_arrays
from streammoe.engine.warming import WarmUp
from streammoe.errors import PoisonedModel
from streammoe.estimators.core import Core
from streammoe.estimators.provisional import ProvisionalMixture
from streammoe.options import as_arguments
from streammoe.persistence import durable, pieces, state_digest
from streammoe.text import shown
from streammoe.types import AnyArray

MOST_RUNNERS = 16
"""Candidates side by side, at most; more in a checkpoint are not a model's."""
_OWN = ("encoder.", "state.", "warmup.", "race.", "drift.")
"""How the names of arrays begin that are a model's and shape it."""


class Keeping(Core):
    """Saving and restoring, bit for bit."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably; `streammoe.load` reads it and goes on bit for bit.

        Raises:
            PoisonedModel: a number in it is not finite; nothing was written.
        """
        durable.replace(durable.path_of(path), *pieces(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``.

        Raises:
            PoisonedModel: a number in them is not finite, so that they must not be kept.
        """
        residuals = (
            [self._residual] if self._race is None else [candidate.residual for candidate in self._race.candidates]
        )
        arrays = {
            **self._shaping_arrays(),
            "diagnostics.residual": np.concatenate(residuals),
            "diagnostics.reseeds": self._reseeds,
        }
        poisoned = [name for name, array in arrays.items() if not _may_be_kept(name, array)]
        if poisoned:
            message = (
                f"the model holds numbers that are not finite ({', '.join(poisoned)}), and is not saved; go on from "
                "what was saved before, and report this, please: it is a bug"
            )
            raise PoisonedModel(message)
        return arrays

    def _shaping_arrays(self) -> dict[str, AnyArray]:
        arrays = {**self._encoder.arrays(), **self._output_arrays()}
        if self._warm_up is not None:
            arrays |= self._warm_up.arrays()
        if self._interim is not None:
            arrays |= self._interim.arrays()
        if self._race is not None:
            arrays["race.totals"] = self._race.totals
            arrays["race.counts"] = np.array([self._race.until, self._race.expert], dtype=np.int64)
            for at, candidate in enumerate(self._race.candidates):
                arrays |= state_arrays(candidate.state, f"race.{at}")
        elif self._state is not None:
            arrays |= state_arrays(self._state, "state")
        if self._watch is not None:
            arrays |= self._watch.arrays()
        return arrays

    def describe(self) -> dict[str, Any]:
        """The JSON part of a checkpoint: which model this is, and its fingerprint."""
        return {**self.identify(), "state_digest": self.state_digest()}

    def identify(self) -> dict[str, Any]:
        """`describe` without the fingerprint, which takes a while for a wide model."""
        return {
            "model": {"kind": type(self).__name__, "arguments": self.arguments()},
            "n": self.n,
        }

    def state_digest(self) -> str:
        """sha256 over everything that shapes what comes next; equal digests mean equal futures."""
        return state_digest(self._shaping_arrays())

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> Self:
        """The inverse of `arrays` and `describe`.

        Raises:
            CheckpointError: an array is missing, unknown, of another shape than the model asks for, or holds what no
                model can. `streammoe.checked` says the same of other errors, which a description may cause.
        """
        model = cls(**as_arguments(cls.options_type, description["arguments"]))
        model._restore_outputs(arrays)
        model._encoder = model._new_encoder()
        model._encoder.restore(arrays)
        model._restore_state(arrays)
        if model._watch is not None:
            model._watch = DriftWatch.from_arrays(arrays)
        unknown = sorted({name for name in arrays if name.startswith(_OWN)} - model._shaping_arrays().keys())
        require(not unknown, f"there are arrays that belong to no such model: {shown(unknown)}")
        if model._state is None:
            model._options = model._new_options()
        return model

    def _restore_state(self, arrays: Mapping[str, AnyArray]) -> None:
        """The state, or what there is before the warm-up is over; both do not go together."""
        Q, p_v = self._n_outputs, self._encoder.expert_width
        places = ["state"] if "state.n" in arrays else []
        totals = np.zeros(1)
        if "race.totals" in arrays:
            require(not places, "there are arrays of both a mixture and a race of several")
            totals = array_of(arrays, "race.totals", "float64", (None,))
            require(2 <= len(totals) <= MOST_RUNNERS, f"array race.totals holds {len(totals)} candidates")
            places = [f"race.{at}" for at in range(len(totals))]
        require(Q or not (places or "warmup.X" in arrays), "there is a state of a model without outputs")
        candidates = [self._candidate(self._restored_state(arrays, place)) for place in places]
        residual = array_of(
            arrays, "diagnostics.residual", "float64", (sum(len(candidate.residual) for candidate in candidates),)
        )
        cuts = np.cumsum([len(candidate.residual) for candidate in candidates])[:-1]
        candidates = [
            candidate._replace(residual=part.copy())
            for candidate, part in zip(candidates, np.split(residual, cuts) if candidates else [], strict=True)
        ]
        if len(candidates) > 1:
            until, expert = self._race_counts(arrays, candidates)
            self._start_race(Race(candidates, totals.copy(), until, expert))
        elif candidates:
            self._state, self._residual, self._options = candidates[0]
        elif "warmup.X" in arrays:
            n_fields = len(self._encoder.fields)
            self._warm_up = WarmUp.from_arrays(self._family, arrays, n_outputs=Q, n_fields=n_fields, p_v=p_v)
            self._encoder.check_rows(self._warm_up.X)
            if "warmup.totals" in arrays:
                self._interim = self._restored_interim(arrays, self._warm_up.count)
        # Checkpoints of version 0.1 know no experts that begin anew.
        given = {"diagnostics.reseeds": self._reseeds, **arrays}
        self._reseeds = array_of(given, "diagnostics.reseeds", "int64", (2,), least=0.0, most=LARGEST_COUNT).copy()

    def _restored_interim(self, arrays: Mapping[str, AnyArray], count: int) -> ProvisionalMixture:
        """The mixture of a warm-up that has buffered so many events."""
        candidate = self._candidate(self._restored_state(arrays, "warmup.interim"))
        n = int(candidate.state.n[0])
        require(n == count, f"array warmup.interim.n speaks of {n} events, and {count} are in the buffer")
        return ProvisionalMixture.from_arrays(arrays, candidate, self._encoder)

    def _restored_state(self, arrays: Mapping[str, AnyArray], place: str) -> MMState:
        K = self.most_experts
        if self.is_choosing:
            found = len(array_of(arrays, f"{place}.masses", "float64", (None,)))
            require(0 < found <= K, f"array {place}.masses speaks of {found} experts; there may be 1 to {K}")
            K = found
        encoder = self._encoder
        return restored_state(
            arrays,
            place,
            self._family,
            n_experts=K,
            n_outputs=self._n_outputs,
            p_w=encoder.gate_width,
            p_v=encoder.expert_width,
            batch_size=self.batch_size,
        )

    def _race_counts(self, arrays: Mapping[str, AnyArray], candidates: Sequence[Candidate]) -> tuple[int, int]:
        """When a race is decided, and the expert that it is about."""
        until, expert = array_of(arrays, "race.counts", "int64", (2,), least=-1.0, most=LARGEST_COUNT).tolist()
        counts = {int(candidate.state.n[0]) for candidate in candidates}
        require(len(counts) == 1, f"the candidates of a race have learned different numbers of events: {counts}")
        require(until > max(counts), f"array race.counts ends a race at {until} that goes on at {max(counts)}")
        same = {len(candidate.state.masses) for candidate in candidates}
        require(
            expert < 0 or (len(same) == 1 and expert < max(same)),
            f"array race.counts names expert {expert}, and candidates have {same} of them",
        )
        return until, expert


def _may_be_kept(name: str, array: AnyArray) -> bool:
    """Whether an array holds nothing that would spoil a model; NaN in the warm-up buffer is a missing value."""
    if array.dtype.kind != "f":
        return True
    spoilt = np.isinf(array) if name == "warmup.X" else ~np.isfinite(array)
    return not spoilt.any()
