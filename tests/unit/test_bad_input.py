"""Every example in the tables of bad_input.md, fed to the way that it speaks of."""

import io
import json
import re
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path

import fastavro
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe import errors
from streammoe.errors import InvalidEvent, StreammoeError
from streammoe.estimators import MoEClassifier, MoERegressor
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe_connectors.files.source import FileSource
from tests.unit.connectors.kafka_records import batch_of, record, values_of

ROOT = Path(__file__).parents[2]
COLUMNS = ("a", "c", "t", "w", "y")
SOUND = [{"a": 0.5, "c": "green", "t": 1.0, "y": 1}, {"a": 1, "c": "blue", "t": 2.0, "y": 2}]
ABSENT = "absent, an empty cell"


# --- the document ---------------------------------------------------------------------------------------------------


def tables(heading, document="tests/unit/bad_input.md"):
    """The tables of a section, each a list of rows, each a list of cells; the first row names the columns."""
    text = (ROOT / document).read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^\|.*\n)+", f"{section}\n", re.MULTILINE)
    split = [[[cell.strip(" ") for cell in line.strip("|").split("|")] for line in each.splitlines()] for each in found]
    return [[rows[0], *rows[2:]] for rows in split]


def code(cell):
    """Return the text in backticks; ``None`` for plain words."""
    return cell[1:-1] if cell.startswith("`") else None


def as_bytes(example):
    """Return an example with its bytes and repetitions."""
    repetition, byte = r"\(([^()]*)\)\{(\d+)\}|(\S)\{(\d+)\}", rb"\\(x[0-9a-f]{2}|[nrt0])"
    named = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0"}
    repeated = re.sub(repetition, lambda m: (m[1] or m[3]) * int(m[2] or m[4]), example or "")
    return re.sub(byte, lambda m: named.get(m[1]) or bytes([int(m[1][1:], 16)]), repeated.encode())


# --- pipelines ------------------------------------------------------------------------------------------------------


def pipeline(kind="regressor"):
    columns = {"categorical": ("c",), "timestamps": ("t",)}
    schema = Schema(("y",), ("a", "c", "t"), (), "w", categorical=frozenset("c"), timestamps=frozenset("t"))
    if kind == "classifier":
        return Pipeline(MoEClassifier(2, warmup=0, **columns), schema, ClassificationScores())
    return Pipeline(MoERegressor(2, warmup=0, **columns), schema, PrequentialScores())


def run(batches, kind="regressor"):
    """Return the outcomes, the reasons and the model's digest."""
    line, outcomes, reasons = pipeline(kind), Counter(), Counter()
    for batch in batches:
        processed = line.process(batch)
        assert processed.outcomes.total() == len(batch) + batch.skipped
        outcomes.update(processed.outcomes)
        reasons.update(letter.reason for letter in processed.letters)
    assert outcomes["rejected"] == reasons.total()
    line.model.arrays()  # raises if a number in it is not finite
    return dict(+outcomes), dict(reasons), line.model.state_digest()


def read(source):
    source.seek(None)
    try:
        while not source.finished:
            batch = source.poll(1.0)
            if batch is not None:
                yield batch
    finally:
        source.close()


def from_file(path, content):
    path.write_bytes(content)
    return read(FileSource(FileSource.Settings(kind="file", path=str(path))))


def from_kafka(values, format, **settings):
    """What `KafkaSource` gives for records with these values."""
    decoded = values_of(format=format, **({"columns": list(COLUMNS)} if format == "csv" else settings))
    yield batch_of(decoded, *(record(value) for value in values))


def from_parquet(path, events):
    """One file for each event: a column has the type of its value there."""
    for i, event in enumerate(events):
        file = path / f"{i}.parquet"
        large = {name: pa.uint64() for name, value in event.items() if type(value) is int and value >= 2**63}
        columns = {name: pa.array([value], large.get(name)) for name, value in event.items()}
        parquet.write_table(pa.table(columns), file)
        yield from read(FileSource(FileSource.Settings(kind="file", path=str(file))))


