"""Of files: what is read, and predictions that are written."""

import gzip
import os
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.pipeline.predictions import prediction_sink, restart
from streammoe.ports import Batch, Predictions
from streammoe.settings import Kinds, load
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.stdin import StdinSource


def source(path, **settings):
    return closing(FileSource(FileSource.Settings(kind="file", path=str(path), **settings)))


def read(content=b"", name="a.csv", **settings):
    """Return a case: a folder with this file is read to its end."""

    def case(folder):
        (folder / name).write_bytes(content)
        with source(folder / "*", **settings) as files:
            files.seek(None)
            while not files.finished:
                files.poll(0)

    return case


def opened(name, position=None, make=None, **settings):
    """Return a case: files are made, and a batch is read from a position of them."""

    def case(folder):
        if make is not None:
            make(folder / name)
        with source(folder / name, **settings) as files:
            files.seek(position)
            files.poll(0.01)

    return case


def resumed(change, content=b"x\n" + b"1\n" * 100, block_bytes=64):
    """Return a case: a file has been read in part, something happens to it, and a start follows."""

    def case(folder):
        path = folder / "a.csv"
        path.write_bytes(content)
        sound = FileSource.Settings(kind="file", path=str(path), format="csv")
        with closing(FileSource(sound.model_copy(update={"block_bytes": block_bytes}))) as files:
            files.seek(None)
            position = files.poll(0).end
        change(path)
        opened("a.csv", position)(folder)

    return case


def followed(*changes, **settings):
    """Return a case: a file is followed and read, and changes follow, with a look after each."""

    def case(folder):
        path = folder / "a.jsonl"
        path.write_bytes(b"1\n2\n")
        with source(path, follow=True, **settings) as files:
            files.seek(None)
            for change in (lambda _: None, *changes):
                change(path)
                for _ in range(4):
                    files.poll(0.03)

    return case


def rotated_late(path):
    path.rename(path.with_name("a.jsonl.1"))
    path.write_bytes(b"3\n")


def late(path):
    with path.with_name("a.jsonl.1").open("ab") as stream:
        stream.write(b"late\n")


def table(*columns):
    return lambda path: parquet.write_table(pa.table([[1]] * len(columns), names=columns), path)


def from_stdin(position=None, content=b"", descriptor=None):
    """Read standard input from a position."""
    with tempfile.TemporaryFile() as stream:
        stream.write(content)
        stream.seek(0)
        settings = StdinSource.Settings(kind="stdin", format="csv")
        stdin = StdinSource(settings, descriptor=stream.fileno() if descriptor is None else descriptor)
        stdin.seek(position)
        stdin.poll(1)


