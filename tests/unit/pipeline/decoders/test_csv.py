import math

import numpy as np
import pytest

from streammoe.errors import InvalidEvent, SourceError
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.ports import Batch


def batch_of(*records, columns=("a", "b", "y")):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Batch(b"".join(records), ends, "csv", columns, "events.csv", lambda i: {"offset": i}, {})


def decode(*records, columns=("a", "b"), targets=("y",), header=("a", "b", "y"), ignore=None, **wanted):
    return decoder("csv").decode(batch_of(*records, columns=header), Wanted(columns, targets, **wanted), ignore)


def reasons(*records, **names):
    return [(bad.index, bad.reason) for bad in decode(*records, **names).rejected]


def test_numbers_become_contiguous_arrays_in_the_order_of_the_names():
    decoded = decode(b"1,2,3\n", b"4,5,6\r\n", b"7,8,9", columns=("b", "a"))
    assert decoded.rows.tolist() == [0, 1, 2]
    assert decoded.X.tolist() == [[2, 1], [5, 4], [8, 7]]
    assert decoded.Y.tolist() == [[3], [6], [9]]
    assert decoded.X.flags.c_contiguous
    assert decoded.Y.flags.c_contiguous
    assert decoded.rejected == []


def test_empty_cells_and_absent_feature_columns_are_missing():
    decoded = decode(b"1,,\n", b'"",2,5\n', columns=("a", "b", "z"))
    np.testing.assert_array_equal(decoded.X, [[1, math.nan, math.nan], [math.nan, 2, math.nan]])
    np.testing.assert_array_equal(decoded.Y, [[math.nan], [5]])


def test_other_columns_may_hold_anything():
    decoded = decode(b'1,"two, ""2""\nlines",3\n', columns=("a",))
    assert decoded.X.tolist() == [[1]]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (b"abc", "wrong_type"),
        (b" ", "wrong_type"),
        (b"yes", "wrong_type"),
        (b" true", "wrong_type"),
        (b"0x10", "wrong_type"),
        (b"1_0", "wrong_type"),
        (b"nan", "not_finite"),
        (b"-Infinity", "not_finite"),
        (b"1e999", "out_of_range"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_bad_cell_refuses_its_record_only(cell, reason, at):
    cells = [b"1", b"2", b"3"]
    cells[at] = cell
    decoded = decode(b"1,2,3\n", b",".join(cells) + b"\n", b"4,5,6\n")
    assert decoded.rows.tolist() == [0, 2]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(1, reason)]
    assert f"field '{'aby'[at]}'" in decoded.rejected[0].detail


@pytest.mark.parametrize("record", [b"1,2\n", b"1,2,3,\n", b"\xff,2,3\n", b'1,"2,3\n', b'"1"2,3,4\n', b"1\r2,3,4\n"])
def test_a_record_that_cannot_be_taken_apart_is_malformed(record):
    assert reasons(b"1,2,3\n", record, b"4,5,6\n") == [(1, "malformed")]


def test_a_long_value_is_shortened_in_the_detail():
    (bad,) = decode(b"z" * 500 + b",2,3\n").rejected
    assert len(bad.detail) < 200
    assert "zzz" in bad.detail


def test_rare_bad_records_are_found_among_many():
    records = [b"%d,2,3\n" % i for i in range(3000)]
    records[700] = b"x,2,3\n"
    records[2999] = b"1,2\n"
    decoded = decode(*records)
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(700, "wrong_type"), (2999, "malformed")]
    assert decoded.X[:, 0].tolist() == decoded.rows.tolist()
    assert len(decoded.rows) == 2998


def test_two_records_in_one_piece_never_pass_for_two_pieces():
    """Readers of whole blocks count two rows here; only the records' own ends show that both pieces are broken."""
    assert reasons(b"1,2,3\n4,5,6\n", b"") == [(0, "malformed"), (1, "malformed")]


MARK = b"\xef\xbb\xbf"


def test_a_record_does_not_begin_with_a_byte_order_mark():
    assert reasons(MARK + b"1,2,3\n") == [(0, "malformed")]


