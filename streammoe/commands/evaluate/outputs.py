"""What reports share: files that a command writes besides its results, numbers as people read them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from streammoe.errors import ConfigError, not_installed
from streammoe.estimators import MixtureOfExperts

PICTURES = (".png", ".svg", ".pdf")


class Output(NamedTuple):
    """A file that was asked for."""

    option: str
    path: Path | None
    endings: Sequence[str] = ()
    """Of its name; any without them."""
    draws: bool = False
    """Whether it takes matplotlib to make it."""


def check_outputs(*outputs: Output) -> None:
    """Make sure before a long run that files can be made and written.

    Raises:
        ConfigError: matplotlib is missing, or a path cannot be used.
    """
    problems = []
    wanted = [(output, output.path) for output in outputs if output.path is not None]
    for output, path in wanted:
        name = output.option
        if output.endings and path.suffix.lower() not in output.endings:
            problems.append(f"{name} {path}: must end in one of {', '.join(output.endings)}")
        if path.is_dir():
            problems.append(f"{name} {path}: is a folder; name a file in it")
        elif not path.parent.is_dir():
            problems.append(f"{name} {path}: there is no folder {path.parent}; make it first")
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            problems.append(f"{name} {path}: cannot be written by this user; name another place")
    if problems:
        raise ConfigError(*problems)
    if any(output.draws for output, _ in wanted):
        try:
            import matplotlib  # noqa: F401, ICN001 - whether it is there
        except ImportError as error:
            drawn = ", ".join(output.option for output in outputs if output.draws)
            raise not_installed(f"a picture ({drawn})", "matplotlib", "plot") from error


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turn what the system says of a file into an error that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written ({error.strerror}); name another place") from error


def number(value: float) -> str:
    """A few digits of it."""
    return f"{value:.4g}" if abs(value) >= 1.0 or value == 0.0 or abs(value) < 0.001 else f"{value:.4f}"


def experts(model: MixtureOfExperts) -> str:
    """How many it has; while it has chosen none yet, how many it may come to have."""
    K = model.chosen_n_experts or model.most_experts
    up_to = "up to " if model.is_choosing and model.chosen_n_experts is None else ""
    return f"{up_to}{K} expert{'s' if K > 1 else ''}"


def finite(value: Any) -> Any:
    """The same, but None for a float that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