LARGE = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0}
AVRO = {float: "double", int: "long", bool: "boolean", str: "string", type(None): "null", Decimal: LARGE}


def avro_type(value):
    """The type of Avro for a value."""
    if isinstance(value, list):
        return {"type": "array", "items": avro_type(value[0])}
    return {"type": "map", "values": "long"} if isinstance(value, dict) else AVRO[type(value)]


def from_avro(path, events):
    """One schema for each event, with fields of the types of its values."""
    for i, event in enumerate(events):
        held = {name: Decimal(value) if value == 2**63 else value for name, value in event.items()}
        fields = [{"name": name, "type": avro_type(value)} for name, value in held.items()]
        schema, written = {"type": "record", "name": "R", "fields": fields}, io.BytesIO()
        (path / f"{i}.avsc").write_text(json.dumps(schema))
        fastavro.schemaless_writer(written, fastavro.parse_schema(schema), held)
        yield from from_kafka([written.getvalue()], "avro", schema_file=str(path / f"{i}.avsc"))


def csv_of(*records):
    return b"\n".join([",".join(COLUMNS).encode(), *records]) + b"\n"


def csv_line(event):
    """Of values that need no quotes."""
    return ",".join(str(event.get(name, "")) for name in COLUMNS).encode()


def jsonl_of(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@cache
def plain(*more, kind="regressor"):
    """The digest of a model that has learned the sound events and these, given as JSON."""
    return in_river([SOUND[0], *map(json.loads, more), SOUND[1]], kind)[2]


# --- reasons --------------------------------------------------------------------------------------------------------


def test_the_list_of_reasons_is_complete_in_documents_and_code():
    (table,) = tables("Reasons for rejection", "docs/bad-input.md")
    assert tuple(code(row[0]) for row in table[1:]) == errors.REASONS


# --- values ---------------------------------------------------------------------------------------------------------

FIELDS = {"number": "a", "category": "c", "time": "t", "weight": "w", "class": "y"}


def values():
    """The rows of the tables, by kind of value and way; frames are read like dicts, and Avro like Parquet."""
    found = {}
    for table in tables("Values"):
        what, *ways = table[0]
        also = {"River": ["frame"] * (what in {"number", "category", "time"}), "Parquet": ["Avro"]}
        for example, *cells in table[1:]:
            for way, cell in zip(ways, cells, strict=True):
                for each in (way, *also.get(way, ())):
                    if cell != "–":
                        found.setdefault((FIELDS[what], each), []).append((example, cell))
    return found


def event_with(field, value, kind):
    event = {"a": 1.0, "y": "red" if kind == "classifier" else 2.0}
    return {**event, field: value}


def fed(field, example, way, kind, folder):
    """Return what becomes of an event with this value between two sound ones."""
    raw = b"" if example == ABSENT else as_bytes(code(example))
    event = event_with(field, "...", kind)
    if example == ABSENT:
        del event[field]
    if way == "CSV":
        middle = csv_line(event).replace(b"...", raw)
        return run(from_file(folder / "a.csv", csv_of(csv_line(SOUND[0]), middle, csv_line(SOUND[1]))), kind)
    if way == "JSON Lines":
        middle = jsonl_of(event).replace(b'"..."', raw)
        return run(from_file(folder / "a.jsonl", jsonl_of(SOUND[0]) + middle + jsonl_of(SOUND[1])), kind)
    if example != ABSENT:
        event[field] = json.loads(raw, parse_int=any_number_of_digits)
    if way in {"River", "frame"}:
        return in_river([SOUND[0], event, SOUND[1]], framed=way == "frame")
    event.setdefault("y", None)  # a file must have the target's column
    return run((from_avro if way == "Avro" else from_parquet)(folder, [SOUND[0], event, SOUND[1]]), kind)


def any_number_of_digits(text):
    """Python reads no text of more than 4,300."""
    return int(text[:4000]) * 10 ** max(len(text) - 4000, 0)


def in_river(events, kind="regressor", *, framed=False):
    """Return what `run` does."""
    model, outcomes, reasons = pipeline(kind).model, Counter(), Counter()
    model.set_columns(["a", "c", "t"])
    for event in events:
        n = model.n
        try:
            x, y = {name: event[name] for name in "act" if name in event}, event["y"]
            if framed:
                model.learn_many(pd.DataFrame([x], columns=["a", "c", "t"], dtype=object), pd.Series([y]))
            else:
                model.learn_one(x, str(y) if kind == "classifier" else y, w=event.get("w", 1.0))
            outcomes["learned" if model.n > n else "predicted_only"] += 1
        except InvalidEvent as error:
            outcomes["rejected"] += 1
            reasons[error.reason] += 1
    return dict(outcomes), dict(reasons), model.state_digest()


def meant(field, event, cell):
    """Return the event as the table says that it is learned."""
    if cell == "missing":
        return {name: value for name, value in event.items() if name != field}
    shown = code(cell)
    return {**event, field: float(cell) if shown is None else as_bytes(shown.replace('""', "")).decode()}


@pytest.mark.parametrize(("field", "way"), values())
def test_values_are_what_the_tables_say(field, way, tmp_path):
    kind = "classifier" if field == "y" else "regressor"
    for i, (example, cell) in enumerate(values()[field, way]):
        (tmp_path / str(i)).mkdir()
        found = fed(field, example, way, kind, tmp_path / str(i))
        if code(cell) in errors.REASONS:
            expected = ({"learned": 2, "rejected": 1}, {code(cell): 1}, plain(kind=kind))
        elif cell == "predicted only":
            expected = ({"learned": 2, "predicted_only": 1}, {}, plain(kind=kind))
        else:
            event = meant(field, event_with(field, None, kind), cell)
            expected = ({"learned": 3}, {}, plain(json.dumps(event), kind=kind))
        assert found == expected, (example, cell)


# --- records --------------------------------------------------------------------------------------------------------


def records():
    """The rows of the table, by format and way."""
    (table,) = tables("Records")
    assert table[0] == ["record", "example", "format", "counted as", "reason"]
    own = {(row[1], row[2]) for row in table[1:] if row[2].endswith(" in Kafka")}
    found = {}
    for _, example, where, outcome, reason in table[1:]:
        is_own = (example, where) in own
        has_own = (example, f"{where} in Kafka") in own
        for way in ["Kafka"] if is_own else ["file"] if has_own else ["file", "Kafka"]:
            row = (as_bytes(code(example)), outcome, code(reason))
            found.setdefault(("csv" if where.startswith("CSV") else "jsonl", way), []).append(row)
    return found


@pytest.mark.parametrize(("format", "way"), records())
def test_records_become_what_the_table_says(format, way, tmp_path):
    first, last = [csv_line(each) if format == "csv" else jsonl_of(each)[:-1] for each in SOUND]
    for middle, outcome, reason in records()[format, way]:
        lines = [first, middle, last]
        content = csv_of(*lines) if format == "csv" else b"\n".join(lines) + b"\n"
        batches = from_kafka(lines, format) if way == "Kafka" else from_file(tmp_path / f"a.{format}", content)
        outcomes, reasons, digest = run(batches)
        counted, _, as_event = outcome.partition(" as ")
        assert outcomes == dict(Counter(["learned", "learned", counted])), middle
        assert reasons == ({reason: 1} if reason else {}), middle
        if counted != "learned":
            assert digest == plain(), middle
        elif as_event:
            assert digest == plain(code(as_event)), middle


# --- streams --------------------------------------------------------------------------------------------------------


def test_streams_become_what_the_table_says(tmp_path):
    (table,) = tables("Streams")
    for _, example, name, outcome in table[1:]:
        content, form = as_bytes(code(example)), {"CSV": "csv", "JSON Lines": "jsonl"}[name]
        try:
            found, *_ = run(from_file(tmp_path / f"a.{form}", content))
        except StreammoeError as error:
            found = f"exit {error.exit_code}"
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (learned|rejected|skipped|predicted_only)", outcome)}
        assert found == (outcome if outcome.startswith("exit ") else counts), example
