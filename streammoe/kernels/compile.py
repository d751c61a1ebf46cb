"""The one place that fixes how kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def jit(function: Function) -> Function:
    """Compile `function` to machine code, once for each machine: the result is cached beside the source.

    No ``fastmath``: it would let the compiler reorder sums, so that a result would depend on where a batch was cut,
    and remove the checks for finite numbers. ``error_model="numpy"`` gives inf and NaN instead of exceptions, which
    would keep loops from being vectorised.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def inline(function: Function) -> Function:
    """Like `jit`, and merged into its callers: passing arrays between small functions costs more than their work."""
    return cast("Function", numba.njit(cache=True, error_model="numpy", forceinline=True)(function))
