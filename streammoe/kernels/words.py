"""Operations on machine words that numba does not offer, to be used in kernels."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from streammoe.kernels.compile import inline

types: Any = numba.types  # numba's own types say little of these
_WORD, _WIDE = ir.IntType(64), ir.IntType(128)


@intrinsic
def _upper_product(_: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001 - numba passes it
        product = builder.mul(*(builder.zext(value, _WIDE) for value in values))
        return builder.trunc(builder.lshr(product, ir.Constant(_WIDE, 64)), _WORD)

    return types.uint64(a, b), generate


@intrinsic
def _leading_zeros(_: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001 - same
        return builder.ctlz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(value), generate


_intrinsics: Any = _upper_product, _leading_zeros
_upper, _zeros = _intrinsics


@inline
def upper_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper half of the product of two unsigned integers."""
    return _upper(a, b)  # type: ignore[no-any-return]


@inline
def leading_zeros(value: np.uint64) -> int:
    """Return the number of zeros before the first bit of an integer other than 0."""
    return _zeros(value)  # type: ignore[no-any-return]
