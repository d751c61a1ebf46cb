"""The exception hierarchy, which maps each failure to an exit code.

A message names the setting or location, the value found, the rule that it broke and what to do next.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from streammoe.invocation import install_command


class StreammoeError(Exception):
    """Base class of all errors that streammoe raises on purpose."""

    exit_code: ClassVar[int] = 70
    retriable: ClassVar[bool] = False


class ConfigError(StreammoeError, ValueError):
    """Settings, arguments, or something they refer to (a port, a connector), cannot be used.

    ``problems`` holds one sentence per problem, so that a user can fix all of them at once.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def not_installed(what: str, package: str, extra: str) -> ConfigError:
    """Return the error for a setting or option `what` that needs a package from an optional extra."""
    return ConfigError(f"{what} needs {package}, which is not installed; run {install_command(extra, package)}")


class SourceError(StreammoeError):
    """Events cannot be read: input is missing or unreadable, or the source no longer holds a position."""

    exit_code = 3


class RetriableSourceError(SourceError):
    """Events cannot be read for now; nothing was lost, and the same call may be repeated later."""

    retriable = True


class CheckpointError(StreammoeError):
    """A checkpoint cannot be written, read or used with these settings; or its folder is locked or not writable."""

    exit_code = 4


class RetriableCheckpointError(CheckpointError):
    """Data cannot be written for now; nothing was lost, and saving may be retried later."""

    retriable = True


class PoisonedModel(StreammoeError):  # noqa: N818 - says what the model is, as the message does
    """The model holds NaN or infinity. This is a bug; the model is not saved."""

    exit_code = 7


class ModelJumped(StreammoeError):  # noqa: N818 - says what the model did, as the message does
    """The loss has jumped, and `guard.on_jump` forbids learning from such events; see `streammoe.daemon.guards`."""

    exit_code = 8


class SinkError(StreammoeError):
    """Predictions or dead letters cannot be written, permanently; learning since the last checkpoint is undone."""

    exit_code = 6


class RetriableSinkError(SinkError):
    """Predictions cannot be published by this sink any more, but by a new one that goes back to the last checkpoint."""

    retriable = True


class TooManyBadRecords(StreammoeError):  # noqa: N818 - a public name that operators know from the exit codes
    """More records were rejected than `dead_letters.max_ratio` allows, recently or up to the end of a source."""

    exit_code = 5


REASONS = (
    "malformed",
    "wrong_type",
    "not_finite",
    "out_of_range",
    "too_many_columns",
    "partial_target",
    "unknown_class",
    "no_features",
    "no_key",
    "wrong_shape",
    "poison",
)
"""All reasons for rejecting an event or a record, explained in docs/bad-input.md; also the names of counters."""


class InvalidEvent(StreammoeError, ValueError):  # noqa: N818 - says what is wrong with the event, not with the program
    """An event that is invalid or would make a parameter non-finite; nothing was learned from it.

    Attributes:
        reason: one of `REASONS`, a short stable word for counters.
        feature: name of the offending feature, or ``None`` if no single feature is at fault.
        row: index of the offending row of an array, else ``None``.
    """

    def __init__(self, message: str, *, reason: str, feature: object = None, row: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.feature = feature
        self.row = row

    def at_row(self, row: int) -> InvalidEvent:
        """Return the same error of a row of an array."""
        return InvalidEvent(f"row {row}: {self}", reason=self.reason, feature=self.feature, row=row)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(InvalidEvent, reason=self.reason, feature=self.feature, row=self.row), (str(self),)
