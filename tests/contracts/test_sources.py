"""Every source keeps the promises of `streammoe.ports.Source`."""

import gzip
import io
import json
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe.errors import SourceError
from streammoe.testing import EndlessSourceContract, ListSource, SourceContract
from streammoe_connectors.files import follow
from streammoe_connectors.files.source import FileSource


class TestListSource(SourceContract):
    records = tuple(b'{"i": %d}' % i for i in range(20))
    skipped = 5

    def make_source(self):
        return ListSource(self.records, sizes=[3, 1, 7], pauses={0, 5, 6}, blank={0: 1, 4: 2, 19: 2})

    def test_it_does_what_its_script_says(self):
        csv = ListSource([b"1,2"], format="csv", columns=("x", "y"))
        csv.seek(None)
        batch = csv.poll(0.0)
        assert (batch.format, batch.columns) == ("csv", ("x", "y"))
        assert [len(batch) for batch in self._read()] == [3, 1, 1, 1, 1, 7, 3, 1, 2]

    def test_a_failure_is_raised_once_between_the_records_around_it(self):
        cable = SourceError("the cable is out")
        source = ListSource([b"0", b"1"], failures={1: cable, 2: cable}, endless=True)
        source.seek(None)
        assert source.poll(0.0).end == {"kind": "list", "next": 1}
        for record in (b"1", None):
            with pytest.raises(SourceError):
                source.poll(0.0)
            batch = source.poll(0.0)
            assert record == (batch and batch.record(0))
        assert not source.finished
        assert source.progress() is None

    def test_it_remembers_how_it_was_called(self):
        asked = []
        source = ListSource([b"0", b"1"], sizes=[1], before_poll=asked.append)
        source.seek({"kind": "list", "next": 1})
        source.commit(source.poll(0.0).end, 1)
        source.close()
        assert source.seeks == [{"kind": "list", "next": 1}]
        assert source.commits == [{"kind": "list", "next": 2}]
        assert source.closed
        assert asked == [1]

    def test_what_it_cannot_do_is_an_error(self):
        for position in ({"kind": "list", "next": 21}, {"kind": "list", "next": -1}, {"kind": "list"}):
            with pytest.raises(SourceError):
                self.make_source().seek(position)
        with pytest.raises(ValueError):
            ListSource([b"0"], sizes=[2, 0])


class Files(NamedTuple):
    """Content by name, and what is to be read of it."""

    path: str
    content: dict[str, bytes]
    records: list[bytes]
    skipped: int = 0


CSV = [b"%d,%d" % (i, -i) for i in range(60)]
JSONL = [b'{"x": %d}' % i for i in range(60)]
QUOTED = [b'%d,"two\nlines, and more"' % i for i in range(20)] + [b'1,"stray'] + CSV
LONG = [b'{"x": "%s"}' % (b"z" * (i * 40)) for i in range(12)]
ROWS = [{"x": i, "y": {"z": [i, None]}, "text": "ä" * i} for i in range(60)]


def as_parquet(rows, row_group_size=17):
    target = io.BytesIO()
    schema = pa.schema({"x": pa.int64(), "y": pa.struct({"z": pa.list_(pa.int64())}), "text": pa.string()})
    parquet.write_table(pa.Table.from_pylist(rows, schema), target, row_group_size=row_group_size)
    return target.getvalue()


def as_json(rows):
    return [json.dumps(row, ensure_ascii=False).encode() for row in rows]


CASES = {
    "jsonl with blank lines": Files(
        "*.jsonl",
        {
            "a.jsonl": b"\xef\xbb\xbf\n \n" + b"\n".join(JSONL[:30]) + b"\n" + b"\n" * 100,
            "b.jsonl": b"\n" * 10,
            "c.jsonl": b"\n\t\r\n".join(JSONL[30:]),
        },
        JSONL,
        skipped=2 + 100 + 10 + 29,
    ),
    "files of all kinds": Files(
        "*.*",
        {
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
            "h.ndjson": b"\n".join(JSONL),
        },
        QUOTED + CSV + LONG + JSONL + as_json(ROWS) + JSONL,
        skipped=3,
    ),
}


class TestFileSource(SourceContract):
    @pytest.fixture(autouse=True, params=CASES.values(), ids=CASES)
    def content(self, request, tmp_path):
        path, content, self.records, self.skipped = request.param
        for name, data in content.items():
            (tmp_path / name).write_bytes(data)
        self.path = tmp_path / path

    def make_source(self):
        # Smaller blocks than the settings allow cut small files into many batches.
        settings = FileSource.Settings(kind="file", path=str(self.path), block_rows=7)
        return FileSource(settings.model_copy(update={"block_bytes": 64}))


class TestFollowedFiles(EndlessSourceContract):
    """Files to which others append, rotated away halfway or not."""

    @pytest.fixture(
        autouse=True,
        params=[
            ("log.csv", "csv", QUOTED[:14], True),
            ("log.jsonl*", "jsonl", JSONL[:14], True),
        ],
        ids=["rotated", "rotated to a name that is looked for"],
    )
    def content(self, request, tmp_path, monkeypatch):
        monkeypatch.setattr(follow, "_LOOK_SECONDS", 0.01)
        self.glob, self.format, self.records, self.rotate = request.param
        self.path = tmp_path / self.glob.rstrip("*")
        self.added = 0

    def make_source(self):
        settings = FileSource.Settings(
            kind="file", path=str(self.path.with_name(self.glob)), format=self.format, follow=True
        )
        return FileSource(settings.model_copy(update={"block_bytes": 64}))

    def add(self, data):
        if self.rotate and self.added == len(self.records) // 2:
            self.path.rename(f"{self.path}.1")
        with self.path.open("ab") as stream:
            if self.format == "csv" and not stream.tell():
                stream.write(b"x,y\n")
            stream.write(data)
        self.added += data.endswith(b"\n")
