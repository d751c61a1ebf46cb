"""Rejected records in a file, and how many of them are too many."""

import json

import numpy as np

from streammoe.daemon.guards import BAD_RECORD_WINDOW as WINDOW
from streammoe.daemon.guards import BadRecordGuard
from streammoe.errors import TooManyBadRecords
from streammoe.pipeline.dead_letters import DeadLetterFile, read_letter
from streammoe.ports import MAX_ENVELOPE_BYTES, DeadLetter, enveloped


def letter(record=b"1", detail="", **how_to_read):
    return DeadLetter({"path": "a.csv", "offset": 7}, "decode", "malformed", detail, record, **how_to_read)


LETTERS = [
    letter(b'{"x": "\xc3\xa9"}', "field 'x' is '\u00e9'; it must be a number", format="jsonl"),
    *[letter(record) for record in (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80")],  # no text
    *[letter(record, "field '\ud800' is odd") for record in (b"", b"\0", b'1,"two\nlines"', "\u2028\x85".encode())],
    letter(b"", key=b"", headers=(("a", b"\xff"), ("a", None), ("\u00e9", "\u00e9".encode()))),
    letter(b"", key=b"\xff", omitted_bytes=7),
    letter(b"1;2\r", format="csv", columns=("a", "b"), delimiter=";", decimal=","),
]


def test_letters_are_lines_that_are_read_as_they_were_written(tmp_path):
    file = DeadLetterFile(tmp_path / "new" / "dead.jsonl")
    file.write(LETTERS)
    file.flush()
    file.close()
    lines = (tmp_path / "new" / "dead.jsonl").read_bytes().splitlines(keepends=True)
    assert [read_letter(line) for line in lines] == LETTERS
    assert json.loads(lines[0]) == {
        "place": {"path": "a.csv", "offset": 7},
        "stage": "decode",
        "reason": "malformed",
        "detail": "field 'x' is '\u00e9'; it must be a number",
        "record": '{"x": "\u00e9"}',
        "format": "jsonl",
    }
    assert json.loads(lines[1])["record"] == {"base64": "//4="}


WRONG = [
    {"key": 1},
    *({"record": {"base64": "?"}}, {"key": {"base64": "?"}}, {"key": {"base": "?"}}),
    *({"headers": headers} for headers in (1, [1], [["a"]], [[1, "a"]], [["a", 1]], [["a", {"base64": "?"}]])),
]


def test_what_is_no_letter():
    whole = {"place": {}, "stage": "", "reason": "", "detail": "", "record": ""}
    assert read_letter(json.dumps(whole).encode()) is not None
    for wrong in ({"place": 1}, {"record": 1}, {"columns": [1]}, {"omitted_bytes": "x"}, {"delimiter": "x"}, *WRONG):
        assert read_letter(json.dumps(whole | wrong).encode()) is None, wrong
    for line in (b"", b"null", b"[" * 100_000):
        assert read_letter(line) is None


def test_key_and_headers_are_kept_as_far_as_they_fit():
    most = MAX_ENVELOPE_BYTES
    fits = letter(key=b"k", headers=(("a", None), ("b", b"x" * (most - 3))))
    assert enveloped(letter(), fits.key, fits.headers) == fits
    headers = (("a", b"x" * most), ("b", b"y"))
    assert enveloped(letter(), b"k" * (most - 2), headers) == letter(
        key=b"k" * (most - 2), headers=headers[1:], omitted_bytes=most + 1
    )
    assert enveloped(letter(), b"k" * (most + 1), ()) == letter(omitted_bytes=most + 1)


# --- the guard ------------------------------------------------------------------------------------------------------


def judged(guard, bad, size):
    """Return how many records were taken before it had enough; ``None`` if it never had."""
    bad = np.array(bad, dtype=np.bool_)
    for at in range(0, len(bad), size):
        try:
            guard.judge(bad[at : at + size])
        except TooManyBadRecords:
            return at
    return None


def test_too_many_are_found_in_the_batch_that_has_the_last_straw():
    bad = [False] * 2300 + [True] * 700
    straw = 2300 + 500  # the 501st bad one
    for size in (1, 999, 5000):
        assert judged(BadRecordGuard(0.5), bad, size) == straw // size * size


def test_just_enough_are_accepted_wherever_they_are_and_too_few_are_not_judged():
    for size in (1, WINDOW - 1, 10_000):
        assert judged(BadRecordGuard(0.5), ([True] * 500 + [False] * 500) * 3, size) is None
    guard = BadRecordGuard(0.1)
    assert judged(guard, [True] * (WINDOW - 1), WINDOW - 1) is None
    assert judged(guard, [True], 1) == 0


def test_after_a_restart_no_window_is_judged_again():
    guard = BadRecordGuard(0.5)
    assert judged(guard, [True] * (WINDOW // 2) + [False] * (WINDOW // 2), WINDOW) is None
    assert judged(BadRecordGuard(0.5 - 1 / WINDOW, guard.latest), [False], 1) is None
