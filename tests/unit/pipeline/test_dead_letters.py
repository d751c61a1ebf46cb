import base64
import json

import numpy as np
import pytest

from streammoe.daemon.guards import BAD_RECORD_WINDOW as WINDOW
from streammoe.daemon.guards import BadRecordGuard
from streammoe.errors import ConfigError, TooManyBadRecords
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.ports import DeadLetter


def letter(record, offset=7, **others):
    given = {"stage": "decode", "reason": "malformed", "detail": "it must be JSON"} | others
    return DeadLetter(place={"path": "a.csv", "offset": offset}, record=record, **given)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "folders" / "dead.jsonl"


# --- the file -------------------------------------------------------------------------------------------------------


def test_a_letter_becomes_a_line_that_says_everything(path):
    sink = DeadLetterFile(path)
    sink.write([letter(b'{"x": "\xc3\xa9"}', detail="field 'x' is 'é'; it must be a number", reason="wrong_type")])
    sink.close()
    assert lines(path) == [
        {
            "place": {"path": "a.csv", "offset": 7},
            "stage": "decode",
            "reason": "wrong_type",
            "detail": "field 'x' is 'é'; it must be a number",
            "record": '{"x": "é"}',
        }
    ]


def test_bytes_that_are_no_text_are_kept_to_the_last_bit(path):
    records = [b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80"]
    sink = DeadLetterFile(path)
    sink.write(letter(record) for record in records)
    sink.close()
    assert [base64.b64decode(entry["record_base64"]) for entry in lines(path)] == records
    assert not any("record" in entry for entry in lines(path))


def test_odd_records_and_details_stay_in_one_line(path):
    records = [b"", b"\0", b'1,"two\nlines"', "\u2028\x85".encode(), b"\r"]
    sink = DeadLetterFile(path)
    sink.write(letter(record, detail="field '\ud800' is odd") for record in records)
    sink.close()
    found = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [entry["record"].encode() for entry in found] == records


def test_a_flush_reaches_the_disk(path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(path.exists() and path.read_bytes()))
    sink = DeadLetterFile(path)
    sink.write([letter(b"1", 0), letter(b"2", 1)])
    sink.flush()
    assert synced[-1] == path.read_bytes() != b""
    assert [entry["place"]["offset"] for entry in lines(path)] == [0, 1]
    sink.close()


def test_a_restart_appends_and_a_torn_last_line_takes_no_other_with_it(path):
    path.parent.mkdir(parents=True)
    path.write_text('{"place": {"pa')
    for record in (b"1", b"2"):
        sink = DeadLetterFile(path)
        sink.write([letter(record)])
        sink.close()
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"place": {"pa'
    assert [json.loads(line)["record"] for line in whole] == ["1", "2"]


def test_a_file_without_letters_stays_empty(path):
    DeadLetterFile(path).close()
    DeadLetterFile(path).close()
    assert not path.exists() or path.read_bytes() == b""


def test_a_path_that_cannot_be_opened_is_the_settings_fault(tmp_path):
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file" / "dead.jsonl", tmp_path):
        with pytest.raises(ConfigError):
            DeadLetterFile(wrong)


# --- the guard ------------------------------------------------------------------------------------------------------


def judged(guard, bad, size):
    """How many records were taken before it had enough; ``None`` if it never had."""
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
    for size in (1, 7, 999, 1000, 1001, 5000):
        assert judged(BadRecordGuard(0.5), bad, size) == straw // size * size
    assert judged(BadRecordGuard(0.5), [False] * 5000 + [True] * 501 + [False] * 5000, 20_000) == 0


def test_just_enough_are_accepted_wherever_they_are():
    for size in (1, 10, 10_000):
        assert judged(BadRecordGuard(0.5), ([True] * 500 + [False] * 500) * 3, size) is None
    assert judged(BadRecordGuard(1.0), [True] * 5000, 300) is None


def test_nothing_is_judged_before_there_were_so_many_records():
    for size in (1, 100, WINDOW - 1):
        guard = BadRecordGuard(0.1)
        assert judged(guard, [True] * (WINDOW - 1), size) is None
        guard.judge(np.zeros(0, dtype=np.bool_))
        with pytest.raises(TooManyBadRecords):
            guard.judge(np.array([True]))
