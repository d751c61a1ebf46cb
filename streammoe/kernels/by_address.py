"""Arrays, and other kernels, that a kernel uses by their addresses.

Each array that Python passes to a kernel costs a tenth of a microsecond, which an event, with some hundred arrays,
cannot afford. Here Python looks addresses up once.

Whoever passes an address keeps alive what is there, and must not replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic
from numba.np import arrayobj as untyped_arrayobj

from streammoe.types import AnyArray

# numba's own types say little of these.
types: Any = numba.types
cgutils: Any = untyped_cgutils
arrayobj: Any = untyped_arrayobj


class LayoutError(ValueError):
    """An array is not in C order, or cannot be written to; kernels that take addresses cannot use it."""


def address_of(array: AnyArray) -> int:
    """Return the address of the memory of an array.

    Raises:
        LayoutError: the array is not in C order, or cannot be written to.
    """
    interface = array.__array_interface__
    found: int
    found, is_read_only = interface["data"]
    if is_read_only or interface["strides"] is not None:  # None: in C order
        raise LayoutError(f"an array of shape {array.shape} is not in C order, or cannot be written to")
    return found


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
