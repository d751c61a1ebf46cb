"""Settings: every section of a config file, and the code that reads it.

A section's model defines names, types, ranges and defaults; `load` merges file, environment and flags, and reports
all errors in one `ConfigError`.
"""

from streammoe.fields import Section
from streammoe.settings.reader import Kinds, from_tables, load, parsed
from streammoe.settings.sections import (
    LEARNING,
    MODELS,
    CheckpointSettings,
    DeadLetterFileSettings,
    DeadLetters,
    Global,
    GuardSettings,
    Labels,
    MetricsSettings,
    Model,
    NoPredictionsSettings,
    PredictionFileSettings,
    PredictionSettings,
    SchemaSettings,
    Settings,
    change_policy,
    section_name,
)

__all__ = [
    "LEARNING",
    "MODELS",
    "CheckpointSettings",
    "DeadLetterFileSettings",
    "DeadLetters",
    "Global",
    "GuardSettings",
    "Kinds",
    "Labels",
    "MetricsSettings",
    "Model",
    "NoPredictionsSettings",
    "PredictionFileSettings",
    "PredictionSettings",
    "SchemaSettings",
    "Section",
    "Settings",
    "change_policy",
    "from_tables",
    "load",
    "parsed",
    "section_name",
]
