"""Of files: what is read, and predictions that are written."""

import gzip
import io
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.predictions import JsonlPredictions, plan_restart
from streammoe.ports import Batch, Predictions
from streammoe_connectors.files.listing import file_at
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.stdin import StdinSource
from tests.batches import roles_of


def source(path, **settings):
    return closing(FileSource(FileSource.Settings(kind="file", path=str(path), **settings)))


def read(content, name="a.csv", **settings):
    """Return a case: a folder with this file is read to its end."""

    def case(folder):
        (folder / name).write_bytes(content)
        with source(folder / "*", **settings) as files:
            files.seek(None)
            while not files.finished:
                files.poll(0)

    return case


def opened(name, position=None, **settings):
    """Return a case: a batch is read from a position of files."""

    def case(folder):
        with source(folder / name, **settings) as files:
            files.seek(position)
            files.poll(0.01)

    return case


def resumed(change):
    """Return a case: a file has been read in part, something happens to it, and a start follows."""

    def case(folder):
        path = folder / "a.csv"
        path.write_bytes(b"x\n" + b"1\n" * 4000)
        sound = FileSource.Settings(kind="file", path=str(path), format="csv")
        with closing(FileSource(sound.model_copy(update={"block_bytes": 7000}))) as files:
            files.seek(None)
            position = files.poll(0).end
        change(path)
        opened("a.csv", position)(folder)

    return case


def renamed(change):
    """Return a case: a file has been read to its end, is renamed and changed, and a start follows."""

    def case(folder):
        path = folder / "a.csv"
        path.write_bytes(b"x\n1\n")
        with source(path) as files:
            files.seek(None)
            position = files.poll(0).end
        change(path.rename(folder / "b.csv"))
        opened("*.csv", position)(folder)

    return case


def grown(content, more, name="a.csv"):
    """Return a case: a file has been read to its end, more is appended, and a start follows."""

    def case(folder):
        (folder / name).write_bytes(content)
        batch = None
        with source(folder / name) as files:
            files.seek(None)
            while not files.finished:
                batch = files.poll(0) or batch
        with (folder / name).open("wb" if more is None else "ab") as stream:
            stream.write(content[:5000] if more is None else more)
        opened(name, batch.end)(folder)

    return case


def appended(path):
    with path.open("ab") as stream:
        stream.write(b"2\n")


def begun(content, offset, name="a.csv", path=None, **settings):
    """Return a case: a start follows after a file was read up to an offset."""

    def case(folder):
        (folder / name).write_bytes(content)
        file = file_at(path or str(folder / name), (folder / name).stat().st_ino, content[:4096])
        opened(name, {"kind": "file", "files": [{**file, "offset": offset}]}, **settings)(folder)

    return case


def as_parquet(*names):
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays([pa.array([1])] * len(names), names), target)
    return target.getvalue()


def followed(*changes, glob="a.jsonl", **settings):
    """Return a case: a file is followed and read, and then something changes."""

    def case(folder):
        path = folder / "a.jsonl"
        path.write_bytes(b"1\n2\n")
        with source(folder / glob, follow=True, **settings) as files:
            files.seek(None)
            for happens in (lambda _: None, *changes):
                happens(path)
                for _ in range(10):
                    files.poll(0.03)

    return case


def rotated(path):
    path.rename(path.with_name("a.jsonl.1"))
    path.write_bytes(b"3\n")


def from_stdin(_):
    with tempfile.TemporaryFile() as stream:
        stream.write(b"x\n1\n")
        stream.seek(0)
        stdin = StdinSource(StdinSource.Settings(kind="stdin", format="csv"), descriptor=stream.fileno())
        stdin.seek({"kind": "stdin", "offset": 25})
        stdin.poll(1)


def decoded(columns, record, **more):
    """Return a case: one record of csv, whose target is y, is decoded."""

    def case(_):
        batch = Batch(record, np.array([len(record)]), "csv", columns, "a.csv", [{}], {}, **more)
        found = decoder("csv").decode(batch, roles_of(("a",), ("y",)))
        return "\n".join(detail for _, _, detail in found.rejected)

    return case


def rows(n):
    """Return n rows of predictions."""
    ones, places = np.ones((n, 1)), [{"offset": i} for i in range(n)]
    return Predictions(locations=places, versions=np.arange(n), predictions=ones, targets=ones, outputs=("y",))


