"""Defaults judged on 25 real and standard streams, next to other online learners: `python -m benchmarks.real`."""
