"""Every example in the tables of docs/bad-input.md, fed to the way that it speaks of."""

import gzip
import json
import os
import re
import threading
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe import assembly, configuration, errors, settings
from streammoe.errors import InvalidEvent, StreammoeError
from streammoe.estimators import MoEClassifier, MoERegressor
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import Batch
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.kafka_records import record, values_of

ROOT = Path(__file__).parents[2]
COLUMNS = ("a", "c", "t", "w", "y")
SOUND = [{"a": 0.5, "c": "green", "t": 1.0, "y": 1}, {"a": 1, "c": "blue", "t": 2.0, "y": 2}]
ABSENT = "absent, an empty cell"


# --- the document ---------------------------------------------------------------------------------------------------


def section(heading):
    text = (ROOT / "docs/bad-input.md").read_text(encoding="utf-8")
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def tables(heading):
    """The tables of a section, each a list of rows, each a list of cells; the first row names the columns."""
    found = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    split = [[[cell.strip(" ") for cell in line.strip("|").split("|")] for line in each.splitlines()] for each in found]
    return [[rows[0], *rows[2:]] for rows in split]


def code(cell):
    """What stands in backticks; ``None`` for plain words."""
    return cell[1:-1] if cell.startswith("`") else None


def as_bytes(example):
    repeated = re.sub(
        r"\(([^()]*)\)\{(\d+)\}|(\S)\{(\d+)\}", lambda m: (m[1] or m[3]) * int(m[2] or m[4]), example or ""
    )
    return re.sub(
        rb"\\(x[0-9a-f]{2}|[nrt0])",
        lambda m: {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0"}.get(m[1]) or bytes([int(m[1][1:], 16)]),
        repeated.encode(),
    )


def test_the_notation_of_examples():
    assert as_bytes(r"a\n\0\xff9{3}(ab){2}\ud800[{2}") == b"a\n\0\xff999abab\\ud800[["


# --- pipelines ------------------------------------------------------------------------------------------------------


def pipeline(kind="regressor", **schema):
    columns = {"categorical": ("c",), "timestamps": ("t",)}
    meanings = {"weight": "w", **{name: frozenset(names) for name, names in columns.items()}, **schema}
    meanings.setdefault("features", ("a", "c", "t"))
    arguments = {"n_experts": 2, "warmup": 0, **columns}
    if kind == "classifier":
        return Pipeline(MoEClassifier(**arguments), Schema(("y",), **meanings), ClassificationScores())
    return Pipeline(MoERegressor(**arguments), Schema(("y",), **meanings), PrequentialScores())


class Became(NamedTuple):
    """What a pipeline made of a stream."""

    outcomes: dict[str, int]
    reasons: dict[str, int]
    digest: str


def run(batches, line):
    outcomes, reasons = Counter(), Counter()
    for batch in batches:
        processed = line.process(batch)
        assert processed.outcomes.total() == len(batch) + batch.skipped
        outcomes.update(processed.outcomes)
        reasons.update(processed.reasons)
        assert {letter.reason for letter in processed.letters} == set(processed.reasons)
    assert outcomes["rejected"] == reasons.total()
    assert set(reasons) <= set(errors.REASONS)
    assert line.model.is_finite()
    return Became(dict(+outcomes), dict(reasons), line.model.state_digest())


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


def from_stdin(content, format):
    inlet, outlet = os.pipe()

    def write():
        with os.fdopen(outlet, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # At once: a generator that is left may be closed, and join, wherever memory is next cleared up.
        return list(read(StdinSource(StdinSource.Settings(kind="stdin", format=format), descriptor=inlet)))
    finally:
        os.close(inlet)
        writer.join()


def from_kafka(values, format):
    """What `KafkaSource` gives for records with these values."""
    decoded = values_of(format=format, **({"columns": list(COLUMNS)} if format == "csv" else {}))
    found = decoded.block([record(value) for value in values])
    assert not found.refused
    yield Batch(found.block, found.ends, format, decoded.columns, "topic", lambda i: {"offset": i}, {})


def from_parquet(path, events):
    """One file for each event: a column has the type of its value there."""
    for i, event in enumerate(events):
        file = path / f"{i}.parquet"
        large = {name: pa.uint64() for name, value in event.items() if type(value) is int and value >= 2**63}
        columns = {name: pa.array([value], large.get(name)) for name, value in event.items()}
        parquet.write_table(pa.table(columns), file)
        yield from read(FileSource(FileSource.Settings(kind="file", path=str(file))))


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
    events = [SOUND[0], *map(json.loads, more), SOUND[1]]
    return run(from_stdin(jsonl_of(*events), "jsonl"), pipeline(kind)).digest


# --- reasons --------------------------------------------------------------------------------------------------------


def test_the_list_of_reasons_is_complete():
    (table,) = tables("What is refused, and how it is called")
    assert tuple(code(row[0]) for row in table[1:]) == errors.REASONS
    metrics = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    row = next(line for line in metrics.splitlines() if line.startswith("| `streammoe_rejected_total`"))
    assert {reason for reason in errors.REASONS if f"`{reason}`" in row} == set(errors.REASONS) - {"wrong_shape"}


def test_no_other_word_is_used_as_a_reason():
    files = [path for folder in ("streammoe", "connectors") for path in (ROOT / folder).rglob("*.py")]
    words = {word for path in files for word in re.findall(r'reason(?: =|=)\s*"(\w+)"', path.read_text("utf-8"))}
    assert words <= set(errors.REASONS)
    assert len(words) > 5


# --- values ---------------------------------------------------------------------------------------------------------

FIELDS = {"number": "a", "category": "c", "time": "t", "weight": "w", "class": "y"}


def values():
    """The rows of the tables, by kind of value and way."""
    found = {}
    for table in tables("Values"):
        what, *ways = table[0]
        for example, *cells in table[1:]:
            for way, cell in zip(ways, cells, strict=True):
                if cell != "–":
                    found.setdefault((FIELDS[what], way), []).append((example, cell))
    return found


def event_with(field, value, kind):
    event = {"a": 1.0, "y": "red" if kind == "classifier" else 2.0}
    return {**event, field: value}


def fed(field, example, way, folder):
    """What becomes of an event with this value between two sound ones."""
    kind = "classifier" if field == "y" else "regressor"
    line = pipeline(kind)
    raw = b"" if example == ABSENT else as_bytes(code(example))
    event = event_with(field, ..., kind)
    if example == ABSENT:
        del event[field]
    match way:
        case "CSV":
            middle = csv_line(event).replace(b"Ellipsis", raw)
            sound = [csv_line(each) for each in SOUND]
            return run(from_file(folder / "a.csv", csv_of(sound[0], middle, sound[1])), line)
        case "JSON Lines":
            middle = json.dumps(event, default=lambda _: "...").encode().replace(b'"..."', raw) + b"\n"
            content = jsonl_of(SOUND[0]) + middle + jsonl_of(SOUND[1])
            return run(from_file(folder / "a.jsonl", content), line)
        case "Parquet":
            if example != ABSENT:
                event[field] = json.loads(raw)
            event.setdefault("y", None)  # a file must have the target's column
            return run(from_parquet(folder, [SOUND[0], event, SOUND[1]]), line)
    raise AssertionError(way)


def in_river(field, example, cell):
    model = pipeline().model
    plain_model = pipeline().model
    for each in (model, plain_model):
        learn(each, SOUND[0])
    event = event_with(field, None, "regressor")
    if example == ABSENT:
        del event[field]
    else:
        event[field] = json.loads(as_bytes(code(example)), parse_int=any_number_of_digits)
    before = model.state_digest()
    if code(cell) in errors.REASONS:
        with pytest.raises(InvalidEvent) as refused:
            learn(model, event)
        assert refused.value.reason == code(cell)
        assert model.state_digest() == before
        return
    learn(model, event)
    if cell == "predicted only":
        assert model.state_digest() == before
        return
    learn(plain_model, meant(field, event, cell))
    assert model.state_digest() == plain_model.state_digest() != before


def any_number_of_digits(text):
    """Python reads no text of more than 4,300."""
    return int(text[:4000]) * 10 ** max(len(text) - 4000, 0)


def learn(model, event):
    x = {name: value for name, value in event.items() if name not in {"y", "w"}}
    model.learn_one(x, event["y"], w=event.get("w", 1.0))


def meant(field, event, cell):
    """The event as the table says that it is learned."""
    if cell == "missing":
        return {name: value for name, value in event.items() if name != field}
    shown = code(cell)
    if shown is None:
        return {**event, field: float(cell)}
    return {**event, field: as_bytes(shown.replace('""', "")).decode()}


@pytest.mark.parametrize(("field", "way"), values())
def test_values_are_what_the_tables_say(field, way, tmp_path):
    kind = "classifier" if field == "y" else "regressor"
    for i, (example, cell) in enumerate(values()[field, way]):
        if way == "River":
            in_river(field, example, cell)
            continue
        folder = tmp_path / str(i)
        folder.mkdir()
        found = fed(field, example, way, folder)
        if code(cell) in errors.REASONS:
            expected = ({"learned": 2, "rejected": 1}, {code(cell): 1}, plain(kind=kind))
        elif cell == "predicted only":
            expected = ({"learned": 2, "predicted_only": 1}, {}, plain(kind=kind))
        else:
            event = json.dumps(meant(field, event_with(field, None, kind), cell))
            expected = ({"learned": 3}, {}, plain(event, kind=kind))
        assert found == expected, (example, cell)


# --- records --------------------------------------------------------------------------------------------------------


def records():
    """The rows of the table, by format and way."""
    (table,) = tables("Records")
    assert table[0] == ["record", "example", "format", "counted as", "reason"]
    own = {(row[1], row[2].removesuffix(" in Kafka")) for row in table[1:] if row[2].endswith(" in Kafka")}
    found = {}
    for _, example, where, outcome, reason in table[1:]:
        if where.endswith(" in Kafka"):
            ways = ["Kafka"]
        else:
            ways = ["file", "stdin", *(["Kafka"] if (example, where) not in own else [])]
        for way in ways:
            row = (as_bytes(code(example)), outcome, code(reason))
            found.setdefault(("csv" if where.startswith("CSV") else "jsonl", way), []).append(row)
    return found


@pytest.mark.parametrize(("format", "way"), records())
def test_records_become_what_the_table_says(format, way, tmp_path):
    first, last = [csv_line(each) if format == "csv" else jsonl_of(each)[:-1] for each in SOUND]
    for middle, outcome, reason in records()[format, way]:
        lines = [first, middle, last]
        content = csv_of(*lines) if format == "csv" else b"\n".join(lines) + b"\n"
        if way == "Kafka":
            batches = from_kafka(lines, format)
        else:
            batches = from_stdin(content, format) if way == "stdin" else from_file(tmp_path / f"a.{format}", content)
        found = run(batches, pipeline())
        counted, _, as_event = outcome.partition(" as ")
        assert found.outcomes == dict(Counter(["learned", "learned", counted])), middle
        assert found.reasons == ({reason: 1} if reason else {}), middle
        if counted == "learned":
            event = code(as_event) or middle.decode() if as_event else None
            assert event is None or found.digest == plain(event), middle
        else:
            assert found.digest == plain(), middle


# --- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["file", "gzip", "stdin"])
def test_streams_become_what_the_table_says(way, tmp_path):
    (table,) = tables("Streams")
    for _, example, name, outcome in table[1:]:
        content, form = as_bytes(code(example)), {"CSV": "csv", "JSON Lines": "jsonl"}[name]
        try:
            match way:
                case "file":
                    batches = from_file(tmp_path / f"a.{form}", content)
                case "gzip":
                    batches = from_file(tmp_path / f"a.{form}.gz", gzip.compress(content))
                case _:
                    batches = from_stdin(content, form)
            found = run(batches, pipeline()).outcomes
        except StreammoeError as error:
            found = f"exit {error.exit_code}"
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (learned|rejected|skipped|predicted_only)", outcome)}
        assert found == (outcome if outcome.startswith("exit ") else counts), example


# --- limits ---------------------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_the_settings():
    (table,) = tables("Limits")
    sources = FileSource.Settings(kind="file", path="x.csv")
    found = {
        code(setting): float(re.match(r"[\d,.]+", limit)[0].replace(",", "")) for _, limit, setting, _ in table[1:]
    }
    del found[None]
    assert found == {
        "source.max_record_bytes": sources.max_record_bytes,
        "schema.max_columns": settings.Schema(target="y").max_columns,
        "model.max_classes": settings.Model().max_classes,
        "model.max_levels": settings.Model().max_levels,
        "dead_letters.max_ratio": settings.DeadLetterFile().max_ratio,
        "labels.max_pending": settings.Labels().max_pending,
    }


# --- the daemon -----------------------------------------------------------------------------------------------------


class Asked:
    requested = False


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_the_daemon_counts_and_keeps_each_of_them_by_reason(format, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    (table,) = tables("Records")
    name = {"csv": "CSV", "jsonl": "JSON Lines"}[format]
    broken = [as_bytes(code(row[1])) for row in table[1:] if row[2] == name]
    sound = [csv_line(each) if format == "csv" else jsonl_of(each)[:-1] for each in SOUND]
    lines = [line for record in broken for line in (sound[0], record)] + [sound[1]]
    content = csv_of(*lines) if format == "csv" else b"\n".join(lines) + b"\n"
    expected = run(from_file(tmp_path / f"a.{format}", content), pipeline())
    assert len(expected.reasons) > 1
    configured = configuration.settings_from(
        {
            "source": {"kind": "file", "path": f"a.{format}"},
            "schema": {
                "target": "y",
                "weight": "w",
                "features": ["a", "c", "t"],
                "categorical": ["c"],
                "timestamps": ["t"],
            },
            "metrics": {"port": 0},
            "dead_letters": {"max_ratio": 1.0},
        },
        "here",
    )
    with assembly.open_daemon(configured) as running:
        running.daemon.run(Asked())
        with urlopen(running.metrics_url) as answer:
            text = answer.read().decode()
    counted = dict(re.findall(r'^streammoe_rejected_total{reason="(\w+)"} ([\d.]+)$', text, re.MULTILINE))
    assert {reason: float(count) for reason, count in counted.items()} == expected.reasons
    outcomes = dict(re.findall(r'^streammoe_events_total{outcome="(\w+)"} ([\d.]+)$', text, re.MULTILINE))
    assert {outcome: float(n) for outcome, n in outcomes.items() if float(n)} == expected.outcomes
    letters = [json.loads(line) for line in Path("state/dead-letters.jsonl").read_bytes().splitlines()]
    assert Counter(letter["reason"] for letter in letters) == expected.reasons
