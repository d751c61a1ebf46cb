"""What the log says of batches: each thing once, or when it has changed."""

from __future__ import annotations

import logging

from streammoe.daemon.run_state import RunState
from streammoe.pipeline.pipeline import BatchResult
from streammoe.ports import Batch

LOGGER = logging.getLogger("streammoe.daemon")


class Notices:
    """Notices of a run, given its batches in order.

    Args:
        state: of the run, which has not taken a batch yet when it is reported.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._was_warming_up = state.model.is_warming_up
        self._drifts = state.model.drifts

    def report(self, batch: Batch, processed: BatchResult) -> None:
        """Report what is new with a batch."""
        state, model = self._state, self._state.model
        for reason in processed.reasons.keys() - state.reasons.keys():
            detail = next(letter.detail for letter in processed.letters if letter.reason == reason)
            LOGGER.warning("rejected a record (%s); further ones are only counted: %s", reason, detail)
        if not state.outcomes["learned"] and not processed.outcomes["learned"] and processed.outcomes["predicted_only"]:
            LOGGER.warning("no record so far has a target, so nothing has been learned; is schema.target right?")
        if self._was_warming_up and not model.is_warming_up:
            # The batch may have gone on.
            n = model.learner.context.warmed_up_at
            LOGGER.info("warm-up is over; learning by steps from here (%d events so far)", n)
        n_drifts, drift = model.drifts - self._drifts, model.last_drift
        if n_drifts and drift is not None:
            LOGGER.warning(
                "%s: drift: the loss was %.3g an event and is %.3g, found at event %d%s; step sizes and average "
                "restart, the next step size is %.3g",
                batch.origin,
                drift.before,
                drift.after,
                drift.n,
                f" (the last of {n_drifts})" if n_drifts > 1 else "",
                model.step_size,
            )
        self._was_warming_up, self._drifts = model.is_warming_up, model.drifts
