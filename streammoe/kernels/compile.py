"""The one place that fixes how kernels are compiled and cached, and knows how long compiling has taken.

numba has no public way to say that cached machine code also depends on other files, nor to leave out the work that a
function which is only merged into others does not need. Both are done by small subclasses of its own classes.
"""

from __future__ import annotations

import gc
import hashlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from llvmlite import binding as llvm  # type: ignore[import-untyped]
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

LOGGER = logging.getLogger("streammoe.kernels")
CACHE_LOGGER = logging.getLogger("streammoe.kernels.cache")
PACKAGE = "streammoe."
OPTIONS = {"nopython": True, "error_model": "numpy", "no_cfunc_wrapper": True}
"""Of every kernel, as numba calls them."""
SEAL = 16
"""Bytes of the digest at the end of each file of the cache."""
WAITING = "compiling the numerical loops, once per installation"
Function = TypeVar("Function", bound=Callable[..., object])


class _Watch(event.Listener):
    """Says that kernels are compiled, and adds up the seconds; what comes from the cache is not compiled.

    On a terminal a line says so that is written again and again, and is gone at the end; else one line of the log.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.n_compiled = 0
        self._depth = 0
        """Of kernels that are compiled because another one calls them."""
        self._began = 0.0

    def on_start(self, found: event.Event) -> None:
        if not _is_ours(found):
            return
        if not self._depth:
            self._began = time.perf_counter()
            if _is_terminal(sys.stderr):
                sys.stderr.write(f"\r{WAITING}: {self.n_compiled} done in {self.seconds:.0f} seconds")
                sys.stderr.flush()
            elif not self.n_compiled:
                LOGGER.info("%s; a first start takes up to a minute", WAITING)
        self._depth += 1

    def on_end(self, found: event.Event) -> None:
        if not _is_ours(found):
            return
        self._depth -= 1
        if not self._depth:
            self.n_compiled += 1
            self.seconds += time.perf_counter() - self._began
            if _is_terminal(sys.stderr):
                sys.stderr.write(f"\r{'':{len(WAITING) + 40}}\r")
                sys.stderr.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _is_ours(found: event.Event) -> bool:
    compiled = getattr(found.data["dispatcher"], "py_func", None)
    return str(getattr(compiled, "__module__", "")).startswith(PACKAGE)


WATCH = _Watch()
event.register("numba:compile", WATCH)  # type: ignore[no-untyped-call]  # numba has few types


def compile_seconds() -> float:
    """Seconds that this process has spent compiling kernels; 0 where all came from the cache."""
    return WATCH.seconds


@cache
def sources_digest() -> bytes:
    """Hash the source of every kernel."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        found.update(f"{path.name} {len(source)}\n".encode() + source)
    return found.digest()


class _Stamped:
    """A place for cached machine code that is stale as soon as the source of any kernel has changed.

    numba compares the file of the function alone, but machine code also holds whatever other files it was merged from.
    """

    def get_source_stamp(self) -> tuple[object, bytes]:
        return super().get_source_stamp(), sources_digest()  # type: ignore[misc]  # mixed into numba's locators


def _stamped(locator: type[object]) -> type[object]:
    return type(f"Stamped{locator.__name__}", (_Stamped, locator), {})


class _CacheFiles(CompileResultCacheImpl):
    """Names the files of a function by its module, since one loop is compiled for several."""

    _locator_classes = [  # noqa: RUF012 - numba declares it so
        _stamped(locator)
        for locator in CompileResultCacheImpl._locator_classes  # noqa: SLF001 - there is no other way to extend them
    ]

    def __init__(self, function: Callable[..., object]) -> None:
        self._module = function.__module__.rpartition(".")[2]
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba has few types

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        name = super().get_filename_base(f"{self._module}-{fullname}", abiflags)  # type: ignore[no-untyped-call]  # same
        return str(name)


