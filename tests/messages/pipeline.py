"""Of the pipeline: why a record is rejected, and which streams are errors."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa

from streammoe.estimators import MoEClassifier, MoERegressor
from streammoe.notation import Notations
from streammoe.options import Lags
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import Batch
from streammoe.settings import Labels
from tests.list_source import ListSource

ONE_TARGET = Schema(("y",))
TEN = Labels(key="id", max_pending=10)


def process(*records, columns=None, schema=ONE_TARGET, join=None, delimiter=",", **model):
    """Return the details of the letters that these records become, each in a batch of its own."""
    form = "jsonl" if columns is None else "csv"
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    source = ListSource(lines, format=form, columns=columns, sizes=[1])
    source.seek(None)
    model = {"warmup": 0, **model}
    if model.pop("classifier", False):
        pipeline = Pipeline(MoEClassifier(1, **model), schema, ClassificationScores())
    else:
        pipeline = Pipeline(MoERegressor(1, **model), schema, PrequentialScores())
    letters = []
    while not source.finished:
        batch = replace(source.poll(0.0), delimiter=delimiter)
        letters += pipeline.process(batch if join is None else join.join(batch)).letters
    return "\n".join(letter.detail for letter in letters)


def case(*records, **options):
    """Return a case: these records are processed."""
    return lambda _: process(*records, **options)


def table(columns):
    """Return a case: these columns are processed, as those of a Parquet file."""

    def process_table(_):
        batch = Batch(
            b"",
            np.empty(0, np.int64),
            "arrow",
            tuple(columns),
            "a.parquet",
            [{"row": i} for i in range(len(next(iter(columns.values()))))],
            {},
            table=pa.RecordBatch.from_pydict(columns),
        )
        processed = Pipeline(MoERegressor(1, warmup=0), ONE_TARGET, PrequentialScores()).process(batch)
        return "\n".join(letter.detail for letter in processed.letters)

    return process_table


def points(_):
    """Process numbers whose points may separate thousands."""
    batch = ListSource([b"836,1", b"2.129,2"], format="csv", columns=("a", "y")).poll(0.0)
    Pipeline(MoERegressor(1, warmup=0), ONE_TARGET, PrequentialScores()).process(batch)


def joined(*records, limits=TEN, **options):
    """Return a case: these records are joined by their key."""
    schema = Schema(("y",), ignore=("id",))
    return case(*records, schema=schema, join=LabelJoin(limits, schema), **options)


GOOD = {"a": 1.0, "y": 2.0}
LAGGED = Schema(("y",), lagged=frozenset({"temp"}))
KINDS = Schema(("y",), categorical=frozenset("c"), timestamps=frozenset("t"), weight="w")
DAYS = Schema(("y",), timestamps=frozenset({"the day"}))
FORMATTED = KINDS._replace(notations=Notations(times={"t": "%d/%m/%Y"}))

CASES = {
    "a record that is no JSON": case(b"what is this?"),
    "a record that is the first line of an object": case(b"{"),
    "a record that is the first line of an array": case(b"["),
    "a record that is no object": case(b"[1]"),
    "a record that is nested too deep": case(b'{"c":' + b"[" * 900 + b"]" * 900 + b"}"),
    "a record of too few cells": case(b"1", columns=("a", "y")),
    "a record with unpaired quotes": case(b'1,"2', columns=("a", "y")),
    "a record that is not UTF-8": case(b"\xff,2", columns=("a", "y")),
    "text that is no number": case(GOOD, {"a": "x", "y": 1}),
    "an object in place of a number": case({"a": {"k": 1}, "y": 1}),
    "text that is no number, of a column with lags": case(
        {"temp": 1.0, "y": 1.0}, {"temp": "x", "y": 1}, schema=LAGGED, lags=Lags(1, ("temp",))
    ),
    "text that is no number, of a column with lags, first": case(
        {"temp": "x", "y": 1.0}, schema=LAGGED, lags=Lags(1, ("temp",))
    ),
    "lags of a column that there is not": case(b"1,2", columns=("tmep", "y"), schema=LAGGED, lags=Lags(1, ("temp",))),
    "a number in quotes, of a column with lags": case({"temp": "12", "y": 1.0}, schema=LAGGED, lags=Lags(1, ("temp",))),
    "a target that is text": case(GOOD, {"a": 1, "y": "up"}),
    "a target that is text, first": case({"a": 1, "y": "up"}),
    "a target that is a number in quotes": case(GOOD, {"a": 1, "y": "2"}),
    "a weight that is a number in quotes": case({"a": 1, "y": 1, "w": "2"}, schema=KINDS),
    "an index of a data frame": table({"a": [1.0], "__index_level_0__": [7], "y": [1.0]}),
    "a column of a type without readable values": table({"a": [[1]], "y": [1.0]}),
    "another one": table({"b": [b"x"], "y": [1.0]}),
    "a number that is not finite": case(b'{"a": NaN, "y": 1}'),
    "a number that is too large": case(b'{"a": 1e400, "y": 1}'),
    "a number out of range": case(GOOD, {"a": 1, "y": -1e60}),
    "text that is no time": case({"t": "yesterday", "y": 1}, schema=KINDS, timestamps=("t",)),
    "a time out of range": case({"t": 1.8e12, "y": 1}, schema=KINDS, timestamps=("t",)),
    "a category that is too long": case({"c": "r" * 257, "y": 1}, schema=KINDS, categorical=("c",)),
    "a weight below 0": case({"a": 1, "y": 1, "w": -1}, schema=KINDS),
    "one of two targets": case({"a": 1, "y": 1}, schema=Schema(("y", "z"))),
    "an unknown class": case({"a": 1, "y": "v"}, classifier=True, classes=("x", "y")),
    "one class too many": case(
        {"a": 1, "y": "x"}, {"a": 1, "y": "z"}, {"a": 1, "y": "v"}, classifier=True, max_classes=2
    ),
    "nothing but the target": case({"y": 1}),
    "too many fields": case({"a": 1, "b": 1, "c": 1, "y": 1}, schema=Schema(("y",), max_columns=2)),
    "too many columns": case(b"1,1,1,1", columns=("a", "b", "c", "y"), schema=Schema(("y",), max_columns=2)),
    "a header without the target": case(b"1,2", columns=("a", "b")),
    "no room for a late column": case(
        GOOD, {**GOOD, "b": 1}, {**GOOD, "c": 1}, schema=Schema(("y",), late_columns=True, max_columns=2)
    ),
    "columns of all kinds": case({"a": 1.0, "b": True, "c": "red", "t": "2026-01-31", "late": None, "y": 2.0}),
    "a column that is late and wrong": case({"a": 1.0, "b": None, "y": 2.0}, {"a": 1.0, "b": "1,5", "y": 2.0}),
    "a column decided by a broken record": case({"a": "broken", "y": 1.0}, {"a": 2.5, "y": 1.0}),
    "a late column": case(GOOD, {**GOOD, "b": 1}, schema=Schema(("y",), late_columns=True)),
    "a column that is ignored": case(GOOD, {**GOOD, "b": 1}),
    "columns that are ignored, the second record has them": case(GOOD, GOOD, {**GOOD, "b": 1, "c": 1}),
    "names that no column has": case(
        b"1,red,2",
        columns=("size", "color", "y"),
        schema=Schema(("y",), ignore=("ID",), weight="w", categorical=frozenset({"colour"})),
    ),
    "features that no column has": case(b"1,2", columns=("size", "y"), schema=Schema(("y",), ("Size", "size"))),
    "a number in quotes": case(GOOD, {"a": "12.5", "y": 1}),
    "a number with separators of thousands": case(b'"1,234,567",2', columns=("a", "y")),
    "a number with a unit": case({"a": "21 °C", "y": 1}),
    "a number with currency and thousands": case(b'"$1,012.33",2', columns=("a", "y")),
    "a negative number of an accountant": case(b"(5),2", columns=("a", "y")),
    "a negative number of SAP": case(b"280.69-,2", columns=("a", "y")),
    "a target with percent": case({"a": 1, "y": "5 %"}),
    "a number with blanks and a decimal comma": case("1\u00a0234,5;2".encode(), columns=("a", "y"), delimiter=";"),
    "a time in another format": case({"t": "01/12/2017", "y": 1}, schema=KINDS, timestamps=("t",)),
    "a time that is not in its format": case({"t": "2017-12-01", "y": 1}, schema=FORMATTED, timestamps=("t",)),
    "numbers with leading zeros": case(b"02139,2", columns=("the zip", "y")),
    "a column of dates in another format": case({"the day": "01/12/2017", "y": 1}),
    "a column of times in milliseconds": case({"t": 1609459200000, "y": 1}),
    "a column of times that are dates": case({"the day": 20230320, "y": 1}, schema=DAYS, timestamps=("the day",)),
    "a column of times that are days": case({"the day": 45005, "y": 1}, schema=DAYS, timestamps=("the day",)),
    "points that may separate thousands": points,
    "a number with one comma": case(b'"1,234",2', columns=("a", "y")),
    "a label without a key": joined({"y": 1}),
    "labels in csv": joined(b"1,2", columns=("id", "a")),
    "labels without times": joined({"id": 1, "a": 2}, limits=Labels(key="id", max_pending=10, expire_seconds=1.0)),
}
