"""How long does a first start compile, and which kernels?

Each case runs in a process of its own with an empty cache, and again with a full one. Seconds are of the processor:
those of numba are type inference and lowering, those of LLVM optimisation and machine code. A kernel's seconds include
the parts that are compiled because it is the first to call them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import machine, table

CASES = ("regressor", "classifier", "demo")
N_EVENTS = 3_000


class Watch:
    """Adds up the seconds that numba takes for each kernel, which includes the parts that only it calls."""

    def __init__(self) -> None:
        from numba.core import codegen, event

        watch = self
        self.found: list[tuple[str, str, float, float]] = []
        self._began: list[float] = []
        self._machine = 0.0
        """Seconds of LLVM within the outermost kernel."""
        self._within = 0

        class Listener(event.Listener):
            def on_start(self, found: event.Event) -> None:
                if not watch._began:
                    watch._machine = 0.0
                watch._began.append(time.process_time())

            def on_end(self, found: event.Event) -> None:
                seconds = time.process_time() - watch._began.pop()
                if not watch._began:
                    function = found.data["dispatcher"].py_func
                    name = f"{function.__module__.removeprefix('streammoe.')}.{function.__name__}"
                    watch.found.append((name, str(found.data["args"]), seconds, watch._machine))

        event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]  # numba has few types
        # numba reports its own steps, but not the time they spend in LLVM.
        for name in ("add_llvm_module", "finalize"):
            setattr(codegen.CPUCodeLibrary, name, self._timed(getattr(codegen.CPUCodeLibrary, name)))
        library = codegen.JITCodeLibrary
        library.get_pointer_to_function = self._timed(library.get_pointer_to_function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.process_time()
            self._within += 1
            try:
                return function(*given)
            finally:
                self._within -= 1
                if not self._within:
                    self._machine += time.process_time() - began

        return timed


def learn(classify: bool) -> dict[str, float]:
    """Predict and learn events one at a time; return when the first was learned, and all were."""
    import numpy as np

    import streammoe

    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_EVENTS, 4))
    y = X[:, 0] * np.where(X[:, 1] > 0, 1.0, -1.0) + 0.1 * rng.standard_normal(N_EVENTS)
    rows = [{f"x{i}": value for i, value in enumerate(x)} for x in X.tolist()]
    model: Any = streammoe.MoEClassifier() if classify else streammoe.MoERegressor(4)
    targets = np.digitize(y, (-0.5, 0.5)).tolist() if classify else y.tolist()
    seconds = {}
    for i, (row, target) in enumerate(zip(rows, targets, strict=True)):
        model.predict_one(row)
        model.learn_one(row, target)
        if not i:
            seconds["first event"] = time.process_time()
    seconds["all events"] = time.process_time()
    return seconds


def demo() -> dict[str, float]:
    """Run the demo; return when it was over."""
    from click.testing import CliRunner

    from streammoe.commands import main

    with tempfile.TemporaryDirectory() as folder:
        result = CliRunner().invoke(main, ["demo", "--dir", folder, "--port", "0"], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(result.output)
    return {"all": time.process_time()}


def run(case: str) -> None:
    """Run a case in this process, and print what was measured as JSON."""
    watch = Watch()
    seconds = demo() if case == "demo" else learn(case == "classifier")
    print(json.dumps({"seconds": seconds, "kernels": watch.found}))


def measure(case: str, cache: Path) -> dict[str, Any]:
    """Run a case in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_start", "--case", case],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="which to run; by default all")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        run(arguments.case)
        return
    print(machine())
    for case in arguments.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (measure(case, Path(folder)) for _ in range(2))
        show(case, cold, warm)


def show(case: str, cold: dict[str, Any], warm: dict[str, Any]) -> None:
    """Print what one case took, with an empty cache and again."""
    kernels: dict[str, list[float]] = {}
    for name, _, seconds, of_machine_code in cold["kernels"]:
        row = kernels.setdefault(name, [0, 0.0, 0.0, 0.0])
        for i, value in enumerate((1, seconds, seconds - of_machine_code, of_machine_code)):
            row[i] += value
    ordered = sorted(kernels.items(), key=lambda each: -each[1][1])
    total = [sum(column) for column in zip(*kernels.values(), strict=True)]
    headers = (case, "signatures", "seconds", "of numba", "of LLVM")
    print()
    print(
        table(
            headers, [(name, f"{n:.0f}", *(f"{x:.2f}" for x in row)) for name, (n, *row) in [*ordered, ("all", total)]]
        )
    )
    for name, seconds in cold["seconds"].items():
        print(f"{name}, with imports: {seconds:.1f} s, from the cache {warm['seconds'][name]:.1f} s")


if __name__ == "__main__":
    main()