def gone_back(change, then=None, *, says=True):
    """Return a case: predictions are written, with a checkpoint amid them; something happens, and a start follows."""

    def case(folder):
        path = folder / "out.jsonl"
        with closing(JsonlPredictions(path)) as sink:
            sink.write(rows(3))
            sink.flush()
            position = sink.position()
            sink.write(rows(2))
            sink.flush()
        change(path)
        with closing(JsonlPredictions(folder / then if then else path)) as sink:
            found = plan_restart(sink, {"positions": [None]} | ({"predictions": position} if says else {}))
            found.begin()

    return case


def edited(path: Path) -> None:
    path.write_bytes(b"x" + path.read_bytes()[1:])


CASES = {
    "another delimiter": decoded(("a;b;y",), b"1;2;3\n"),
    "a decimal comma": decoded(("a", "y"), b'"1,5",2\n'),
    "a decimal point where the comma is": decoded(("a", "y"), b"1.5;2\n", delimiter=";", decimal=","),
    "predictions cut back": gone_back(lambda _: None),
    "predictions that were edited": gone_back(edited),
    "predictions that are gone": gone_back(lambda path: path.unlink()),
    "predictions at another path": gone_back(lambda _: None, then="other.jsonl"),
    "predictions of which the checkpoint does not know": gone_back(lambda _: None, says=False),
    "no name in the header": read(b",,\n"),
    "lines before the header": decoded(("by me",), b"x,y\n"),
    "a header with a carriage return": read(b"a,b\r1,2\r"),
    "a header that is not UTF-8": read(b"a,\xfc\n"),
    "a header that cannot be read": read(b'a,"b"c\n'),
    "a binary header": read(b"a\0,b\n"),
    "UTF-8 that is said to be Latin": read(b"\xef\xbb\xbfa,b\n", encoding="latin-1"),
    "more lines to leave out than there are": read(b"a,b\n", skip_lines=2),
    "a value in a column without a name": decoded(("a", "", "y"), b"1,x,2\n"),
    "a value beyond the header": decoded(("a", "y"), b"1,2,x\n"),
    "a line without a separator": decoded(("a", "y"), b"end of file\n"),
    "a record that is not UTF-8": decoded(("a", "y"), b"1,\xfc\n"),
    "a header that is too long": read(b"a" * 5000, max_record_bytes=4096),
    "a file removed between two runs": resumed(lambda path: path.unlink()),
    "a file truncated between two runs": resumed(lambda path: path.write_bytes(path.read_bytes()[:5000])),
    "a file replaced between two runs": resumed(lambda path: path.write_bytes(b"y\n" + b"2\n" * 100)),
    "a file renamed after it was read": renamed(lambda _: None),
    "a file renamed after it was read, and grown": renamed(appended),
    "a file grown after it was read": grown(b"x\n1\n", b"2\n"),
    "a file grown in its last record": grown(b"x\n1", b"2\n"),
    "a compressed file grown after it was read": grown(gzip.compress(b"x\n1\n"), b"2", "a.csv.gz"),
    "a file truncated after it was read": grown(b"x\n" + b"1\n" * 4000, None),
    "a position of Kafka": opened("a.csv", {"kind": "kafka"}),
    "a position that is none": opened("a.csv", {"kind": "file", "files": [{"path": 7}]}),
    "a file that is no Parquet": read(b"x,y\n1,2\n", "a.parquet"),
    "a followed file that does not exist yet": opened("a.csv", follow=True),
    "compressed files among those that are followed": followed(
        lambda path: path.with_name("a.jsonl.gz").write_bytes(b"\x1f\x8b"), glob="*.jsonl*"
    ),
    "a followed file is truncated": followed(lambda path: path.write_bytes(b"")),
    "a followed file is truncated, and reading starts again": followed(
        lambda path: path.write_bytes(b""), on_truncate="restart"
    ),
    "a followed file is rotated": followed(rotated),
    "a rotated file grows": followed(rotated, lambda path: appended(path.with_name("a.jsonl.1"))),
    "a followed file was truncated meanwhile": begun(b"1\n" * 2500, 7000, follow=True),
    "a compressed file is to be followed": begun(gzip.compress(b"x\n1\n"), 2, name="log", format="csv", follow=True),
    "another file is to be followed": begun(b"x\n1\n", 2, path="/data/b.csv", follow=True),
    "a Parquet file has fewer rows than before": begun(as_parquet("x"), 9, "a.parquet"),
    "a Parquet file with two columns of a name": begun(as_parquet("x", "x"), 0, "a.parquet"),
    "standard input after a restart": from_stdin,
    "a dead-letter path that cannot be opened": DeadLetterFile,
}
