"""Both paths of a decoder agree, whatever the records hold, and in every dialect of csv."""

import json
import math
from dataclasses import replace
from datetime import UTC

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import InvalidEvent
from streammoe.notation import Notations
from streammoe.pipeline.decoders import DecodedBatch, FieldRoles, NewNames, decoder, event_of
from streammoe.pipeline.schema import Schema
from streammoe.ports import DECIMALS, DELIMITERS, Batch, Locations
from tests.batches import roles_of

HEADER = ("a", "t", "b", "y")
DIALECTS = [(delimiter, decimal) for delimiter in DELIMITERS for decimal in DECIMALS]

finite = st.floats(allow_nan=False, allow_infinity=False)
odd_numbers = st.sampled_from(
    [
        *("1.", ".5", ".", "-.5", "+1", "+-1", "-0", "00", "007", "-", "1;5", "0x10", "0x1p3", "1_0", "1d5", "1f", "١"),
        *("1e5", "1E+05", "1e", "e5", "1e+", "1e999", "-1e999", "1e-999", "0e999", "2.5e-324", "2.4e-324"),
        *("nan", "-NaN", "nan(1)", "inf", "+Infinity", "TRUE", "true", "", " ", " 1", "1 ", "\t1\t", "\v1", "\u00a01"),
        *("9007199254740993", "18446744073709551617", "123456789012345678901234567890.5", "1\0"),
        *("1.7976931348623158e308", "1.7976931348623159e308", "9" * 400, "1" + "0" * 308, "0." + "0" * 330 + "1"),
    ]
)
numbers = st.one_of(finite.map(repr), finite.map("{:.30e}".format), st.integers().map(str), odd_numbers)
junk = st.lists(
    st.sampled_from([b"\xff", b"\xef\xbb\xbf", "é".encode(), b"\\", b"\\ud800", b"NaN", b"[", b"[" * 150, b"null"])
    | st.sampled_from([bytes([c]) for c in b'"",,{}[]:.-+eE019 \t\r\n\r\n\0\x0c']),
    max_size=4,
)


@st.composite
def mutated(draw, records):
    """Records, most of them sound, the others with some bytes taken out and others put in."""
    record = draw(records)
    if draw(st.integers(0, 3)):
        return record
    at = draw(st.integers(0, len(record)))
    return record[:at] + b"".join(draw(junk)) + record[at + draw(st.integers(0, 3)) :]


cells = st.one_of(
    numbers, numbers.map('"{}"'.format), st.sampled_from(['""', '"a""b"', '"a,b"', '"a\nb"', 'a"b', '"a"b'])
)
json_values = st.one_of(
    finite | st.integers() | st.booleans() | st.none() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    st.sampled_from([float("nan"), float("inf"), 10**308, 10**309, -(2**64), {"a": [{}]}]),
)
json_objects = st.dictionaries(st.sampled_from(["a", "b", "y", "c", "é", '"']), json_values).map(json.dumps)
json_numbers = st.builds('{{"a": {}, "c": {}, "a":{}, "y":0}}'.format, numbers, numbers, numbers)
json_records = mutated((json_objects | json_numbers).map(lambda text: (text + "\n").encode()))


times = st.one_of(
    st.datetimes().map(str),
    st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat().replace("+00:00", "Z")),
    st.dates().map(str),
    st.sampled_from(["2024-02-30", "2024-05-01T24:00", "2024-05-01 10:00+02", "2024-05-01t10:00:00,5Z", "20240501"]),
)
markers = st.sampled_from(
    ["NA", " NA", "None", "na", "-", "--", "\\N", "<NA>", "?", "off", "-200", "-2e2", "-200.0", "2024-05", "01.05.2024"]
)
NOTATIONS = [
    Notations(),
    Notations(missing={"*": ("off",), "a": (-200,), "b": (), "t": (-200, "off")}, zone="Europe/Berlin"),
    Notations(
        missing={"*": (), "y": ("NA", -200)}, thousands="'", units={"%": 0.01, "$": 1.0}, times={"t": "%d.%m.%Y"}
    ),
    Notations(missing={"b": (-200.0,)}, units={"M": 1e300}, times={"t": "ms"}, zone="America/New_York"),
]
quantities = st.sampled_from(
    ["5%", "5 %", "-$5", "$-5", "$ 1'234", "1'234.5", "1'23", "0'123", "%", "5 M", "1e99M", "$5%", "5 kg", "1\u00a0000"]
)
odd = markers | quantities
notations = st.sampled_from(NOTATIONS)
commas = st.sampled_from(["1,5", "-,5", "+2,", "1,5e3", "1.5", "1.000,5", "1,0,0", " 1,5", '"1,5"', "-1,5;2", "1\t2"])


