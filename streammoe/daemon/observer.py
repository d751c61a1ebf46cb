"""What may take part in a daemon's loop from outside of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.pipeline import BatchResult, Pipeline
from streammoe.ports import Batch, Position


class Adopted(NamedTuple):
    """A model that takes the place of the daemon's own."""

    model: MixtureOfExperts
    """It has learned whatever the own one has learned of this daemon's source."""
    contains: Mapping[str, Any]
    """See `streammoe.daemon.contains`; ``adopted_n`` is up to the daemon."""


class Observer(Protocol):
    """An observer of a daemon, whose thread calls every method; whatever goes wrong with it must not stop learning."""

    def start(self, pipeline: Pipeline) -> None:
        """Begin; reading begins next."""

    def after_batch(self, pipeline: Pipeline, learned: Sequence[tuple[Batch, BatchResult]]) -> None:
        """Look at what the model was given since the last call; it may be nothing, since calls do not wait for records.

        Batches that were rolled back since are not among them.
        """

    def before_checkpoint(
        self, pipeline: Pipeline, contains: Mapping[str, Any], *, go_on: Callable[[], bool]
    ) -> Adopted | None:
        """Return a model to replace the own one, which a checkpoint makes durable at once; None keeps the own one.

        Args:
            pipeline: with the own model.
            contains: what that has adopted before; empty if nothing.
            go_on: call it from time to time; false asks to return None.
        """

    def checkpoint_taken(self) -> None:
        """Remember this moment, whose state a checkpoint takes; one that is never saved is followed by another."""

    def checkpoint_saved(self, generation: int, state_digest: str, position: Position | None) -> None:
        """Note that the checkpoint taken last is durable, or that a start has resumed from this one."""

    def rolled_back(self, generation: int) -> None:
        """Note that the model is that of an earlier checkpoint again."""

    def close(self) -> None:
        """End."""
