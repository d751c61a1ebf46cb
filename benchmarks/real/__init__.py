"""Defaults judged on real and standard streams, next to other online learners: `python -m benchmarks.real`."""
