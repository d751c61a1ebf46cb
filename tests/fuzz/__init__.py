"""Broken records by the million (`python -m tests.fuzz.records`); hostile checkpoints and settings."""
