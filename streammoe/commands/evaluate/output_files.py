"""Output files of commands, and formatting of numbers in their reports."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streammoe.configuration import contested
from streammoe.errors import ConfigError
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence.durable import probe, replace
from streammoe.settings import Settings


def check_outputs(
    outputs: Mapping[str, Path | None], settings: Settings, inputs: Iterable[tuple[str, Path | None]] = ()
) -> None:
    """Check before a long run that the files can be written, and that nothing that is read would be lost.

    Args:
        outputs: what is written, by the option that names it.
        settings: of the source.
        inputs: further files that are read, each with what names it.

    Raises:
        ConfigError: a path cannot be used.
    """
    problems = []
    requested = {name: path for name, path in outputs.items() if path is not None}
    for name, path in requested.items():
        if path.is_dir():
            problems.append(f"{name} {path}: is a folder; name a file in it")
        elif not path.parent.is_dir():
            problems.append(f"{name} {path}: there is no folder {path.parent}; create it first")
        elif path.exists() and not os.access(path, os.W_OK):
            problems.append(f"{name} {path}: cannot be written by this user; name another file")
        else:
            try:
                probe(path)
            except OSError as error:
                problems.append(f"{name} {path}: cannot be written ({error.strerror}); name another file")
    given = [(what, path) for what, path in inputs if path is not None]
    problems += contested(settings, {name: str(path) for name, path in requested.items()}, given)
    if problems:
        raise ConfigError(*problems)


def write_output(option: str, path: Path, content: bytes) -> None:
    """Write a file that an option names, as a whole."""
    with as_config_error(option, path):
        replace(path, content)


@contextmanager
def as_config_error(option: str, path: Path) -> Iterator[None]:
    """Turn system errors into a `ConfigError` that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written ({error.strerror}); name another file") from error


def format_number(value: float) -> str:
    """Format a number with a few digits."""
    return f"{value:.4g}" if abs(value) >= 1.0 or value == 0.0 or abs(value) < 0.001 else f"{value:.4f}"


def describe_n_experts(model: MixtureOfExperts) -> str:
    """Describe the number of experts, or the maximum while it has not been selected yet."""
    K = model.chosen_n_experts or model.options.most_experts
    up_to = "up to " if model.options.is_choosing and model.chosen_n_experts is None else ""
    return f"{up_to}{K} expert{'s' if K > 1 else ''}"


def finite_or_none(value: Any) -> Any:
    """Return `value`, or None for a float that JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
