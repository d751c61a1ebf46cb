"""The one place that fixes how kernels are compiled, and knows how long that has taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar, cast

import numba
from numba.core import event

LOGGER = logging.getLogger("streammoe.kernels")
PACKAGE = "streammoe."
Function = TypeVar("Function", bound=Callable[..., object])


class _Watch(event.Listener):
    """Logs that compiling has begun, and adds up the seconds; what comes from the cache is not compiled."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._has_logged = False
        self._depth = 0
        """Of kernels that are compiled because another one calls them."""
        self._began = 0.0

    def on_start(self, found: event.Event) -> None:
        if not _is_ours(found):
            return
        if not self._has_logged:
            self._has_logged = True
            # A warning, since Python shows nothing else without any set-up, and a first call that hangs needs a reason.
            LOGGER.warning("compiling kernels, once per installation; this takes up to a minute")
        if not self._depth:
            self._began = time.perf_counter()
        self._depth += 1

    def on_end(self, found: event.Event) -> None:
        if not _is_ours(found):
            return
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._began


def _is_ours(found: event.Event) -> bool:
    compiled = getattr(found.data["dispatcher"], "py_func", None)
    return str(getattr(compiled, "__module__", "")).startswith(PACKAGE)


_watch = _Watch()
event.register("numba:compile", _watch)  # type: ignore[no-untyped-call]  # numba has few types


def compile_seconds() -> float:
    """Seconds that this process has spent compiling kernels; 0 where all came from the cache."""
    return _watch.seconds


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
