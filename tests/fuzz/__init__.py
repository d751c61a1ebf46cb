"""Broken records, and hostile checkpoints and settings."""
