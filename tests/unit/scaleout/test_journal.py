"""What is held of the events that a model has learned, for another one that lacks some of them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streammoe.pipeline.pipeline import BatchResult
from streammoe.scaleout.journal import Journal
from tests.batches import batch_of

DIGEST = "d" * 64


def batch(first, n=3, format="jsonl"):
    return batch_of([{"a": i, "y": -i} for i in range(first, first + n)], format, first)


def result(n=3, bad=()):
    flags = np.zeros(n, np.bool_)
    flags[list(bad)] = True
    return BatchResult(Counter(learned=n - len(bad)), Counter(), [], flags, np.zeros(n - len(bad)))


def held(parts):
    """Return the numbers of the records."""
    return [part.batch.location(i)["row"] for part in parts for i in range(len(part.batch))]


def filled(**options):
    """A journal with a checkpoint after every second batch of three records; the first batch is the one of record 0."""
    journal = Journal(**options)
    for number in range(6):
        if number % 2 == 0:
            journal.add_saved(number, DIGEST, {"at": number}, journal.mark)
        journal.add(batch(3 * number), result())
    return journal


def test_what_came_after_a_checkpoint_is_held_if_all_about_it_agrees():
    journal = filled()
    assert held(journal.since(2, DIGEST, {"at": 2})) == list(range(6, 18))
    assert held(journal.since(4, DIGEST, {"at": 4})) == list(range(12, 18))
    for other in ((3, DIGEST, {"at": 2}), (2, "e" * 64, {"at": 2}), (2, DIGEST, {"at": 3}), (2, DIGEST, None)):
        assert journal.since(*other) is None


def test_headers_are_not_held():
    journal = Journal()
    journal.add_saved(1, DIGEST, None, journal.mark)
    for bad in ((), (1,)):
        journal.add(replace(batch(0), headers=[(("a", b"1"),)] * 3), result(bad=bad))
    assert [part.batch.headers for part in journal.since(1, DIGEST, None)] == [None, None]


def test_positions_are_compared_as_they_come_back_from_json():
    journal = Journal()
    journal.add_saved(1, DIGEST, {"offsets": {0: 5}, "names": ("a", "b")}, journal.mark)
    assert journal.since(1, DIGEST, {"names": ["a", "b"], "offsets": {"0": 5}}) == []


def test_a_checkpoint_that_becomes_durable_later_holds_what_it_did_when_it_was_taken():
    journal = Journal()
    journal.add(batch(0), result())
    mark = journal.mark
    journal.add(batch(3), result())
    journal.add_saved(1, DIGEST, None, mark)
    assert held(journal.since(1, DIGEST, None)) == [3, 4, 5]


@pytest.mark.parametrize("format", ["jsonl", "csv", "arrow"])
def test_rejected_records_are_left_out_and_batches_of_nothing_else(format):
    journal = Journal()
    journal.add_saved(1, DIGEST, None, journal.mark)
    journal.add(batch(0, 4, format), result(4, bad=[0, 2]))
    journal.add(batch(4, 2, format), result(2, bad=[0, 1]))
    (part,) = journal.since(1, DIGEST, None)
    assert held([part]) == [1, 3]
    assert part.learned == 2
    assert [part.batch.record(i) for i in range(2)] == [batch(0, 4, format).record(i) for i in (1, 3)]


def test_beyond_the_limit_the_oldest_are_dropped_with_the_checkpoints_before_them():
    whole = filled().n_bytes
    journal = filled(max_bytes=whole - 1)
    assert journal.since(0, DIGEST, {"at": 0}) is None
    assert held(journal.since(2, DIGEST, {"at": 2})) == list(range(6, 18))
    assert journal.n_bytes < whole
    nothing = filled(max_bytes=1)
    assert nothing.n_bytes == 0
    assert all(nothing.since(number, DIGEST, {"at": number}) is None for number in range(6))
    nothing.add_saved(9, DIGEST, None, nothing.mark)
    assert nothing.since(9, DIGEST, None) == []


def test_what_only_earlier_versions_would_need_is_forgotten():
    journal = filled()
    journal.forget_before(4)
    assert journal.since(2, DIGEST, {"at": 2}) is None
    assert held(journal.since(4, DIGEST, {"at": 4})) == list(range(12, 18))
    assert journal.n_bytes * 3 == pytest.approx(filled().n_bytes, rel=0.1)


def test_a_rollback_drops_what_came_after_and_checkpoints_that_hold_it():
    journal = filled()
    journal.roll_back(2)
    assert journal.since(4, DIGEST, {"at": 4}) is None
    assert journal.since(2, DIGEST, {"at": 2}) == []
    journal.add(batch(90), result())
    assert held(journal.since(0, DIGEST, {"at": 0})) == [*range(6), 90, 91, 92]
    # To a checkpoint that is not known any more: nothing is.
    journal.roll_back(1)
    assert journal.since(0, DIGEST, {"at": 0}) is None
    assert journal.n_bytes == 0
    journal.add(batch(93), result())
    journal.add_saved(2, DIGEST, None, journal.mark)
    assert journal.since(2, DIGEST, None) == []


def test_tables_count_by_their_columns():
    table = pa.RecordBatch.from_pydict({"a": [1.0] * 1000, "y": [2.0] * 1000})
    journal = Journal()
    journal.add_saved(1, DIGEST, None, 0)
    many = batch_of([{"a": 1.0, "y": 2.0}] * 1000, "arrow", 0)
    journal.add(many, result(1000))
    assert journal.n_bytes == table.nbytes
