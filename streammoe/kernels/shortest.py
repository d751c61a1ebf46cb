"""Rows of numbers to text, such as JSON: each double as the shortest decimal that is read as the same double.

The digits are found by the algorithm of Raffaello Giulietti (Schubfach): of the decimals with the fewest digits that
round to the double, the nearest one. Three products with a power of ten to 128 bits decide that without a loop.
"""

from __future__ import annotations

import numpy as np

from streammoe.kernels.compile import inline, jit, part
from streammoe.kernels.decimals import powers_of_ten
from streammoe.kernels.words import leading_zeros, store, upper_product
from streammoe.types import AnyArray, IntArray

WHOLE, DOUBLE, TEXT = range(3)
"""Kinds of columns: integers, the bits of doubles, and indexes of texts."""
LONGEST = 24
"""Most bytes of a number: as in -2.2250738585072014e-308."""
SPARE = 24
"""Bytes that may be written after the end."""
LEAST_POWER, MOST_POWER = -292, 324
"""Exponents of ten by which doubles are multiplied."""
PLAIN = -4, 16
"""Where the point of a number may be, from its first digit, for it to be written without an exponent."""
_U = np.uint64
_ZERO, _ONE, _TWO, _FOUR, _TEN, _FORTY, _HUNDRED = map(_U, (0, 1, 2, 4, 10, 40, 100))
_SIGN, _FRACTION_BITS, _SPECIAL = _U(63), _U(52), 0x7FF
_HIDDEN, _FRACTION = _U(1 << 52), _U((1 << 52) - 1)
_DIGITS = 17
"""Most digits of a double."""
_HALF, _MANY = _U(10**4), _U(10**8)
_TENS = np.array([10**power for power in range(20)], np.uint64)
_DIGIT, _MINUS, _POINT, _EXPONENT = ord("0"), ord("-"), ord("."), ord("e")
_TEXT, _NULL, _NOTHING = (_U(int.from_bytes(text, "little")) for text in (b"0" * 8, b"null", b"0.000000"))


def powers_to_write_by() -> AnyArray:
    """Return the first 128 bits of each power of ten, rounded up, (n, 2): the upper half, then the lower one."""
    return powers_of_ten(LEAST_POWER, MOST_POWER, upwards=True)


@inline
def _scaled(value: np.uint64, powers: AnyArray, at: int) -> np.uint64:
    """Return the upper half of a product with a power of ten, whose last bit tells whether more follows."""
    upper, lower = powers[at, 0], powers[at, 1]
    low = upper_product(lower, value)
    middle = upper * value + low
    found = upper_product(upper, value) + (_ONE if middle < low else _ZERO)
    return found | (_ONE if middle > _ONE else _ZERO)


@part
def _digits(fraction: np.uint64, exponent: int, powers: AnyArray) -> tuple[np.uint64, int]:
    """Find the shortest digits of a positive double: an integer, and the exponent of ten that it is multiplied by."""
    c, q = fraction, 1 - 1075
    if exponent:
        c, q = fraction | _HIDDEN, exponent - 1075
        if -53 < q <= 0 and (c >> _U(-q)) << _U(-q) == c:
            return c >> _U(-q), 0
    # A power of two has a nearer neighbor below than above.
    is_uneven = fraction == _ZERO and exponent > 1
    k = (q * 1262611 - (524031 if is_uneven else 0)) >> 22  # log10(2) q, or log10(3/4 · 2^q)
    shift = _U(q + ((-k * 1741647) >> 19) + 1)  # log2(10) k
    at = -k - LEAST_POWER
    middle = c << _TWO
    below = _scaled((middle - (_ONE if is_uneven else _TWO)) << shift, powers, at)
    value = _scaled(middle << shift, powers, at)
    above = _scaled((middle + _TWO) << shift, powers, at)
    # Half-way to a neighbor, even doubles are meant.
    is_odd = c & _ONE
    below += is_odd
    above -= is_odd
    s = value >> _TWO
    if s >= _TEN:
        tens = s // _TEN
        is_down, is_up = below <= _FORTY * tens, _FORTY * tens + _FORTY <= above
        if is_down != is_up:
            return tens + (_ONE if is_up else _ZERO), k + 1
    is_down, is_up = below <= _FOUR * s, _FOUR * s + _FOUR <= above
    if is_down == is_up:
        half = _FOUR * s + _TWO
        is_up = value > half or (value == half and s & _ONE == _ONE)
    return s + (_ONE if is_up else _ZERO), k


@inline
def _length(value: np.uint64) -> int:
    """Return the number of digits of an integer."""
    # 1233 / 2^12 is log10(2), precise enough for so few bits.
    value |= _ONE  # of 0 as well, which has a digit
    least = ((64 - leading_zeros(value)) * 1233) >> 12
    return least + (1 if value >= _TENS[least] else 0)


