"""Predictions on request: from an immutable copy of a model, which nothing that is asked can change."""
