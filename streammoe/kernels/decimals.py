"""Rows of decimal numbers between fixed texts, such as records of csv or JSON, to rows of doubles.

A number is read by the algorithm of Eisel and Lemire: up to 19 digits as an integer, times a power of ten to 128 bits,
whose first 54 bits nearly always tell how to round. Where they do not, as for all that is no plain number, the record
is left to others.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit, part
from streammoe.kernels.words import leading_zeros, upper_product
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray

LEAST_POWER, MOST_POWER = -330, 308
"""Exponents of ten in the table of powers."""
MOST_DIGITS = 19
_U = np.uint64
_NINE_BITS = _U(0x1FF)
_ZERO, _ONE, _TWO, _THREE, _NINE, _TEN = map(_U, (0, 1, 2, 3, 9, 10))
_TOP, _SIGN, _FRACTION = _U(63), _U(1 << 63), _U((1 << 52) - 1)
_EXACT = _U(1 << 53)
"""Integers up to here are doubles, as are"""
_EXACT_POWERS = np.array([float(10**power) for power in range(23)])
"""these powers of ten."""
_POINT, _MINUS, _PLUS, _DIGIT = ord("."), ord("-"), ord("+"), ord("0")
_EXPONENTS = ord("e"), ord("E")
_NULL = ord("n"), ord("u"), ord("l"), ord("l")


def powers_of_ten(least: int = LEAST_POWER, most: int = MOST_POWER) -> AnyArray:
    """Return the first 128 bits of each power of ten, rounded down, (n, 2): the upper half, then the lower one.

    Args:
        least: exponent of the first one.
        most: exponent of the last one.
    """
    found = np.empty((most - least + 1, 2), np.uint64)
    for row, exponent in zip(found, range(least, most + 1), strict=True):
        power = 10**exponent if exponent >= 0 else (1 << 1300) // 10**-exponent
        shift = power.bit_length() - 128
        bits = power >> shift if shift >= 0 else power << -shift
        row[0], row[1] = bits >> 64, bits & ((1 << 64) - 1)
    return found


@inline
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The upper and lower half of a product of two unsigned integers."""
    return upper_product(a, b), a * b


@part
def _double(digits: np.uint64, exponent: int, powers: AnyArray) -> float:
    """The double nearest to digits · 10^exponent; NaN if that is not certain, or it is no normal number."""
    if digits == _ZERO:
        return 0.0
    if exponent < LEAST_POWER or exponent > MOST_POWER:
        return math.nan
    zeros = _U(leading_zeros(digits))
    mantissa = digits << zeros
    at = exponent - LEAST_POWER
    upper, lower = _product(mantissa, powers[at, 0])
    is_certain = True
    # The power is a little larger than its first bits: where that may carry up to the bit that rounds, more are taken.
    if upper & _NINE_BITS == _NINE_BITS and lower + mantissa < mantissa:
        more, least = _product(mantissa, powers[at, 1])
        merged = lower + more
        if merged < lower:
            upper += _ONE
        lower = merged
        is_certain = not (upper & _NINE_BITS == _NINE_BITS and lower + _ONE == _ZERO and least + mantissa < mantissa)
    top = upper >> _TOP
    kept = upper >> (top + _NINE)
    # Half-way, where a little more decides between the two.
    if lower == _ZERO and upper & _NINE_BITS == _ZERO and kept & _THREE == _ONE:
        is_certain = False
    if not is_certain:
        if digits > _EXACT or abs(exponent) >= len(_EXACT_POWERS):
            return math.nan
        # Both are doubles, so that one operation rounds once.
        power = _EXACT_POWERS[abs(exponent)]
        return float(digits * power if exponent >= 0 else digits / power)
    kept = (kept + (kept & _ONE)) >> _ONE
    # 217706 / 2^16 is log2(10), precise enough for all exponents.
    binary = ((217706 * exponent) >> 16) + 64 + 1023 - np.int64(zeros) - np.int64(_ONE ^ top)
    if kept >> _U(53) != _ZERO:
        kept >>= _ONE
        binary += 1
    if binary < 1 or binary >= 0x7FF:
        return math.nan
    return np.uint64(_U(binary) << _U(52) | kept & _FRACTION).view(np.float64)


