"""Save a model to the arrays of a checkpoint, and restore it bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.drift import DriftWatch
from streammoe.engine.model_selection import Candidate
from streammoe.engine.state import MMState, restored_state
from streammoe.engine.warming import OneExpert
from streammoe.errors import PoisonedModel
from streammoe.model.context import Context
from streammoe.model.learner import Learner
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.provisional import ProvisionalMixture
from streammoe.model.phases.streaming import Mixture, Race
from streammoe.model.phases.warmup import Blank, WarmUp
from streammoe.text import shown
from streammoe.types import AnyArray

MOST_CANDIDATES = 16
"""Candidates side by side, at most; more in a checkpoint are not a model's."""
_OWN = ("encoder.", "state.", "warmup.", "race.", "drift.")
"""How the names of arrays begin that are a model's and shape it."""


def arrays_of(learner: Learner) -> dict[str, AnyArray]:
    """Return all arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``.

    Raises:
        PoisonedModel: a number in them is not finite, so that they must not be kept.
    """
    arrays = {
        **shaping_arrays(learner),
        "diagnostics.residual": learner.phase.residual,
        "diagnostics.reseeds": learner.context.reseeds,
    }
    poisoned = [name for name, array in arrays.items() if not _may_be_kept(name, array)]
    if poisoned:
        message = (
            f"the model holds numbers that are not finite ({', '.join(poisoned)}), and is not saved; go on from "
            "what was saved before, and report this, please: it is a bug"
        )
        raise PoisonedModel(message)
    return arrays


def shaping_arrays(learner: Learner) -> dict[str, AnyArray]:
    """Return everything that shapes what comes next, by name."""
    context = learner.context
    watch = {} if context.watch is None else context.watch.arrays()
    return {**context.encoder.arrays(), **context.targets.arrays(), **learner.phase.arrays(), **watch}


def restore(learner: Learner, arrays: Mapping[str, AnyArray]) -> None:
    """Restore in a new learner what `arrays_of` returned.

    Raises:
        CheckpointError: an array is missing, unknown, of another shape than the model asks for, or holds what no
            model can.
    """
    context = learner.context
    context.targets.restore(arrays)
    context.encoder = context.new_encoder()
    context.encoder.restore(arrays)
    learner.phase = _phase(context, arrays)
    if context.watch is not None:
        context.watch = DriftWatch.from_arrays(arrays)
    unknown = sorted({name for name in arrays if name.startswith(_OWN)} - shaping_arrays(learner).keys())
    require(not unknown, f"there are arrays that belong to no such model: {shown(unknown)}")


def _phase(context: Context, arrays: Mapping[str, AnyArray]) -> Phase:
    """Return the phase that arrays describe; a warm-up does not go together with what comes after it."""
    n_outputs = context.targets.n_outputs
    places = ["state"] if "state.n" in arrays else []
    totals = np.zeros(1)
    if "race.totals" in arrays:
        require(not places, "there are arrays of both a mixture and a race of several")
        totals = array_of(arrays, "race.totals", "float64", (None,))
        require(2 <= len(totals) <= MOST_CANDIDATES, f"array race.totals holds {len(totals)} candidates")
        places = [f"race.{at}" for at in range(len(totals))]
    require(n_outputs or not (places or "warmup.X" in arrays), "there is a state of a model without outputs")
    candidates = [context.candidate(_state(context, arrays, place)) for place in places]
    sizes = [len(candidate.residual) for candidate in candidates]
    residual = array_of(arrays, "diagnostics.residual", "float64", (sum(sizes),))
    parts = np.split(residual, np.cumsum(sizes)[:-1]) if candidates else []
    candidates = [candidate._replace(residual=part.copy()) for candidate, part in zip(candidates, parts, strict=True)]
    # Checkpoints of version 0.1 know no experts that are reseeded.
    given = {"diagnostics.reseeds": context.reseeds, **arrays}
    context.reseeds = array_of(given, "diagnostics.reseeds", "int64", (2,), least=0.0, most=LARGEST_COUNT).copy()
    if len(candidates) > 1:
        return Race(candidates, totals.copy(), *_race_counts(arrays, candidates))
    if candidates:
        return Mixture(candidates[0])
    return _warm_up(context, arrays) if "warmup.X" in arrays else Blank()


def _warm_up(context: Context, arrays: Mapping[str, AnyArray]) -> WarmUp:
    encoder = context.encoder
    one = OneExpert.from_arrays(
        context.family,
        arrays,
        n_outputs=context.targets.n_outputs,
        n_fields=len(encoder.fields),
        p_v=encoder.expert_width,
    )
    encoder.check_rows(one.X)
    if "warmup.totals" not in arrays:
        return WarmUp(one)
    candidate = context.candidate(_state(context, arrays, "warmup.interim"))
    n = int(candidate.state.n[0])
    require(n == one.count, f"array warmup.interim.n speaks of {n} events, and {one.count} are in the buffer")
    return WarmUp(one, ProvisionalMixture.from_arrays(arrays, candidate, encoder))


def _state(context: Context, arrays: Mapping[str, AnyArray], place: str) -> MMState:
    options, encoder = context.options, context.encoder
    K = options.most_experts
    if options.is_choosing:
        found = len(array_of(arrays, f"{place}.masses", "float64", (None,)))
        require(0 < found <= K, f"array {place}.masses speaks of {found} experts; there may be 1 to {K}")
        K = found
    return restored_state(
        arrays,
        place,
        context.family,
        n_experts=K,
        n_outputs=context.targets.n_outputs,
        p_w=encoder.gate_width,
        p_v=encoder.expert_width,
        batch_size=options.batch_size,
    )


def _race_counts(arrays: Mapping[str, AnyArray], candidates: Sequence[Candidate]) -> tuple[int, int]:
    """Return when a race is decided, and the expert that it is about."""
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
    """Return whether an array holds nothing that would spoil a model; NaN in the warm-up buffer is a missing value."""
    if array.dtype.kind != "f":
        return True
    spoilt = np.isinf(array) if name == "warmup.X" else ~np.isfinite(array)
    return not spoilt.any()