def folder_as_stdin(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        from_stdin(descriptor=descriptor)
    finally:
        os.close(descriptor)


def load_config(folder):
    """Read settings by which compressed files are to be followed."""
    (folder / "config.toml").write_text(
        'source = { kind = "file", path = "*.csv.gz", follow = true }\nschema.target = "y"\n'
    )
    load(folder / "config.toml", kinds=Kinds({"file": FileSource.Settings}), environment={})


def linked(folder):
    """Read a file under its own name and under two links."""
    (folder / "b.csv").symlink_to("a.csv")
    (folder / "a.csv").touch()
    (folder / "c.csv").hardlink_to(folder / "a.csv")
    read(b"a,y\n1,2\n")(folder)


def damaged():
    """The bytes of a gzip file with a damage in it."""
    data = bytearray(gzip.compress(b"a,y\n" + b"1,2\n" * 1000, mtime=0))
    data[25] ^= 255
    return bytes(data)


def decoded(columns, record, **more):
    """Return a case: one record of csv, whose target is y, is decoded."""

    def case(_):
        batch = Batch(record, np.array([len(record)]), "csv", columns, "a.csv", lambda _: {}, {}, **more)
        found = decoder("csv").decode(batch, Wanted(("a",), ("y",)))
        return "\n".join(detail for _, _, detail in found.rejected)

    return case


def rows(n):
    """Return n rows of predictions."""
    ones, places = np.ones((n, 1)), [{"offset": i} for i in range(n)]
    return Predictions(places=places, versions=np.arange(n), predictions=ones, targets=ones, outputs=("y",))


def gone_back(change, format="jsonl", then=None, *, says=True):
    """Return a case: predictions are written, with a checkpoint amid them; something happens, and a start follows."""

    def case(folder):
        path = folder / f"out.{format}"
        with closing(prediction_sink(path, format)) as sink:
            sink.write(rows(3))
            sink.flush()
            position = sink.position()
            sink.write(rows(2))
            sink.flush()
        change(path)
        with closing(prediction_sink(folder / then if then else path, format)) as sink:
            found = restart(sink, {"positions": [None]} | ({"predictions": position} if says else {}))
            if found.cut is not None:
                found.cut()

    return case


def edited(path: Path) -> None:
    path.write_bytes(b"x" + path.read_bytes()[1:])


def replaced(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.write_bytes(b"something else\n" * 100)
    path.with_name("old").unlink()


CASES = {
    "links to one file": linked,
    "a damaged gzip file": read(damaged(), "a.csv.gz"),
    "an empty csv file": read(),
    "an empty jsonl file": read(name="a.jsonl"),
    "a header and no record": read(b"a,y\n"),
    "a header and blank lines": read(b"a,y\n\n\n"),
    "NULs": read(b"\0" * 100),
    "another delimiter": decoded(("a;b;y",), b"1;2;3\n"),
    "no header": decoded(("1", "2.5", "-3"), b"1,2,3\n"),
    "no such column": decoded(("a", "b"), b"1,2\n"),
    "a decimal comma": decoded(("a", "y"), b'"1,5",2\n'),
    "a decimal point where the comma is": decoded(("a", "y"), b"1.5;2\n", delimiter=";", decimal=","),
    "predictions cut back": gone_back(lambda _: None),
    "predictions in parts cut back": gone_back(lambda _: None, "parquet"),
    "predictions that are shorter": gone_back(lambda path: path.write_bytes(path.read_bytes()[:50])),
    "predictions that were edited": gone_back(edited),
    "predictions that were replaced": gone_back(replaced),
    "predictions that were rotated": gone_back(lambda path: path.rename(path.with_name("out.jsonl.1"))),
    "predictions that are gone": gone_back(lambda path: path.unlink()),
    "predictions at another path": gone_back(lambda _: None, then="other.jsonl"),
    "predictions of an earlier version": gone_back(lambda _: None, says=False),
    "a path that matches no file": opened("no*.csv"),
    "a folder": opened("", format="csv"),
    "a pipe": opened("pipe.csv", make=os.mkfifo),
    "an unknown extension": read(b"1\n", "a.txt"),
    "a compressed file with an unknown extension": read(b"1\n", "a.txt.gz"),
    "a name twice in the header": read(b"x,x\n1,2\n"),
    "no name in the header": read(b"a,,b\n"),
    "a header that is too long": read(b"a" * 5000, max_record_bytes=4096),
    "UTF-16": read("x,y\n1,2\n".encode("utf-16")),
    "a file removed between two runs": resumed(lambda path: path.unlink()),
    "a file replaced between two runs": resumed(lambda path: path.write_bytes(b"y\n" + b"2\n" * 100)),
    "a file truncated between two runs": resumed(
        lambda path: os.truncate(path, 4200), content=b"x\n" + b"1\n" * 9000, block_bytes=8192
    ),
    "a position of Kafka": opened("a.csv", {"kind": "kafka"}),
    "a position that is none": opened("a.csv", {"kind": "file", "files": [{"path": 7}]}),
    "a gzip file cut off": read(gzip.compress(b"a,y\n1,2\n", mtime=0)[:-9], "a.csv.gz"),
    "a plain file named gzip": read(b"a,y\n1,2\n", "a.csv.gz"),
    "a file that is no Parquet": read(b"x,y\n1,2\n", "a.parquet"),
    "a column twice in Parquet": opened("a.parquet", make=table("x", "y", "x")),
    "compressed files cannot be followed": load_config,
    "a followed file that does not exist yet": opened("a.csv", follow=True),
    "a followed file is truncated": followed(lambda path: path.write_bytes(b"")),
    "a followed file is rotated": followed(rotated_late),
    "a rotated file grows too late": followed(rotated_late, late),
    "a followed file is truncated, and reading starts again": followed(
        lambda path: path.write_bytes(b""), on_truncate="restart"
    ),
    "standard input after a restart": lambda _: from_stdin({"kind": "stdin", "offset": 25}, b"x\n1\n"),
    "standard input and a position of files": lambda _: from_stdin({"kind": "file", "files": []}),
    "standard input is a folder": folder_as_stdin,
    "a predictions format that does not exist": lambda folder: prediction_sink(folder / "out", "csv"),
    "a predictions path that cannot be opened": lambda folder: prediction_sink(folder, "jsonl"),
    "a dead-letter path that cannot be opened": DeadLetterFile,
}
