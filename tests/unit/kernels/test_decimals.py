"""Decimal numbers between fixed texts, next to Python's own reading of them."""

import math
import random
import struct
from decimal import Decimal, localcontext

import numpy as np
import pytest

from streammoe.kernels.decimals import powers_of_ten, read_rows

POWERS = powers_of_ten()


def read(records, texts, columns, *, takes_null=False, width=1):
    """Read records of bytes; return the rows, and which were read."""
    rows = np.full((len(records), width), 7.0)
    is_read = read_rows(
        np.frombuffer(b"".join(records), np.uint8),
        np.cumsum([len(record) for record in records]),
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([len(text) for text in texts]),
        np.array(columns),
        takes_null,
        POWERS,
        rows,
    )
    assert np.isnan(rows[~is_read]).all()
    return rows, is_read


def numbers(texts):
    """Read lines of one number each."""
    rows, is_read = read([text.encode() + b"\n" for text in texts], [b"", b"\n"], [0])
    return rows[:, 0], is_read


def any_double(rng):
    return struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0]


def half_way(rng):
    """Return the first digits of a number right between two doubles."""
    low = math.ldexp(rng.getrandbits(52) | 1 << 52, rng.randint(-200, 100))
    with localcontext(prec=60):
        return f"{(Decimal(low) + Decimal(math.nextafter(low, math.inf))) / 2:.{rng.randint(14, 18)}e}"


DRAWS = {
    "any double": (lambda rng: repr(any_double(rng)), 0.9),
    "normal": (lambda rng: repr(rng.gauss(0.0, 1.0)), 1.0),
    "rounded": (lambda rng: f"{rng.gauss(0.0, 10.0 ** rng.randint(-5, 8)):.{rng.randint(0, 12)}f}", 0.9),
    "integer": (lambda rng: str(rng.getrandbits(rng.randint(1, 66))), 0.9),
    "exponent": (lambda rng: f"{rng.getrandbits(rng.randint(1, 63))}e{rng.randint(-345, 310)}", 0.9),
    "half-way": (half_way, 0.9),
    "exactly half-way": (lambda rng: str((rng.getrandbits(53) | 1 << 53) * 2 + 1 << rng.randint(0, 8)), 0.4),
}
"""How to draw numbers of a kind, and the least share that is not left to others."""


@pytest.mark.parametrize("kind", DRAWS)
def test_what_is_read_is_the_nearest_double(kind):
    draw, least = DRAWS[kind]
    rng = random.Random(0)
    texts = [text for text in (draw(rng) for _ in range(20_000)) if math.isfinite(float(text))]
    found, is_read = numbers(texts)
    expected = np.array([float(text) for text in texts])
    np.testing.assert_array_equal(found[is_read], expected[is_read])
    assert is_read.mean() >= least


PLAIN = [
    "0",
    "0.0",
    "-0.0",
    "-0e3",
    "7",
    "-7",
    "10",
    "1.5",
    "-0.25",
    "1e5",
    "1E5",
    "1e+5",
    "1.25e-3",
    "0.1",
    "123456789",
]
PLAIN += [
    "9223372036854775808",
    "9999999999999999999",
    "0.00000000000000000000000012345678901234567",
    "1.7976931348623157e308",
]
OTHERS = [
    "",
    "-",
    "+1",
    ".5",
    "5.",
    "007",
    "-01",
    "00",
    "1e",
    "1e+",
    "1e00005",
    "1_0",
    " 1",
    "1 ",
    "nan",
    "inf",
    "NaN",
    "0x10",
]
OTHERS += [
    "true",
    "1,5",
    '"1"',
    "1e400",
    "1e-400",
    "4e-320",
    "12345678901234567890",
    "1e308e1",
    "--1",
    "1.2.3",
    "-0",
    "１",
]


def test_numbers_are_those_of_json_and_all_else_is_left_to_others():
    found, is_read = numbers(PLAIN)
    assert is_read.all()
    assert [*map(repr, found.tolist())] == [repr(float(text)) for text in PLAIN]
    assert not numbers(OTHERS[1:])[1].any()


def test_texts_must_be_the_same_and_nothing_may_be_left_over():
    texts = [b'{"a": ', b', "b": ', b"}\n"]
    good = b'{"a": 1, "b": 2}\n'
    records = [good, *(good[:i] + b"x" + good[i + 1 :] for i in range(len(good)) if i not in (6, 14))]
    records += [good[:-1], good[:-2], good[:10], good[:6], b"\n", good + b" ", b" " + good, b'{"b": 1, "a": 2}\n', good]
    rows, is_read = read(records, texts, [1, 0], takes_null=True, width=2)
    assert is_read.tolist() == [True, *[False] * (len(records) - 2), True]
    assert rows[0].tolist() == rows[-1].tolist() == [2.0, 1.0]


def test_missing_numbers_are_null_or_nothing_and_those_of_no_column_must_be_numbers_too():
    rows, is_read = read(
        [b"1,,3\n", b",2,\n", b"1,null,2\n", b"1,2,x\n"], [b"", b",", b",", b"\n"], [0, -1, 1], width=2
    )
    assert is_read.tolist() == [True, True, False, False]
    np.testing.assert_array_equal(rows[:2], [[1.0, 3.0], [math.nan, math.nan]])
    records = [b"[null]", b"[]", b"[nul]", b"[nulls]", b"[nil1]"]
    rows, is_read = read(records, [b"[", b"]"], [0], takes_null=True)
    assert is_read.tolist() == [True, False, False, False, False]
