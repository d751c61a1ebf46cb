"""The loop of `loop.c`, `loop.pyx` and `loop.rs`, built and called."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCES = Path(__file__).parent
IS_X86 = platform.machine() == "x86_64"
TARGETS = ("x86-64", "x86-64-v3", "native") if IS_X86 else ("native",)
"""Processors to build for: what every wheel has to run on, what processors since 2013 have, and this one."""
WHEEL = TARGETS[0]
WIDE = "x86-64-v3" if IS_X86 else "native"
C_FLAGS = ("-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC", "-s")
AHEAD = "numba ahead"
BY_NUMBA = (sys.executable, "-m", "benchmarks.ahead_of_time.by_numba")
POINTERS = (
    *("n", "n_average", "decay", "prior_weight", "gate", "gate_gram", "gate_inverse", "experts", "variances"),
    *("masses", "expert_grams", "expert_inverses", "average_gate", "average_experts", "average_variances"),
    *("prior_gate_gram", "prior_expert_gram", "prior_experts", "prior_variances"),
)
"""Arrays of the state, in the order of the structure; then follows the residual."""


class Model(ctypes.Structure):
    """Sizes, options and arrays of a model for the loop, the same in all three sources."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("K", "Q", "p_w", "p_v", "residual_size", "averaging")),
        *((name, ctypes.c_double) for name in ("squared_tail", "log_integral", "mix_a", "mix_b", "prior_strength")),
        *((name, ctypes.c_double) for name in ("variance_floor", "residual_weight")),
        *((name, ctypes.c_void_p) for name in (*POINTERS, "residual")),
    ]


class Built(NamedTuple):
    """A shared library."""

    language: str
    target: str
    path: Path
    cpu_seconds: float
    """CPU seconds of building it."""

    @property
    def name(self) -> str:
        return f"{self.language}, {self.target}"


def model_at(shape: Any, state: Any, residual: np.ndarray, options: Any) -> Model:
    """Return the structure that points to a state; whoever has it keeps the arrays alive."""
    K, Q, p_v = state.experts.shape
    addresses = [getattr(state, name).ctypes.data for name in POINTERS]
    numbers = (*shape, *options.curvature, options.prior_strength, options.variance_floor, options.residual_weight)
    sizes = (K, Q, state.gate.shape[1], p_v, len(residual), options.averaging)
    return Model(*sizes, *numbers, *addresses, residual.ctypes.data)


def library(path: Path) -> Any:
    """Return `learn_rows` as a function of C."""
    found = ctypes.CDLL(str(path)).learn_rows
    found.restype, found.argtypes = ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 7]
    return found


def module(path: Path) -> Any:
    """Import a module of C or Cython."""
    spec = spec_from_file_location("loop", path)
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run(*command: str | Path) -> float:
    """Run a compiler and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build(folder: Path, cython: str | None) -> list[Built]:
    """Build all that this machine has compilers for."""
    cc, rustc = os.environ.get("CC", "cc"), shutil.which("rustc")
    include = f"-I{sysconfig.get_path('include')}"
    found = []
    for target in TARGETS:
        path = folder / f"c-{target}.so"
        seconds = run(cc, *C_FLAGS, "-DMODULE", include, f"-march={target}", SOURCES / "loop.c", "-o", path, "-lm")
        found.append(Built("C", target, path, seconds))
        if cython:
            path, made = folder / f"cython-{target}.so", folder / "loop.c"
            seconds = run(cython, "-3", SOURCES / "loop.pyx", "-o", made)
            seconds += run(cc, *C_FLAGS, include, f"-march={target}", made, "-o", path, "-lm")
            found.append(Built("Cython", target, path, seconds))
        if rustc:
            path, flags = folder / f"rust-{target}.so", ("-Copt-level=3", "-Cpanic=abort", "-Cstrip=symbols")
            seconds = run(
                rustc, "--crate-type=cdylib", *flags, f"-Ctarget-cpu={target}", SOURCES / "loop.rs", "-o", path
            )
            found.append(Built("Rust", target, path, seconds))
        path = folder / f"numba-{target}.so"
        seconds = run(*BY_NUMBA, "loop", path, target)
        run("strip", path)
        found.append(Built(AHEAD, target, path, seconds))
    return found
