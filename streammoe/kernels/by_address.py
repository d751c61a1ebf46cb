"""Kernels that call other kernels, and use arrays and Python's floats, by their addresses.

A kernel that calls another one as numba has it holds a copy of it, so that one which calls all kernels of an event
would take as long to compile as all of them together. And each array that Python passes to a kernel costs a tenth of a
microsecond, which a step of one event, with some hundred arrays, cannot afford. Here Python looks addresses up once.

Whoever passes an address keeps alive what is there, and must not replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic
from numba.np import arrayobj as untyped_arrayobj

from streammoe.kernels.compile import inline
from streammoe.types import AnyArray, FloatArray

# numba's own types say little of these.
types: Any = numba.types
cgutils: Any = untyped_cgutils
arrayobj: Any = untyped_arrayobj


class LayoutError(ValueError):
    """An array is not in C order; kernels that take addresses cannot use it."""


def address_of(array: AnyArray) -> int:
    """Return the address of the memory of an array.

    Raises:
        LayoutError: the array is not in C order.
    """
    if not array.flags.c_contiguous:
        raise LayoutError(f"an array of shape {array.shape} is not in C order")
    found: int = array.__array_interface__["data"][0]
    return found


OBJECTS = {
    "float_type": id(float),
    "type_at": object.__basicsize__ - np.dtype(np.intp).itemsize,
    "value_at": object.__basicsize__,
    "items_at": tuple.__basicsize__,
}
"""Where kernels find the numbers of a tuple of floats, whose address is its `id`: to make an array of it, and to pass
that, takes as long as an event in the kernel."""


class _Memory:
    """Memory at an address, as NumPy makes an array of it."""

    def __init__(self, address: int, kind: str) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": (1,), "typestr": kind}


def _word(address: int) -> int:
    return int(np.asarray(_Memory(address, np.dtype(np.intp).str))[0])


@cache
def can_read_tuples() -> bool:
    """Return whether tuples and floats are in this interpreter's memory as `OBJECTS` says."""
    value = 0.1
    given = (0.2, value)
    item = _word(id(given) + OBJECTS["items_at"] + np.dtype(np.intp).itemsize)
    if item != id(value) or _word(item + OBJECTS["type_at"]) != OBJECTS["float_type"]:
        return False
    return float(np.asarray(_Memory(item + OBJECTS["value_at"], "<f8"))[0]) == value


class Callee:
    """A kernel, to be called with arguments of certain types only."""

    def __init__(self, kernel: Callable[..., Any], arguments: Sequence[Any], returns: Any) -> None:
        self._kernel, self._arguments, self._returns = kernel, tuple(arguments), returns
        self.call = _call(self._arguments, returns)
        """``(address, (argument, …))`` → what it returns; to be used in a kernel."""

    def address(self) -> int:
        """Return the address of its machine code, which is compiled first if need be."""
        dispatcher: Any = self._kernel
        if self._arguments not in dispatcher.overloads:
            dispatcher.compile(self._arguments)
        compiled = dispatcher.overloads[self._arguments]
        found: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        return found


def _call(arguments: tuple[Any, ...], returns: Any) -> Any:
    @intrinsic
    def call(_: Any, address: Any, given: Any) -> Any:
        if tuple(given) != arguments:
            raise TypeError(f"a kernel for {arguments} is called with {tuple(given)}")

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001 - numba passes it
            convention = context.call_conv
            function = convention.get_function_type(returns, arguments).as_pointer()
            parts = [builder.extract_value(values[1], i) for i in range(len(arguments))]
            status, found = convention.call_function(
                builder, builder.inttoptr(values[0], function), returns, arguments, parts
            )
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return found

        return returns(address, given), generate

    return call


def array_of(element: Any, item_bytes: int) -> Any:
    """Return ``(address, shape)`` → an array of such elements that borrows its memory; to be used in a kernel."""

    @intrinsic
    def array(_: Any, address: Any, shape: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind, sizes = signature.return_type, cgutils.unpack_tuple(builder, values[1])
            size = context.get_constant(types.intp, item_bytes)
            strides = [size]
            for length in reversed(sizes[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            found = context.make_array(kind)(context, builder)
            data = builder.inttoptr(values[0], context.get_data_type(element).as_pointer())
            arrayobj.populate_array(found, data=data, shape=sizes, strides=strides, itemsize=size, meminfo=None)
            return found._getvalue()  # noqa: SLF001 - there is no other way to write it

        return types.Array(element, len(shape), "C")(address, shape), generate

    return array


floats, whole_numbers, flags = array_of(types.float64, 8), array_of(types.int64, 8), array_of(types.boolean, 1)


def numbers(n: int) -> Any:
    """Return ``address`` → a tuple of the n numbers there; to be used in a kernel."""
    kind = types.UniTuple(types.float64, n) if n else types.Tuple(())

    @intrinsic
    def found(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001 - numba passes it
            data = builder.inttoptr(values[0], context.get_data_type(types.float64).as_pointer())
            each = [builder.load(cgutils.gep_inbounds(builder, data, i)) for i in range(n)]
            return context.make_tuple(builder, kind, each)

        return kind(address), generate

    return found


@inline
def read_floats(given: int, objects: Any, out: FloatArray) -> bool:
    """Copy a tuple of as many floats as `out`, (1, n), has room for; return False if some are of another type.

    Args:
        given: address of the tuple.
        objects: a record with the fields of `OBJECTS`.
        out: written.
    """
    n = out.shape[1]
    items = whole_numbers(given + objects.items_at, (n,))
    for j in range(n):
        if whole_numbers(items[j] + objects.type_at, (1,))[0] != objects.float_type:
            return False
        out[0, j] = floats(items[j] + objects.value_at, (1,))[0]
    return True


def record(**fields: str) -> np.dtype[np.void]:
    """Return the type of a record whose fields are of these types, such as ``i8``."""
    return np.dtype(list(fields.items()))


def records(kind: np.dtype[np.void]) -> Any:
    """Return `array_of` for records: numba takes microseconds to find out the type of such an array of Python's."""
    return array_of(numba.from_dtype(kind), kind.itemsize)


def integers(*names: str) -> dict[str, str]:
    """Return fields of a record that are integers: addresses and sizes."""
    return dict.fromkeys(names, "i8")
