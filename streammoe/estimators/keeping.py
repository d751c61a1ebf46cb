"""What a checkpoint holds of a model, and the model that a checkpoint holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from streammoe.engine import mm
from streammoe.engine.drift import DriftWatch
from streammoe.engine.state import restored_state, state_arrays
from streammoe.engine.warming import WarmUp
from streammoe.errors import PoisonedModel
from streammoe.estimators.arguments import restored_arguments
from streammoe.estimators.core import Core
from streammoe.persistence import durable, pieces, state_digest
from streammoe.restoring import array_of, must_be, shown
from streammoe.types import AnyArray

_OWN = ("encoder.", "state.", "warmup.", "drift.")
"""How the names of arrays begin that are a model's and shape it."""


class Keeping(Core):
    """Saving and restoring, bit for bit."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably; `streammoe.load` reads it and goes on bit for bit.

        Raises:
            PoisonedModel: a number in it is not finite; nothing was written.
        """
        durable.replace(Path(path), *pieces(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``.

        Raises:
            PoisonedModel: a number in them is not finite, so that they must not be kept.
        """
        arrays = {**self._shaping_arrays(), "diagnostics.residual": self._residual}
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
        if self._state is not None:
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
                model can. `streammoe.restoring` says the same of other errors, which a description may cause.
        """
        model = cls(**restored_arguments(description["arguments"]))
        model._restore_outputs(arrays)
        model._encoder = model._new_encoder()
        model._encoder.restore(arrays)
        model._restore_state(arrays)
        if model._watch is not None:
            model._watch = DriftWatch.from_arrays(arrays)
        unknown = sorted({name for name in arrays if name.startswith(_OWN)} - model._shaping_arrays().keys())
        must_be(not unknown, f"there are arrays that belong to no such model: {shown(unknown)}")
        model._options = model._new_options()
        return model

    def _restore_state(self, arrays: Mapping[str, AnyArray]) -> None:
        """The state, or what there is before the warm-up is over; both do not go together."""
        family, Q, p_v = self._family, self._n_outputs, self._encoder.expert_width
        size = 0
        must_be(Q or not ("state.n" in arrays or "warmup.X" in arrays), "there is a state of a model without outputs")
        if "state.n" in arrays:
            p_w = self._encoder.gate_width
            self._state = restored_state(
                arrays, "state", family, n_experts=self.n_experts, n_outputs=Q, p_w=p_w, p_v=p_v
            )
            size = len(mm.new_residual(family, self._state, Q))
        elif "warmup.X" in arrays:
            n_fields = len(self._encoder.fields)
            self._warm_up = WarmUp.from_arrays(family, arrays, n_outputs=Q, n_fields=n_fields, p_v=p_v)
            self._encoder.check_rows(self._warm_up.X)
        self._residual = array_of(arrays, "diagnostics.residual", "float64", (size,))


def _may_be_kept(name: str, array: AnyArray) -> bool:
    """Whether an array holds nothing that would spoil a model; NaN in the warm-up buffer is a missing value."""
    if array.dtype.kind != "f":
        return True
    spoilt = np.isinf(array) if name == "warmup.X" else ~np.isfinite(array)
    return not spoilt.any()
