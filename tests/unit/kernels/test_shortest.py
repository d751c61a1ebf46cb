"""Rows of numbers as text, next to msgspec's and Python's own."""

import math
import re
import struct

import msgspec
import numpy as np
import pytest

from streammoe.kernels.shortest import DOUBLE, LONGEST, SPARE, TEXT, WHOLE, powers_to_write_by, write_rows

POWERS = powers_to_write_by()


def write(kinds, texts, columns, levels=()):
    """Write rows; return them as one text, and where each ends."""
    cells = np.column_stack([np.ascontiguousarray(column).view(np.int64) for column in columns])
    room = sum(map(len, texts)) + LONGEST * len(kinds) + max(map(len, levels), default=0)
    out = np.full(len(cells) * room + SPARE, 255, np.uint8)
    ends = np.empty(len(cells), np.int64)
    size = write_rows(
        cells,
        np.array(kinds),
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([len(text) for text in texts]),
        np.frombuffer(b"".join(levels), np.uint8),
        np.cumsum([len(level) for level in levels], dtype=np.int64),
        POWERS,
        out,
        ends,
    )
    assert size == ends[-1]
    return out[:size].tobytes(), ends.tolist()


def lines(numbers):
    return write([DOUBLE], [b"", b"\n"], [np.asarray(numbers, np.float64)])[0]


def next_to(values):
    """Return values, and the doubles next to them."""
    values = np.asarray(values, np.float64)
    return np.concatenate([values, np.nextafter(values, 0.0), np.nextafter(values, np.inf)])


RNG = np.random.default_rng(0)
DRAWS = {
    "any double": RNG.integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64),
    "normal": RNG.normal(size=50_000),
    "rounded": np.concatenate([RNG.normal(size=5_000).round(digits) for digits in range(10)]),
    "integers": RNG.integers(-(2**53), 2**53, 50_000).astype(np.float64),
    "large integers": RNG.integers(2**53, 2**63, 50_000).astype(np.float64),
    "subnormal": RNG.integers(1, 2**52, 50_000, dtype=np.uint64).view(np.float64),
    "powers of two": next_to([math.ldexp(1.0, e) for e in range(-1074, 1024)]),
    "powers of ten": next_to([float(f"1e{e}") for e in range(-323, 309)]),
    "few digits": next_to([float(f"{d}e{e}") for d in (2, 5, 9, 99, 125, 9007199254740993) for e in range(-323, 290)]),
    "special": [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308],
    "borders of notations": next_to([1e-6, 9.5e-6, 1e-5, 0.1, 1.0, 10.0, 1e15, 1e16, 1e17]),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_double_is_written_as_the_shortest_decimal_that_is_read_as_it(kind):
    numbers = np.concatenate([DRAWS[kind], np.negative(DRAWS[kind])])
    assert lines(numbers) == msgspec.json.Encoder().encode_lines(numbers.tolist())


def digits(text):
    """Return the significant digits of a decimal."""
    return re.sub(r"e.*|[-.]", "", text).strip("0")


def test_digits_are_those_of_python():
    numbers = [number for number in DRAWS["any double"].tolist()[:50_000] if math.isfinite(number)]
    texts = lines(numbers).decode().split()
    assert list(map(float, texts)) == numbers
    assert [*map(digits, texts)] == [digits(repr(number)) for number in numbers]
    longest = struct.unpack("d", struct.pack("Q", 0x8010000000000000))[0]
    assert len(lines([longest])) == LONGEST + 1


def test_integers_and_texts_stand_between_the_same_texts():
    whole = np.array([0, 7, -1, 10**18, 2**63 - 1, -(2**63)])
    found, ends = write(
        [WHOLE, TEXT, TEXT, DOUBLE],
        [b'{"n":', b",", ',"é":'.encode(), b"|", b"}\n"],
        [whole, np.array([0, 1, 2, 2, 1, 0]), np.array([2, 2, 0, 1, 0, 1]), np.arange(6) / 4],
        [b'"a"', b"", b"null"],
    )
    levels = ['"a"', "", "null"]
    expected = [
        f'{{"n":{n},{levels[i]},"é":{levels[j]}|{x}}}\n'.encode()
        for n, i, j, x in zip(
            whole.tolist(), [0, 1, 2, 2, 1, 0], [2, 2, 0, 1, 0, 1], (np.arange(6) / 4).tolist(), strict=True
        )
    ]
    assert found == b"".join(expected)
    assert ends == np.cumsum([len(line) for line in expected]).tolist()
