"""Speed, latency and memory: `python -m benchmarks.performance`."""