@part
def _read(block: AnyArray, at: int, end: int, powers: AnyArray, found: FloatArray) -> int:
    """Read the number of JSON that begins at `at` into `found[0]`; return where it ends, −1 if it is left to others."""
    is_negative = at < end and block[at] == _MINUS
    first = at + 1 if is_negative else at
    digits = _ZERO
    at = first
    while at < end:
        digit = _U(block[at]) - _U(_DIGIT)
        if digit > _NINE:
            break
        digits = digits * _TEN + digit
        at += 1
    if at == first or (block[first] == _DIGIT and at > first + 1):
        return -1
    whole, count, exponent = at, at - first, 0
    if at < end and block[at] == _POINT:
        at += 1
        point = at
        while at < end:
            digit = _U(block[at]) - _U(_DIGIT)
            if digit > _NINE:
                break
            digits = digits * _TEN + digit
            at += 1
        if at == point:
            return -1
        exponent = point - at
        count += at - point
    if count > MOST_DIGITS:
        # Zeros in front do not count.
        for i in range(first, at):
            if block[i] != _DIGIT and block[i] != _POINT:
                break
            count -= block[i] == _DIGIT
        if count > MOST_DIGITS:
            return -1
    if at < end and (block[at] == _EXPONENTS[0] or block[at] == _EXPONENTS[1]):
        at += 1
        is_small = at < end and block[at] == _MINUS
        if at < end and (block[at] == _MINUS or block[at] == _PLUS):
            at += 1
        begin, power = at, 0
        while at < end and at < begin + 4 and _DIGIT <= block[at] <= _DIGIT + 9:
            power = power * 10 + block[at] - _DIGIT
            at += 1
        if at == begin or at == begin + 4:
            return -1
        exponent += -power if is_small else power
    value = _double(digits, exponent, powers)
    # An integer of JSON has no negative zero.
    if math.isnan(value) or (is_negative and digits == _ZERO and at == whole):
        return -1
    found[0] = -value if is_negative else value
    return at


@part
def _read_row(
    block: AnyArray,
    at: int,
    end: int,
    texts: AnyArray,
    ends: IntArray,
    columns: IntArray,
    takes_null: bool,
    powers: AnyArray,
    found: FloatArray,
    row: FloatArray,
) -> bool:
    begin = 0
    for j in range(len(ends)):
        stop = ends[j]
        if at + stop - begin > end:
            return False
        for i in range(begin, stop):
            if block[at] != texts[i]:
                return False
            at += 1
        begin = stop
        if j == len(columns):
            break
        found[0] = math.nan
        if takes_null:
            if at + 4 <= end and block[at] == _NULL[0]:
                for i in range(4):
                    if block[at + i] != _NULL[i]:
                        return False
                at += 4
            else:
                at = _read(block, at, end, powers, found)
        elif not (at < end and block[at] == texts[stop]):
            at = _read(block, at, end, powers, found)
        if at < 0:
            return False
        if columns[j] >= 0:
            row[columns[j]] = found[0]
    return at == end


@part
def _read_rows(
    block: AnyArray,
    stops: IntArray,
    texts: AnyArray,
    ends: IntArray,
    columns: IntArray,
    takes_null: bool,
    powers: AnyArray,
    found: FloatArray,
    rows: FloatArray,
    is_read: BoolArray,
) -> None:
    at = 0
    for i in range(len(stops)):
        is_read[i] = _read_row(block, at, stops[i], texts, ends, columns, takes_null, powers, found, rows[i])
        if not is_read[i]:
            rows[i] = math.nan
        at = stops[i]


@jit
def read_rows(
    block: AnyArray,
    stops: IntArray,
    texts: AnyArray,
    ends: IntArray,
    columns: IntArray,
    takes_null: bool,
    powers: AnyArray,
    rows: FloatArray,
) -> BoolArray:
    """Read records that are nothing but numbers between the same texts in each.

    Args:
        block: the bytes of n records, one after the other.
        stops: (n,) where each of them ends.
        texts: the bytes of the texts, one after the other, none of them empty but the first.
        ends: (m + 1,) where each of the texts ends: one before each number, and one after the last.
        columns: (m,) the column that each number belongs to; below 0 it is read for nothing.
        takes_null: whether ``null`` is a missing value, as in JSON, or else nothing is, as in csv.
        powers: `powers_of_ten`.
        rows: (n, columns) written, NaN for a missing value and in records that are left to others.

    Returns:
        (n,) which records were read: all of their numbers are decimals of JSON, and these doubles are nearest to them.
    """
    is_read = np.empty(len(stops), np.bool_)
    _read_rows(block, stops, texts, ends, columns, takes_null, powers, np.empty(1), rows, is_read)
    return is_read
