"""Settings: every section of a config file, and the code that reads it.

A section's model defines names, types, ranges and defaults; `load` merges file, environment and flags, and reports
all errors in one `ConfigError`.
"""

from streammoe.settings.reader import Kinds, from_tables, load
from streammoe.settings.sections import (
    LEARNING,
    CheckpointSettings,
    DeadLetterFileSettings,
    Global,
    GuardSettings,
    Labels,
    ListenerSettings,
    MetricsSettings,
    NoPredictionsSettings,
    PredictionFileSettings,
    PredictionSettings,
    SchemaSettings,
    ServeSettings,
    Settings,
    change_policy,
    section_name,
)

__all__ = [
    "LEARNING",
    "CheckpointSettings",
    "DeadLetterFileSettings",
    "Global",
    "GuardSettings",
    "Kinds",
    "Labels",
    "ListenerSettings",
    "MetricsSettings",
    "NoPredictionsSettings",
    "PredictionFileSettings",
    "PredictionSettings",
    "SchemaSettings",
    "ServeSettings",
    "Settings",
    "change_policy",
    "from_tables",
    "load",
    "section_name",
]