@pytest.mark.parametrize("records", [[MARK + b"red,1\n"], [b"red,1\n", MARK + b"red,2\n", b"red,3\n"]])
def test_nor_does_a_category_take_it_up(records):
    """Files put together have it amid the stream."""
    decoded = decode(*records, columns=("c",), header=("c", "y"), categorical=frozenset("c"))
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(len(records) // 2, "malformed")]
    assert decoded.texts == {0: ["red"] * (len(records) - 1)}


def test_a_header_without_the_target_names_file_target_and_columns():
    with pytest.raises(SourceError, match=r"events\.csv .*'price'.*'a', 'b', 'y'"):
        decode(b"1,2,3\n", targets=("price",))


def test_column_names_may_repeat_between_features_and_targets():
    decoded = decode(b"1,2,3\n", columns=("a", "y", "a"), targets=("y", "a"))
    assert decoded.X.tolist() == [[1, 3, 1]]
    assert decoded.Y.tolist() == [[3, 1]]


def test_nothing_configured_still_judges_the_records():
    decoded = decode(b"1,2,3\n", b"1\n", columns=("z",), targets=())
    assert decoded.rows.tolist() == [0]
    assert decoded.Y.shape == (1, 0)


def test_names_gives_raw_text():
    batch = batch_of(b'1,"x ""y""",\r\n', b"1\n")
    assert decoder("csv").names(batch, 0) == {"a": "1", "b": 'x "y"', "y": ""}
    with pytest.raises(InvalidEvent) as caught:
        decoder("csv").names(batch, 1)
    assert caught.value.reason == "malformed"


def test_labels_categories_times_and_weights():
    decoded = decode(
        b"1,red,2024-05-01,cat,2\n",
        b',"",,,\n',
        b'2,"say ""hi""",1.5,dog,0\n',
        header=("a", "c", "t", "y", "w"),
        columns=("c", "a", "t"),
        targets=(),
        label="y",
        weight="w",
        categorical=frozenset("c"),
        timestamps=frozenset("t"),
    )
    np.testing.assert_array_equal(
        decoded.X, [[math.nan, 1, 1714521600], [math.nan, math.nan, math.nan], [math.nan, 2, 1.5]]
    )
    assert decoded.texts == {0: ["red", None, 'say "hi"']}
    assert decoded.labels == ["cat", None, "dog"]
    assert decoded.weights.tolist() == [2, 1, 0]
    assert decoded.Y.shape == (3, 0)


@pytest.mark.parametrize("first", [b"true", b"", b"1"])
def test_booleans_are_numbers_wherever_they_come(first):
    cells = [first, b"TRUE", b"false", b"False", b"tRuE", b""] * 100
    decoded = decode(*(b"%s,0,1\n" % cell for cell in cells))
    expected = [math.nan if cell == b"" else float(cell.lower() in {b"true", b"1"}) for cell in cells]
    np.testing.assert_array_equal(decoded.X[:, 0], expected)


def test_a_bad_time_or_label_refuses_its_record_only():
    header = ("a", "t", "l")
    wanted = {"columns": ("a", "t"), "targets": (), "label": "l", "timestamps": frozenset("t"), "header": header}
    records = [b"1,2024-05-01,x\n", b"1,May 1,x\n", b"1,,%s\n" % (b"x" * 257), b"1,,x\n"]
    assert reasons(*records, **wanted) == [(1, "wrong_type"), (2, "out_of_range")]
    assert decode(*records, **wanted).labels == ["x", "x"]


def test_events_with_some_of_their_targets_are_refused():
    found = reasons(b"1,2,3\n", b"1,2,\n", b"1,,\n", columns=("a",), targets=("b", "y"))
    assert found == [(1, "partial_target")]


@pytest.mark.parametrize("label", ["b", "l"])
def test_the_label_has_to_be_in_the_header_and_the_weight_may_be(label):
    if label == "b":
        assert decode(b"1,2,3\n", targets=(), label=label, weight="w").weights.tolist() == [1]
    else:
        with pytest.raises(SourceError, match="no column 'l'"):
            decode(b"1,2,3\n", targets=(), label=label)


# --- late columns ---------------------------------------------------------------------------------------------------

LATE = ("a", "y", "late", "later", "skip")


@pytest.mark.parametrize("n", [0, 3, 500])
def test_reading_stops_before_the_first_value_of_a_new_column(n):
    records = [b"1,2,,,x\n"] * n + [b"1,2,,7,\n", b"1,2,3,4,x\n", b"bad"]
    decoded = decode(*records, header=LATE, columns=("a",), ignore={"skip"})
    assert decoded.first_new == (n, {"later": "7"})
    assert decoded.rows.tolist() == list(range(n))
    assert decoded.rejected == []


def test_without_leave_to_grow_new_columns_are_ignored():
    decoded = decode(b"1,2,3,,\n", header=LATE, columns=("a",))
    assert (decoded.first_new, decoded.rows.tolist()) == (None, [0])


def test_a_refused_record_brings_no_column():
    records = [b"x,2,3,,\n", b"1,2,abc,,\n", b"1,2\n", b"1,2,,,\n"]
    decoded = decode(*records, header=LATE, columns=("a",), ignore={"skip"})
    assert decoded.first_new is None
    assert [bad.index for bad in decoded.rejected] == [0, 1, 2]
    assert "'late' is 'abc'" in decoded.rejected[1].detail
    again = decode(*records, header=LATE, columns=("a",), ignore={"skip"}, categorical=frozenset({"late"}))
    assert again.first_new == (1, {"late": "abc"})
