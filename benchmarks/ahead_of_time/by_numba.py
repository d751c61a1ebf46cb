"""The kernels as they are, compiled ahead of time by `numba.pycc`, and a start with them where there is no numba.

With pycc's own flags: its functions keep the interpreter lock, and trust that arrays are what they were compiled for.
"""

from __future__ import annotations

import gc
import sys
import types
import warnings
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def build_module(name: str, path: Path, target: str, functions: dict[str, tuple[Any, Any]]) -> None:
    """Write a module of functions by name, each with a signature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and its successor is not there yet
        import numba.pycc
    pycc: Any = numba.pycc
    module = pycc.CC(name)
    module.output_dir, module.output_file = str(path.parent), path.name
    module.target_cpu = "host" if target == "native" else target
    for key, (function, signature) in functions.items():
        module.export(key, signature)(function)
    module.compile()


def build_loop(path: Path, target: str) -> None:
    """Write a module with the loop alone."""
    from benchmarks.ahead_of_time.speed import FEATURES, Stream
    from streammoe.kernels.gaussian import learn_rows

    Stream(FEATURES[0])  # calls it
    kernel: Any = learn_rows
    (compiled,) = kernel.overloads.values()
    build_module("loop", path, target, {"learn_rows": (kernel.py_func, compiled.signature)})


def build_all(path: Path, target: str) -> int:
    """Write a module with all that `streammoe compile` compiles; return how many signatures."""
    from numba.core.registry import CPUDispatcher

    from streammoe.daemon.model import compile_kernels

    compile_kernels()
    found = {}
    for kernel in gc.get_objects():
        if isinstance(kernel, CPUDispatcher) and hasattr(kernel, "as_part"):
            overloads: dict[Any, Any] = kernel.overloads
            for i, compiled in enumerate(overloads.values()):
                found[f"{_key(kernel.py_func)}_{i}"] = kernel.py_func, compiled.signature
    build_module("kernels", path, target, found)
    return len(found)


def _key(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]}_{function.__name__}"


def without_numba(path: Path) -> None:
    """Let streammoe take its kernels from such a module, in a process that has not imported it yet.

    Only for a model's first events, whose kernels call no others by their addresses.
    """
    spec = spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    compiled = module_from_spec(spec)
    spec.loader.exec_module(compiled)

    def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(compiled, f"{_key(function)}_0", function)

    def as_it_is(function: Any) -> Any:
        return function

    class Nothing:
        """Stands for types that only numba's compiler asks for."""

        def __getattr__(self, name: str) -> Any:
            return Nothing()

        def __call__(self, *_: Any, **__: Any) -> Any:
            return Nothing()

    nothing = Nothing()
    fakes: dict[str, dict[str, Any]] = {
        "numba": {"types": nothing, "from_dtype": nothing, "njit": lambda **_: as_it_is},
        "numba.core": {"cgutils": nothing},
        "numba.extending": {"intrinsic": as_it_is},
        "numba.np": {"arrayobj": nothing},
        "streammoe.kernels.compile": {
            **dict.fromkeys(("jit", "atomic"), kernel),
            **dict.fromkeys(("part", "hook", "inline", "allocating"), as_it_is),
            "compile_seconds": lambda: 0.0,
        },
    }
    for name, contents in fakes.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(contents)


if __name__ == "__main__":
    what, where, processor = sys.argv[1:]
    if what == "all":
        print(build_all(Path(where), processor))
    else:
        build_loop(Path(where), processor)
