"""Streaming mixture-of-experts learning: a daemon and a River model that learn one event at a time."""

# By this name type checkers know it; typing itself takes a while to import, and the command must not wait for it before
# it has taken over the signals.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    from streammoe.options import (
        Auto,
        Decay,
        Exponential,
        Gaussian,
        Laplace,
        PageHinkley,
        Polyak,
        StudentT,
        WarmUp,
    )

    __version__: str

__all__ = [
    "Auto",
    "CheckpointError",
    "ConfigError",
    "Decay",
    "Exponential",
    "Gaussian",
    "InvalidEvent",
    "Laplace",
    "MoEClassifier",
    "MoEMultiTargetRegressor",
    "MoERegressor",
    "PageHinkley",
    "Polyak",
    "SourceError",
    "StreammoeError",
    "StudentT",
    "TooManyBadRecords",
    "WarmUp",
    "load",
    "schedules",
]

_ESTIMATORS = {"MoEClassifier", "MoEMultiTargetRegressor", "MoERegressor", "load"}
_OPTIONS = {"Auto", "Decay", "Exponential", "Gaussian", "Laplace", "PageHinkley", "Polyak", "StudentT", "WarmUp"}


def __getattr__(name: str) -> "Any":
    """Import things when they are first asked for: connectors, their processes and the command do without most."""
    from importlib import import_module

    if name in _ESTIMATORS:
        return getattr(import_module("streammoe.estimators"), name)
    if name in _OPTIONS:
        return getattr(import_module("streammoe.options"), name)
    if name == "schedules":
        return import_module("streammoe.schedules")
    if name in __all__:
        return getattr(import_module("streammoe.errors"), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("streammoe")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
