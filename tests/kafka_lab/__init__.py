"""Brokers, topics and daemons for tests and benchmarks with a real Kafka.

`topics` and `lab` need the extra `kafka`, `broker` only the standard library.
"""
