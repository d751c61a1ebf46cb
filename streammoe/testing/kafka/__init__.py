"""Brokers, topics and daemons for tests and benchmarks with a real Kafka.

`streammoe.testing` imports none of this; `topics` and `lab` need the extra `kafka`.
"""