class _SealedFile(IndexDataCacheFile):
    """Files of the cache that end with a digest, so that one which was damaged is compiled again rather than loaded.

    numba takes whatever it finds for its own: half a file, as a power failure leaves it, ends every start by an error
    of pickle, and one with blocks of zeros loads as machine code. What follows the end of a pickle is ignored.
    """

    def _is_whole(self, path: str) -> bool:
        content = Path(path).read_bytes()
        is_whole = _seal(content[:-SEAL]) == content[-SEAL:]
        if not is_whole:
            warn_damaged(path)
        return is_whole

    def _load_index(self) -> dict[object, str]:
        try:
            is_whole = self._is_whole(self._index_path)
        except FileNotFoundError:
            return {}
        return super()._load_index() if is_whole else {}  # type: ignore[no-untyped-call]  # numba has few types

    def _load_data(self, name: str) -> object:
        path = self._data_path(name)  # type: ignore[no-untyped-call]  # same
        if not self._is_whole(path):
            raise FileNotFoundError(path)  # by which numba tells that it has to compile
        return super()._load_data(name)  # type: ignore[no-untyped-call]  # same

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(content.getvalue() + _seal(content.getvalue()))


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SEAL).digest()


class _Cache(FunctionCache):
    """numba's cache on disk, shared between processes; where it fails, kernels are compiled at each start."""

    _impl_class = _CacheFiles

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba has few types
        self._cache_file = _SealedFile(  # type: ignore[no-untyped-call]  # same
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        # numba loads and saves within it.
        try:
            yield
        except OSError as error:
            warn_not_kept(str(error.strerror))

    def _index_key(self, sig: object, codegen: Any) -> tuple[object, object]:
        # numba adds a hash of the function and of what it closes over, which differs from process to process where
        # that is other kernels; the stamp covers both.
        return sig, codegen.magic_tuple()


class _NoCache(NullCache):
    """In place of the cache where there is no folder for it."""

    def save_overload(self, sig: object, data: object) -> None:
        warn_not_kept("neither the package's folder nor that of this user's caches can be written to")


@cache
def warn_damaged(path: str) -> None:
    """Log that a file of the cache is of no use."""
    CACHE_LOGGER.warning("%s is damaged, so that the kernel in it is compiled again", path)


@cache
def warn_not_kept(reason: str) -> None:
    """Log that the cache is of no use, once for each reason rather than for each kernel."""
    CACHE_LOGGER.warning(
        "compiled kernels cannot be kept (%s), so that each start compiles them again; set NUMBA_CACHE_DIR to a folder "
        "that can be written to, and run `streammoe compile` once",
        reason,
    )


class _Kernel(CPUDispatcher):
    """A compiled function that Python calls; other kernels that do have it as a part."""

    as_part: Any

    def enable_caching(self) -> None:
        self._cache: FunctionCache | NullCache
        try:
            self._cache = _Cache(self.py_func)
        except RuntimeError:  # numba found no folder
            self._cache = _NoCache()

    def compile(self, sig: Any) -> Any:
        # numba makes millions of objects, few of which are garbage before it is done: looking for it takes a tenth of
        # the time.
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile(sig)
        finally:
            if is_enabled:
                gc.enable()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # Else machine code would be made of it that nobody calls.
        return self.as_part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        return self.as_part.get_overload(sig)

    def __reduce__(self) -> str:  # type: ignore[override]  # pickled by its name, as any function of a module is
        return str(self.py_func.__name__)


class _KernelLibrary(JITCodeLibrary):
    """Machine code of a kernel."""

    def _optimize_final_module(self) -> None:
        # numba lets a linker replace what is merged from other functions, so that the optimiser may rely on nothing
        # that it finds out about them. Nobody does: they are the kernel's own.
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        codegen: Any = self._codegen
        passes, builder = codegen._module_pass_manager(  # noqa: SLF001 - numba's own first round
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        # Copies of loops that are vectorised already take a fifth of the time, and save none for ten features.
        tuning.loop_unrolling = False
        tuning.loop_vectorization, tuning.slp_vectorization = True, True
        builder = llvm.create_pass_builder(codegen._tm, tuning)  # noqa: SLF001 - same
        passes = builder.getModulePassManager()
        passes.add_refprune_pass()
        passes.run(self._final_module, builder)


class _KernelCompiler(Compiler):
    """numba's compiler for a function that Python calls."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *more: Any) -> None:
        if library is None:
            library = _KernelLibrary(targetctx.codegen(), "kernel")  # type: ignore[no-untyped-call]  # same
            library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, *more)  # type: ignore[no-untyped-call]  # same


class _HookLibrary(JITCodeLibrary):
    """Code that is only merged into that of kernels, so that no machine code is made of it alone."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]  # same
        self._finalized = True


class _InlineLibrary(_HookLibrary):
    """The same, not optimised alone either: the kernel is optimised as a whole."""

    def _optimize_final_module(self) -> None:
        pass


class _PartLibrary(_InlineLibrary):
    """The same, as functions of the kernel: copies of them in its loop would slow down that and compiling."""

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            if not function.is_declaration and "alwaysinline" not in function.attributes:
                function.attributes.add("noinline")
        super().add_ir_module(ir_module)  # type: ignore[no-untyped-call]  # same


class _HookCompiler(Compiler):
    """numba's compiler, but for the steps that only what Python calls needs."""

    library_class: type[JITCodeLibrary] = _HookLibrary

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, result: Any, flags: Any, *more: Any
    ) -> None:
        flags.no_compile = True
        kept = library or self.library_class(targetctx.codegen(), "part")
        super().__init__(typingctx, targetctx, kept, args, result, flags, *more)  # type: ignore[no-untyped-call]  # same


class _InlineCompiler(_HookCompiler):
    library_class = _InlineLibrary


class _PartCompiler(_HookCompiler):
    library_class = _PartLibrary


class _Part(CPUDispatcher):
    """A function that kernels call; if Python calls it, it runs as it is written."""

    def _compile_for_args(self, *_: object, **__: object) -> Callable[..., object]:
        return cast("Callable[..., object]", self.py_func)

    def add_overload(self, cres: Any) -> None:
        # It has no wrapper, so that Python's calls must not find it; callers find it by a key that stands for one.
        key = object()
        cres.target_context.insert_user_function(key, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres._replace(entry_point=key)


def jit(function: Function) -> Function:
    """Compile `function` to machine code, once for each machine: the result is cached next to the source.

    No ``fastmath``: it would let the compiler reorder sums, so that a result would depend on where a batch was cut,
    and remove the checks for finite numbers. ``error_model="numpy"`` gives inf and NaN instead of exceptions, which
    would keep loops from being vectorised.
    """
    return _kernel(function, nogil=True)


def atomic(function: Function) -> Function:
    """Like `jit`, but no other thread runs Python meanwhile: for what writes to memory that calls have in common."""
    return _kernel(function, nogil=False, _nrt=False)


def _kernel(function: Function, **options: bool) -> Function:
    kernel = _Kernel(function, targetoptions={**OPTIONS, "_nrt": True, **options}, pipeline_class=_KernelCompiler)
    kernel.enable_caching()
    kernel.as_part = allocating(function)
    return cast("Function", kernel)


def allocating(function: Function) -> Function:
    """Like `part`, for what makes arrays, or calls a part that returns one."""
    return _part(function, _PartCompiler, _nrt=True)


def part(function: Function) -> Function:
    """Compile `function` as a part of the kernels that call it, with which it is optimised and cached.

    It borrows its arrays: it must not make any, nor call what returns one, which nobody would free. numba counts
    references to an array wherever it is named, by atomic operations that the optimiser cannot remove, and in a step of
    an event they would cost as much as the step. So what a kernel does for each event stands in functions that borrow,
    and the kernel itself only allocates and calls one.
    """
    return _part(function, _PartCompiler, _nrt=False)


def hook(function: Function) -> Function:
    """Like `part`, and merged into its callers: passing arrays between small functions costs more than their work."""
    return _part(function, _HookCompiler, forceinline=True, _nrt=False)


def inline(function: Function) -> Function:
    """Like `hook`, but optimised with its callers alone, which shortens a first start.

    For small functions; larger ones are slower than as a `hook`, since the compiler sees less of what they do not need.
    """
    return _part(function, _InlineCompiler, forceinline=True, _nrt=False)


def _part(function: Function, compiler: type[_HookCompiler], **options: bool) -> Function:
    # Unless it is set, numba takes `forceinline` from the caller, and merges the parts that an `inline` calls, too.
    targetoptions = {**OPTIONS, "no_cpython_wrapper": True, "forceinline": False, **options}
    return cast("Function", _Part(function, targetoptions=targetoptions, pipeline_class=compiler))
