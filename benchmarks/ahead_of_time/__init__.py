"""Comparison of numba with compilers that run before a user installs: `python -m benchmarks.ahead_of_time`."""
