"""Streaming mixture-of-experts learning: a daemon and a River model that learn one event at a time."""

# Type checkers recognize this name; importing typing takes a while, and the command must handle signals before that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from streammoe import batch, mm, schedules
    from streammoe.distributions import Gaussian, Laplace, StudentT
    from streammoe.errors import (
        CheckpointError,
        ConfigError,
        InvalidEvent,
        SourceError,
        StreammoeError,
        TooManyBadRecords,
    )
    from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
    from streammoe.evaluation import evaluate
    from streammoe.options import Auto, AutoLags, Decay, Exponential, Lags, PageHinkley, Polyak
    from streammoe.reduction import reduce

    __version__: str

__all__ = [
    "Auto",
    "AutoLags",
    "CheckpointError",
    "ConfigError",
    "Decay",
    "Exponential",
    "Gaussian",
    "InvalidEvent",
    "Lags",
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
    "batch",
    "evaluate",
    "load",
    "mm",
    "reduce",
    "schedules",
]

_HOMES = {
    "distributions": {"Gaussian", "Laplace", "StudentT"},
    "errors": {"CheckpointError", "ConfigError", "InvalidEvent", "SourceError", "StreammoeError", "TooManyBadRecords"},
    "estimators": {"MoEClassifier", "MoEMultiTargetRegressor", "MoERegressor", "load"},
    "evaluation": {"evaluate"},
    "options": {"Auto", "AutoLags", "Decay", "Exponential", "Lags", "PageHinkley", "Polyak"},
    "reduction": {"reduce"},
}
"""The modules of these names; all others are modules themselves."""


if not TYPE_CHECKING:  # type checkers would take any name for one that exists

    def __getattr__(name: str) -> "Any":
        """Import names on first use: connectors, their processes and the command need only a few."""
        from importlib import import_module

        if name in __all__:
            home = next((module for module, names in _HOMES.items() if name in names), None)
            found = import_module(f"streammoe.{home or name}")
            return found if home is None else getattr(found, name)
        if name == "__version__":
            return import_module("importlib.metadata").version("streammoe")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> "list[str]":
        """Return the public names, those included that are imported on first use."""
        return [*__all__, "__version__"]
