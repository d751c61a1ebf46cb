"""Which part of a start is numba's: runs in processes of their own, which must not import it otherwise.

With a list of modules in a file: how long do numba's and our kernels' take to import, where all others are imported
already? Else it runs a command of streammoe, or without one predicts and learns an event, and prints how long cached
kernels took to load, and the modules.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def start(arguments: list[str]) -> None:
    """Run a command; or predict and learn an event."""
    if arguments:
        sys.argv = ["streammoe", *arguments]
        with suppress(SystemExit):
            importlib.import_module("streammoe.__main__").main()
        return
    import streammoe

    model, row = streammoe.MoERegressor(4), {"x0": 0.5, "x1": -1.0, "x2": 0.25, "x3": 2.0}
    model.predict_one(row)
    model.learn_one(row, 1.0)


def watched(arguments: list[str]) -> dict[str, Any]:
    """Start; return how long kernels took to load."""
    from numba.core.caching import Cache

    load: Any = Cache.load_overload
    seconds = []

    def timed(*given: Any) -> Any:
        began = time.process_time()
        try:
            return load(*given)
        finally:
            seconds.append(time.process_time() - began)

    Cache.load_overload = timed  # type: ignore[method-assign]  # to watch it
    start(arguments)
    return {"kernels": len(seconds), "load": sum(seconds), "modules": list(sys.modules)}


def import_seconds(modules: list[str]) -> list[float]:
    """Return the CPU seconds of importing numba, and then our kernels, after all that is not ours."""
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for name in modules:
        package = name.partition(".")[0]
        if package in {"numba", "llvmlite"}:
            parts[1].append(name)
        elif name.startswith("streammoe.kernels"):
            parts[2].append(name)
        elif package not in {"streammoe", "streammoe_connectors", "benchmarks", "__main__"}:
            parts[0].append(name)
    seconds = []
    for part in parts:
        began = time.process_time()
        for name in part:
            with suppress(Exception):  # some are made by others
                importlib.import_module(name)
        seconds.append(time.process_time() - began)
    return seconds[1:]


if __name__ == "__main__":
    if sys.argv[1] == "imports":
        print(json.dumps(import_seconds(json.loads(Path(sys.argv[2]).read_text()))))
    elif sys.argv[1] == "watched":
        print(json.dumps(watched(sys.argv[2:])))
    else:
        start(sys.argv[2:])