def batch_of(records, format, header=HEADER):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    columns = header if format == "csv" else None
    return Batch(b"".join(records), ends, format, columns, "here", Locations({}, {"offset": np.arange(len(ends))}), {})


def exactly(batch, wanted, ignore=None):
    """What the exact path makes of each record."""
    wanted = wanted.in_batch(batch)
    known = None if ignore is None else {slot.name for slot in wanted.slots} | ignore
    decode, rows, events, rejected, first_new = decoder(batch.format), [], [], [], None
    for i in range(len(batch)):
        try:
            values = decode.names(batch, i)
            event = event_of(values, wanted)
            new = {} if known is None else {name: value for name, value in values.items() if name not in known}
            own = FieldRoles(wanted.first_kinds(sorted(new), new), Schema((), notations=wanted.schema.notations))
            row = event_of(new, own)
            missing = [row.texts[j][0] is None if j in row.texts else math.isnan(x) for j, x in enumerate(row.X[0])]
            new = {name: new[name] for name, is_missing in zip(own.fields, missing, strict=True) if not is_missing}
        except InvalidEvent as error:
            rejected.append((i, error.reason, str(wanted.explained(error))))
        else:
            # What is not learned lets no model grow.
            idle = np.isnan(event.Y).any() or event.weights[0] == 0.0 or event.labels == [None]
            if new and not idle:
                first_new = (i, new)
                break
            rows.append(i)
            events.append(event)
    P, Q = len(wanted.fields), len(wanted.targets)
    return DecodedBatch(
        np.array(rows, np.int64),
        np.array([event.X for event in events]).reshape(len(events), P),
        {
            j: [event.texts[j][0] for event in events]
            for j, kind in enumerate(wanted.kinds.values())
            if kind == "category"
        },
        np.array([event.Y for event in events]).reshape(len(events), Q),
        [event.labels[0] for event in events] if wanted.classify else None,
        np.array([event.weights[0] for event in events]),
        rejected,
        first_new,
    )


def assert_same(one, other):
    assert one.rejected == other.rejected
    assert one.rows.tolist() == other.rows.tolist()
    assert (one.texts, one.labels, repr(one.first_new)) == (other.texts, other.labels, repr(other.first_new))
    for a, b in ((one.X, other.X), (one.Y, other.Y), (one.weights, other.weights)):
        assert a.flags.c_contiguous
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


def assert_paths_agree(batch, wanted, ignore=None):
    names = NewNames() if ignore is None else NewNames(ignore, late=True)
    assert_same(decoder(batch.format).decode(batch, wanted, names), exactly(batch, wanted, ignore))


# --- every kind of value --------------------------------------------------------------------------------------------


def every_kind(label, notation):
    kinds = {"categorical": ("c", "late_c"), "timestamps": ("t", "late_t")}
    return roles_of(("a", "c", "t"), ("y", "z"), label=label, weight="w", **kinds, notations=notation)


every_role = st.builds(every_kind, st.sampled_from([None, "l"]), notations)
KINDS_HEADER = ("a", "c", "t", "y", "z", "l", "w", "late", "late_c", "late_t", "ignored")
IGNORED = frozenset({"ignored", "b", '"'})
words = st.sampled_from(["", "a", "b", " a", "é", "1", "1.0", "01", "true", "True", "null", "x" * 256, "é" * 257, "\0"])


@st.composite
def kinds_rows(draw, numbers, words, times, none, odd):
    """Rows under `KINDS_HEADER`, most of them sound."""
    usual = {"c": words, "l": words, "late_c": words, "t": times, "late_t": times}
    n = draw(st.integers(1, 6))
    rows = []
    late = draw(st.integers(0, 2 * n))
    for i in range(n):
        row = {}
        for name in KINDS_HEADER:
            strategy = usual.get(name, numbers)
            if not draw(st.integers(0, 11)):
                strategy = draw(st.sampled_from([numbers, words, times, none, odd]))
            row[name] = draw(none if name.startswith("late") and i < late else strategy)
        rows.append(row)
    return rows


