"""Every source keeps the promises of `streammoe.ports.Source`."""

import gzip
import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe.testing import EndlessSourceContract, SourceContract
from streammoe_connectors.files import follow
from streammoe_connectors.files.source import FileSource
from tests.list_source import ListSource


class TestListSource(SourceContract):
    records = tuple(b'{"i": %d}' % i for i in range(20))
    skipped = 5

    def make_source(self):
        return ListSource(self.records, sizes=[3, 1, 7], pauses={0, 5, 6}, blank={0: 1, 4: 2, 19: 2})


CSV = [b"%d,%d" % (i, -i) for i in range(40)]
JSONL = [b'{"x": %d}' % i for i in range(40)]
QUOTED = [b'%d,"two\nlines, and more"' % i for i in range(12)] + [b'1,"stray'] + CSV
LONG = [b'{"x": "%s"}' % (b"z" * (i * 60)) for i in range(8)]
ROWS = [{"x": i, "y": {"z": [i, None]}, "text": "ä" * i} for i in range(40)]


def as_parquet(rows, row_group_size=17):
    target = io.BytesIO()
    schema = pa.schema({"x": pa.int64(), "y": pa.struct({"z": pa.list_(pa.int64())}), "text": pa.string()})
    parquet.write_table(pa.Table.from_pylist(rows, schema), target, row_group_size=row_group_size)
    return target.getvalue()


def as_json(rows):
    return [json.dumps(row, ensure_ascii=False).encode() for row in rows]


FILES = {
    "a.csv": b"x,y\n\n" + b"\n".join(QUOTED),
    "b.csv": b"x,y\r\n" + b"\r\n".join(CSV) + b"\r\n",
    "c.csv": b"x,y\n",
    "d.csv.gz": gzip.compress(b""),
    "e.jsonl.gz": b"".join(
        gzip.compress(part)
        for part in (b"\xef\xbb", b"\xbf" + b"\n".join(LONG), b"", b"\n" + b"\n".join(JSONL) + b"\n\n\n")
    ),
    "f.parquet": as_parquet(ROWS),
    "g.pq": as_parquet([]),
    "h.jsonl": b"\xef\xbb\xbf\n \n" + b"\n".join(JSONL) + b"\n" + b"\n" * 100,
    "i.jsonl": b"\n" * 10,
    "j.ndjson": b"\n\t\r\n".join(JSONL),
}


class TestFileSource(SourceContract):
    records = QUOTED + CSV + LONG + JSONL + as_json(ROWS) + JSONL + JSONL
    skipped = 1 + 2 + 2 + 100 + 10 + len(JSONL) - 1

    @pytest.fixture(autouse=True)
    def content(self, tmp_path):
        for name, data in FILES.items():
            (tmp_path / name).write_bytes(data)
        self.path = tmp_path / "*.*"

    def make_source(self):
        # Smaller blocks than the settings allow cut small files into many batches.
        settings = FileSource.Settings(kind="file", path=str(self.path), block_rows=7)
        return FileSource(settings.model_copy(update={"block_bytes": 64}))


class TestFollowedFiles(EndlessSourceContract):
    """Files to which others append, and which are rotated away halfway."""

    @pytest.fixture(autouse=True, params=["log.csv", "log.jsonl*"], ids=["rotated", "rotated to a name in the glob"])
    def content(self, request, tmp_path, monkeypatch):
        monkeypatch.setattr(follow, "_CHECK_INTERVAL_SECONDS", 0.01)
        self.glob, self.added = request.param, 0
        self.path = tmp_path / self.glob.rstrip("*")
        self.is_csv = self.path.suffix == ".csv"
        self.records = QUOTED[:12] if self.is_csv else JSONL[:14]

    def make_source(self):
        path, form = self.path.with_name(self.glob), "csv" if self.is_csv else "jsonl"
        settings = FileSource.Settings(kind="file", path=str(path), format=form, follow=True)
        return FileSource(settings.model_copy(update={"block_bytes": 64}))

    def add(self, data):
        if self.added == len(self.records) // 2:
            self.path.rename(f"{self.path}.1")
        with self.path.open("ab") as stream:
            if self.is_csv and not stream.tell():
                stream.write(b"x,y\n")
            stream.write(data)
        self.added += data.endswith(b"\n")


def test_the_source_of_the_guide_continues_where_it_was(tmp_path):
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "(Source)" in text)
    written = {}
    exec(block, written)
    settings = {"kind": "sqlite", "path": str(tmp_path / "db"), "table": "rides", "block_rows": 3}
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        database.execute("CREATE TABLE rides (x REAL, y REAL)")
        position, found = None, []
        for count in (4, 2):
            database.executemany("INSERT INTO rides VALUES (?, 1.5)", [(i,) for i in range(count)])
            database.commit()
            with closing(written["SqliteSource"](written["SqliteSource"].Settings(**settings))) as source:
                source.seek(position)
                while batch := source.poll(0.0):
                    found += [json.loads(batch.record(i)) for i in range(len(batch))]
                    position = json.loads(json.dumps(batch.end))
    assert found == [{"x": i, "y": 1.5} for i in (0, 1, 2, 3, 0, 1)]
