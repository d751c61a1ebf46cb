"""Kafka: topics as a source, and as sinks of predictions and dead letters."""
