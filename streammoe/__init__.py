"""Streaming mixture-of-experts learning: a daemon and a River model that learn one event at a time."""

from importlib.metadata import version

from streammoe import schedules
from streammoe.errors import (
    CheckpointError,
    ConfigError,
    InvalidEvent,
    SourceError,
    StreammoeError,
    TooManyBadRecords,
)
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