plain_numbers = st.sampled_from(["1", "0.5", "-2", "3e2", "true", "FALSE"])


@settings(max_examples=50)
@given(
    kinds_rows(plain_numbers | finite.map(repr), words | markers, times, st.just("") | markers, cells | commas | odd),
    st.booleans(),
    every_role,
    st.sampled_from(DIALECTS),
    st.data(),
)
def test_csv_of_every_kind_and_dialect_decodes_like_its_records(rows, late, wanted, dialect, data):
    delimiter, decimal = dialect
    mark = data.draw(st.sampled_from([".", decimal]))
    lines = [delimiter.join(row[name].replace(".", mark) for name in KINDS_HEADER) for row in rows]
    records = [data.draw(mutated(st.just(f"{line}\n".encode()))) for line in lines]
    for part in (records, records[:1]):
        batch = replace(batch_of(part, "csv", KINDS_HEADER), delimiter=delimiter, decimal=decimal)
        assert_paths_agree(batch, wanted, IGNORED if late else None)


any_json = json_values | words | times | st.sampled_from([-0.0, 1e300, 2**70, 10**300, "\ud800"])
json_words = words | st.integers() | finite | st.booleans()


@settings(max_examples=25)
@given(
    kinds_rows(finite | st.integers(), json_words | markers, times | finite, st.none() | markers, any_json | odd),
    st.booleans(),
    every_role,
    st.data(),
)
def test_jsonl_of_every_kind_decodes_like_its_records(rows, late, wanted, data):
    kept = [{name: row[name] for name in row if data.draw(st.integers(0, 5))} for row in rows]
    records = [(json.dumps(row) + "\n").encode() for row in kept] + data.draw(st.lists(json_records, max_size=3))
    for part in (records, records[-1:]):
        assert_paths_agree(batch_of(part, "jsonl"), wanted, IGNORED if late else None)


integers = st.integers(-(2**63), 2**63 - 1)
COLUMNS = {
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.int64(): integers,
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 10): st.decimals(-(10**27), 10**27, places=10),
    pa.string(): words | times | odd,
    pa.string_view(): words,
    pa.large_string(): times,
    pa.dictionary(pa.int8(), pa.string()): words,
    pa.dictionary(pa.int32(), pa.int64()): integers,
    pa.timestamp("ns", "Europe/Zurich"): integers,
    pa.timestamp("us"): integers,
    pa.timestamp("ms"): integers,
    pa.timestamp("s"): integers,
    pa.date32(): st.integers(-(10**6), 10**6),
    pa.date64(): st.integers(-1000, 1000).map(lambda days: days * 86_400_000),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9)),
    pa.duration("ns"): integers,
    pa.binary(): st.binary(),
}


@settings(max_examples=25)
@given(st.data(), st.integers(0, 6), st.booleans(), every_role)
def test_arrow_tables_of_every_kind_decode_like_their_rows(data, n, late, wanted):
    """Columns keep their type, so what varies is which type comes where another one belongs."""
    arrays = []
    for name in KINDS_HEADER:
        kind = data.draw(st.sampled_from([pa.float64(), *COLUMNS] if name in {"y", "z", "w", "a"} else [*COLUMNS]))
        values = data.draw(st.lists(st.none() | COLUMNS[kind], min_size=n, max_size=n))
        if name.startswith("late") and data.draw(st.booleans()):
            values = [None] * n
        if pa.types.is_dictionary(kind):
            arrays.append(pa.array(values, kind.value_type).dictionary_encode().cast(kind))
        else:
            arrays.append(pa.array(values, kind))
    assert_paths_agree(arrow_batch(pa.record_batch(arrays, KINDS_HEADER)), wanted, IGNORED if late else None)


def arrow_batch(table):
    locations = Locations({}, {"row": np.arange(table.num_rows)})
    return Batch(b"", np.empty(0, np.int64), "arrow", None, "here", locations, {}, table=table)
