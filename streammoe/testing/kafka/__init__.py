"""For tests and benchmarks with a real Kafka: brokers, their topics, and daemons that read them.

Nothing of this is imported by `streammoe.testing`; `topics` and `lab` need the extra `kafka`.
"""
