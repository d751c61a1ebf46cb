"""Streaming mixture-of-experts learning: a daemon and a River model that learn one event at a time."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from streammoe.errors import (
    CheckpointError,
    ConfigError,
    InvalidEvent,
    SourceError,
    StreammoeError,
    TooManyBadRecords,
)

if TYPE_CHECKING:
    from streammoe import schedules
    from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InvalidEvent",
    "MoEClassifier",
    "MoEMultiTargetRegressor",
    "MoERegressor",
    "SourceError",
    "StreammoeError",
    "TooManyBadRecords",
    "load",
    "schedules",
]
__version__ = version("streammoe")

_ESTIMATORS = {"MoEClassifier", "MoEMultiTargetRegressor", "MoERegressor", "load"}


def __getattr__(name: str) -> Any:
    """Import the estimators when they are first asked for: connectors and their processes do without."""
    if name in _ESTIMATORS:
        return getattr(import_module("streammoe.estimators"), name)
    if name == "schedules":
        return import_module("streammoe.schedules")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
