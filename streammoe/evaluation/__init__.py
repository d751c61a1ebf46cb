"""Prequential runs on a file, without configuration or checkpoint: every event is predicted, then learned."""
