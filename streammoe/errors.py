"""The exception tree: one place says which failure ends a process with which exit code.

A message names the setting or place, the value got, the rule that it broke and the next thing to do.
"""

from __future__ import annotations

from typing import ClassVar


class StreammoeError(Exception):
    """Base of every error that streammoe raises on purpose."""

    exit_code: ClassVar[int] = 70
    retriable: ClassVar[bool] = False


class ConfigError(StreammoeError, ValueError):
    """Settings, arguments, or what they point at (a port, a connector), cannot be used.

    ``problems`` holds one sentence for each thing that is wrong, so that a user can mend all of them at once.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def not_installed(what: str, package: str, extra: str) -> ConfigError:
    """Return the error for `what`, a setting or an option, that needs a package which only an extra of ours brings."""
    return ConfigError(
        f"{what} needs {package}, which is not installed; run pip install {package}, or pip install '.[{extra}]' in a "
        "clone of streammoe"
    )


class SourceError(StreammoeError):
    """Events cannot be read: missing or unreadable input, or a position that the source no longer holds."""

    exit_code = 3


class RetriableSourceError(SourceError):
    """Events cannot be read for now, and nothing was lost: the same call may be made again later."""

    retriable = True


class CheckpointError(StreammoeError):
    """A checkpoint cannot be written, read or used with these settings; also a locked or unwritable folder."""

    exit_code = 4


class RetriableCheckpointError(CheckpointError):
    """What is to be kept cannot be written for now, and nothing was lost: saving may be tried again later."""

    retriable = True


class PoisonedModel(StreammoeError):  # noqa: N818 - says what the model is, as the message does
    """Numbers of a model are not finite, which nothing that is learned should make them; it is not saved."""

    exit_code = 7


class ModelJumped(StreammoeError):  # noqa: N818 - says what the model did, as the message does
    """The loss has jumped, and `guard.on_jump` says that it must not be learned from; see `streammoe.daemon.guards`."""

    exit_code = 8


class SinkError(StreammoeError):
    """Predictions or dead letters cannot be written, for good; what was learned since the last checkpoint is undone.

    Also records of ``streammoe produce``, all others of which were written.
    """

    exit_code = 6


class TooManyBadRecords(StreammoeError):  # noqa: N818 - a public name that operators know from the exit codes
    """More records were refused than `dead_letters.max_ratio` allows, of the latest or up to the end of a source."""

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
    "jump",
)
"""All reasons for which an event or a record is refused, as docs/bad-input.md explains them; names for counters."""


class InvalidEvent(StreammoeError, ValueError):  # noqa: N818 - says what is wrong with the event, not with the program
    """An event that would poison the model; nothing was learned from it.

    Attributes:
        reason: one of `REASONS`, a short stable word for counters.
        feature: name of the offending feature, or ``None`` where it is not one feature's fault.
        row: index of the offending row in the array path, else ``None``.
    """

    def __init__(self, message: str, *, reason: str, feature: object = None, row: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.feature = feature
        self.row = row

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_invalid_event, (str(self), self.reason, self.feature, self.row)


def _rebuild_invalid_event(message: str, reason: str, feature: object, row: int | None) -> InvalidEvent:
    return InvalidEvent(message, reason=reason, feature=feature, row=row)
