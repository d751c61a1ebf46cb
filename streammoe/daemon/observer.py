"""What may take part in a daemon's loop from outside of it."""

from __future__ import annotations

from typing import Protocol

from streammoe.pipeline.pipeline import Pipeline


class Observer(Protocol):
    """An observer of a daemon, whose thread calls every method; whatever goes wrong with it must not stop learning."""

    def start(self, pipeline: Pipeline) -> None:
        """Begin; reading begins next."""

    def after_batch(self, pipeline: Pipeline) -> None:
        """Look at what the model has become; there need not have been a batch, since calls do not wait for records."""

    def close(self) -> None:
        """End."""