@inline
def _eight(value: np.uint64) -> np.uint64:
    """Return the eight digits of an integer below 10^8, a byte each, the first one in the lowest byte."""
    # Halves, quarters and eighths are divided side by side, by products with a rounded inverse.
    upper = value // _HALF
    halves = upper | (value - upper * _HALF) << _U(32)
    upper = (halves * _U(10486) >> _U(20)) & _U(0x7F0000007F)
    quarters = upper | (halves - upper * _HUNDRED) << _U(16)
    upper = (quarters * _U(103) >> _U(10)) & _U(0x000F000F000F000F)
    return upper | (quarters - upper * _TEN) << _U(8)


@inline
def _write_whole(out: AnyArray, at: int, value: int) -> int:
    size = _U(value)
    if value < 0:
        out[at] = _MINUS
        at += 1
        size = _ZERO - size
    end = at + _length(size)
    i = end
    while i > at:
        rest = size // _TEN
        i -= 1
        out[i] = _DIGIT + int(size - rest * _TEN)
        size = rest
    return end


@inline
def _write_bytes(out: AnyArray, at: int, text: AnyArray, begin: int, end: int) -> int:
    for i in range(end - begin):
        out[at + i] = text[begin + i]
    return at + end - begin


@part
def _write_double(out: AnyArray, at: int, cell: int, powers: AnyArray) -> int:
    bits = _U(cell)
    exponent = int(bits >> _FRACTION_BITS) & _SPECIAL
    if exponent == _SPECIAL:
        store(out, at, _NULL)
        return at + 4
    out[at] = _MINUS
    at += int(bits >> _SIGN)
    if bits << _ONE == _ZERO:
        store(out, at, _NOTHING)
        return at + 3
    digits, power = _digits(bits & _FRACTION, exponent, powers)
    count = _length(digits)
    point = count + power
    digits *= _TENS[_DIGITS - count]
    upper = digits // _MANY
    first = upper // _MANY
    middle, last = _eight(upper - first * _MANY), _eight(digits - upper * _MANY)
    # Without zeros at the end.
    count = 17 - (leading_zeros(last) >> 3) if last else 9 - (leading_zeros(middle) >> 3) if middle else 1
    lead = int(first) + _DIGIT
    middle |= _TEXT
    last |= _TEXT
    if 0 < point < count and point <= PLAIN[1]:
        out[at + 1] = lead
        store(out, at + 2, middle)
        store(out, at + 10, last)
        for i in range(at, at + point):
            out[i] = out[i + 1]
        out[at + point] = _POINT
        return at + count + 1
    if PLAIN[0] <= point <= 0:
        store(out, at, _NOTHING)
        at += 2 - point
    if PLAIN[0] <= point <= PLAIN[1]:
        out[at] = lead
        store(out, at + 1, middle)
        store(out, at + 9, last)
        if point <= 0:
            return at + count
        out[at + point], out[at + point + 1] = _POINT, _DIGIT
        return at + point + 2
    out[at], out[at + 1] = lead, _POINT
    store(out, at + 2, middle)
    store(out, at + 10, last)
    at += count + 1 if count > 1 else 1
    out[at] = _EXPONENT
    return _write_whole(out, at + 1, point - 1)


@part
def _write_rows(
    cells: IntArray,
    kinds: IntArray,
    texts: AnyArray,
    ends: IntArray,
    levels: AnyArray,
    level_ends: IntArray,
    powers: AnyArray,
    out: AnyArray,
    row_ends: IntArray,
) -> int:
    at = 0
    for i in range(len(cells)):
        begin = 0
        for j in range(len(kinds)):
            at = _write_bytes(out, at, texts, begin, ends[j])
            begin = ends[j]
            cell = cells[i, j]
            if kinds[j] == DOUBLE:
                at = _write_double(out, at, cell, powers)
            elif kinds[j] == WHOLE:
                at = _write_whole(out, at, cell)
            else:
                at = _write_bytes(out, at, levels, level_ends[cell - 1] if cell else 0, level_ends[cell])
        at = _write_bytes(out, at, texts, begin, ends[len(kinds)])
        row_ends[i] = at
    return at


@jit
def write_rows(
    cells: IntArray,
    kinds: IntArray,
    texts: AnyArray,
    ends: IntArray,
    levels: AnyArray,
    level_ends: IntArray,
    powers: AnyArray,
    out: AnyArray,
    row_ends: IntArray,
) -> int:
    """Write rows that are numbers and texts between the same texts in each.

    Doubles are written as msgspec does: -4.0, 0.00001, 1e-6, 1e16; ``null`` where one is not finite.

    Args:
        cells: (n, m) integers, the bits of doubles, and indexes of levels.
        kinds: (m,) `WHOLE`, `DOUBLE` or `TEXT` of each column.
        texts: the bytes of the texts, one after the other.
        ends: (m + 1,) where each of the texts ends: one before each cell, and one after the last.
        levels: the bytes of the texts that a cell may be, one after the other.
        level_ends: where each of them ends.
        powers: `powers_to_write_by`.
        out: bytes, written; it has room for all texts, for `LONGEST` bytes of each number, and `SPARE` more.
        row_ends: (n,) written: where each row ends.

    Returns:
        The number of bytes.
    """
    return _write_rows(cells, kinds, texts, ends, levels, level_ends, powers, out, row_ends)
