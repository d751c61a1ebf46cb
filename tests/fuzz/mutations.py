"""Sound records, and what can happen to them."""

import re

from tests.batches import csv_line

NUMBERS = [
    *b"0 -0 1 -1.5 1e5 1e6 -1e7 1e50 1e51 1e300 1e308 1e309 1e-400 nan NaN inf -Infinity 1e400 1e999 2**63".split(),
    *b"9223372036854775808 1,5 1.234,5 1_000 0x10 007 +1 .5 1. 1e -- true FALSE null None NA".split(),
    *b'"" "1.5" [1] [] {} {"is":[1]} 1772323200 1.8e12 -62135596801 2026-02-30 "2026-03-01T00:00:00Z"'.split(),
    *(b"", b"9" * 400, b"0." + b"0" * 330 + b"1", "１２".encode(), b" 1 ", b"1\t", b"2026-03-01 10:00"),
]
PIECES = [
    *b"""" "" ' , ,, ; : { } [ ] \\ \\" \\u0000 \\ud800 \\n a,b,c,t "a":1, "late":1, "late":"x", "":1,""".split(),
    *b""""w":0, "y":null, "c":"violet", null // #""".split(),
    *(bytes([octet]) for octet in b"\n\r \t\0\x0b\x0c\x1a\x7f\x80\xff\xc3"),
    *(b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80"),
    *("é".encode(), "\u2028".encode(), "\U0001f600".encode()),
]
TOKEN = re.compile(rb'[^,:"{}\[\]\s]+')


def line_of(held, format):
    """A sound record without its line end."""
    if format == "csv":
        return csv_line(held.values()).rstrip(b"\n")
    # As other programs write them: some with blanks.
    texts = (f'"{name}": ' + (f'"{value}"' if isinstance(value, str) else repr(value)) for name, value in held.items())
    return ("{" + ", ".join(texts) + "}").encode()


def mutated(record, rng, others):
    """A record to which something happens, once or a few times; now and then that is nothing."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        record = rng.choice(HAPPENINGS)(record, rng, others)
    return record


def _span(record, rng):
    return sorted(rng.randrange(len(record) + 1) for _ in range(2))


def _token(record, rng):
    """Where a value or a name is; all of the record if it has none."""
    found = [match.span() for match in TOKEN.finditer(record)]
    return rng.choice(found) if found else (0, len(record))


def _flip(record, rng, _):
    at = rng.randrange(len(record) + 1)
    return record[:at] + bytes(octet ^ (1 << rng.randrange(8)) for octet in record[at : at + 1]) + record[at + 1 :]


def _insert(record, rng, _):
    at = rng.randrange(len(record) + 1)
    return record[:at] + rng.choice(PIECES) + record[at:]


def _number(record, rng, _):
    start, stop = _token(record, rng)
    return record[:start] + rng.choice(NUMBERS) + record[stop:]


def _swap(record, rng, _):
    (a, b), (c, d) = sorted((_token(record, rng), _token(record, rng)))
    return record if a == c else record[:a] + record[c:d] + record[b:c] + record[a:b] + record[d:]


def _cut(record, rng, _):
    start, stop = _span(record, rng)
    return record[:start] + record[stop:]


def _splice(record, rng, others):
    other = rng.choice(others)
    return record[: rng.randrange(len(record) + 1)] + other[rng.randrange(len(other) + 1) :]


def _lengthen(record, rng, _):
    """A byte many times; rarely so often that the record is too long."""
    at = rng.randrange(len(record) + 1)
    count = rng.choice((10, 100, 300)) if rng.randrange(20) else 5000
    return record[:at] + record[at : at + 1] * count + record[at:]


def _nest(record, rng, _):
    depth = rng.choice((1, 50, 99, 100, 101, 500))
    before, after = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    start, stop = _token(record, rng)
    return record[:start] + before * depth + record[start:stop] + after * depth + record[stop:]


def _join(record, rng, others):
    return record + rng.choice((b"", b" ", b",", b"\r", b"\0")) + rng.choice(others)


HAPPENINGS = [_flip, _flip, _insert, _insert, _number, _number, _number, _swap, _swap, _cut, _cut]
HAPPENINGS += [_splice, _lengthen, _nest, _join]
