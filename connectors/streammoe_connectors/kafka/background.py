"""Calls that may never return, in threads that end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(call: Callable[[], Result]) -> Future[Result]:
    """Run a call that may never return, in a thread that ends with the process."""
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            pending.set_exception(error)

    threading.Thread(target=run, name="streammoe-kafka", daemon=True).start()
    return pending
