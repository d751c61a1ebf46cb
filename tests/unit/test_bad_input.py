"""Every example in the tables of docs/bad-input.md, fed to the way that it speaks of."""

import gzip
import json
import os
import re
import threading
from collections import Counter
from functools import cache
from itertools import product
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
    words = set()
    for folder in ("streammoe", "connectors"):
        for path in (ROOT / folder).rglob("*.py"):
            words.update(re.findall(r'reason(?: =|=)\s*"(\w+)"', path.read_text(encoding="utf-8")))
    assert words <= set(errors.REASONS)
    assert len(words) > 5


# --- values ---------------------------------------------------------------------------------------------------------

FIELDS = {"number": "a", "category": "c", "time": "t", "weight": "w", "class": "y"}


def values():
    for table in tables("Values"):
        what, *ways = table[0]
        for example, *cells in table[1:]:
            for way, cell in zip(ways, cells, strict=True):
                if cell != "–":
                    yield pytest.param(FIELDS[what], example, way, cell, id=f"{what}: {example} in {way}")


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


@pytest.mark.sampled(one_in=1)
@pytest.mark.parametrize(("field", "example", "way", "cell"), list(values()))
def test_values_are_what_the_tables_say(field, example, way, cell, tmp_path):
    if way == "River":
        in_river(field, example, cell)
        return
    kind = "classifier" if field == "y" else "regressor"
    found = fed(field, example, way, tmp_path)
    if code(cell) in errors.REASONS:
        assert (found.outcomes, found.reasons) == ({"learned": 2, "rejected": 1}, {code(cell): 1})
        assert found.digest == plain(kind=kind)
    elif cell == "predicted only":
        assert found.outcomes == {"learned": 2, "predicted_only": 1}
        assert found.digest == plain(kind=kind)
    else:
        assert found.outcomes == {"learned": 3}
        assert found.digest == plain(json.dumps(meant(field, event_with(field, None, kind), cell)), kind=kind)


# --- records --------------------------------------------------------------------------------------------------------


def records():
    (table,) = tables("Records")
    assert table[0] == ["record", "example", "format", "counted as", "reason"]
    own = {(row[1], row[2].removesuffix(" in Kafka")) for row in table[1:] if row[2].endswith(" in Kafka")}
    for what, example, where, outcome, reason in table[1:]:
        if where.endswith(" in Kafka"):
            ways = ["Kafka"]
        else:
            ways = ["file", "stdin", *(["Kafka"] if (example, where) not in own else [])]
        form = "csv" if where.startswith("CSV") else "jsonl"
        for way in ways:
            yield pytest.param(form, way, example, outcome, code(reason), id=f"{what} in {form} from {way}")


@pytest.mark.sampled(one_in=1)
@pytest.mark.parametrize(("format", "way", "example", "outcome", "reason"), list(records()))
def test_records_become_what_the_table_says(format, way, example, outcome, reason, tmp_path):
    middle = as_bytes(code(example))
    first, last = [csv_line(each) for each in SOUND] if format == "csv" else [jsonl_of(e)[:-1] for e in SOUND]
    if way == "Kafka":
        batches = from_kafka([first, middle, last], format)
    else:
        lines = [first, middle, last]
        content = csv_of(*lines) if format == "csv" else b"\n".join(lines) + b"\n"
        batches = from_stdin(content, format) if way == "stdin" else from_file(tmp_path / f"a.{format}", content)
    found = run(batches, pipeline())
    counted, _, as_event = outcome.partition(" as ")
    assert found.outcomes == dict(Counter(["learned", "learned", counted]))
    assert found.reasons == ({reason: 1} if reason else {})
    if counted == "learned":
        event = code(as_event) or middle.decode() if as_event else None
        assert event is None or found.digest == plain(event)
    else:
        assert found.digest == plain()


# --- streams --------------------------------------------------------------------------------------------------------


def streams():
    (table,) = tables("Streams")
    for (what, example, name, outcome), way in product(table[1:], ("file", "gzip", "stdin")):
        form = {"CSV": "csv", "JSON Lines": "jsonl"}[name]
        yield pytest.param(form, way, as_bytes(code(example)), outcome, id=f"{what} in {form} from {way}")


@pytest.mark.sampled(one_in=1)
@pytest.mark.parametrize(("format", "way", "content", "outcome"), list(streams()))
def test_streams_become_what_the_table_says(format, way, content, outcome, tmp_path):
    def became():
        match way:
            case "file":
                batches = from_file(tmp_path / f"a.{format}", content)
            case "gzip":
                batches = from_file(tmp_path / f"a.{format}.gz", gzip.compress(content))
            case _:
                batches = from_stdin(content, format)
        return run(batches, pipeline())

    if outcome.startswith("exit "):
        with pytest.raises(StreammoeError) as stopped:
            became()
        assert f"exit {stopped.value.exit_code}" == outcome
        return
    counts = {} if outcome == "nothing" else {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", outcome)}
    assert became().outcomes == counts


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
