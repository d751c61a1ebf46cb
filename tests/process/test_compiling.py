"""Compiling kernels is reported where it happens, which is once for each cache."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import numpy as np
from streammoe.kernels.compile import compile_seconds
from streammoe.kernels.linalg import invert_spd
assert compile_seconds() == 0.0
invert_spd(np.eye(2), np.empty((2, 2)), np.empty((2, 2)))
print(compile_seconds())
"""


def test_compiling_is_reported_once_for_each_cache(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert float(first.stdout) > 0.0
    assert first.stderr.count("compiling") == 1
    assert (float(second.stdout), second.stderr) == (0.0, "")
