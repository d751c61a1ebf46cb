"""Broken records, and hostile checkpoints."""
