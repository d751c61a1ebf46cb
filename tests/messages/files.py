"""Of files: what is read, and predictions that are written."""

import gzip
from contextlib import closing
from pathlib import Path

import numpy as np

from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.pipeline.predictions import prediction_sink, restart
from streammoe.ports import Batch, Predictions
from streammoe_connectors.files.source import FileSource


def read(folder, content=b"", name="a.csv", **settings):
    """Read a folder to its end, and return its records."""
    if content or not list(folder.iterdir()):
        (folder / name).write_bytes(content)
    with closing(FileSource(FileSource.Settings(kind="file", path=f"{folder}/*", **settings))) as source:
        source.seek(None)
        while not source.finished:
            source.poll(0)


def linked(folder):
    """Read a file under its own name and under two links."""
    (folder / "a.csv").write_bytes(b"a,y\n1,2\n")
    (folder / "b.csv").symlink_to("a.csv")
    (folder / "c.csv").hardlink_to(folder / "a.csv")
    read(folder)


def damaged(folder):
    """Read a gzip file with a damage in it."""
    data = bytearray(gzip.compress(b"a,y\n" + b"1,2\n" * 1000, mtime=0))
    data[25] ^= 255
    read(folder, bytes(data), "a.csv.gz")


def decoded(columns, record, **more):
    """Decode one record of csv whose target is y."""
    batch = Batch(record, np.array([len(record)]), "csv", columns, "a.csv", lambda _: {}, {}, **more)
    found = decoder("csv").decode(batch, Wanted(("a",), ("y",)))
    return "\n".join(detail for _, _, detail in found.rejected)


def rows(n):
    """Return n rows of predictions."""
    ones = np.ones((n, 1))
    return Predictions(
        places=[{"offset": i} for i in range(n)],
        versions=np.arange(n),
        predictions=ones,
        targets=ones,
        outputs=("y",),
    )


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
    "a damaged gzip file": damaged,
    "an empty csv file": lambda folder: read(folder, name="a.csv"),
    "an empty jsonl file": lambda folder: read(folder, name="a.jsonl"),
    "a header and no record": lambda folder: read(folder, b"a,y\n"),
    "a header and blank lines": lambda folder: read(folder, b"a,y\n\n\n"),
    "NULs": lambda folder: read(folder, b"\0" * 100),
    "another delimiter": lambda _: decoded(("a;b;y",), b"1;2;3\n"),
    "no header": lambda _: decoded(("1", "2.5", "-3"), b"1,2,3\n"),
    "no such column": lambda _: decoded(("a", "b"), b"1,2\n"),
    "a decimal comma": lambda _: decoded(("a", "y"), b'"1,5",2\n'),
    "a decimal point where the comma is": lambda _: decoded(("a", "y"), b"1.5;2\n", delimiter=";", decimal=","),
    "predictions cut back": gone_back(lambda _: None),
    "predictions in parts cut back": gone_back(lambda _: None, "parquet"),
    "predictions that are shorter": gone_back(lambda path: path.write_bytes(path.read_bytes()[:50])),
    "predictions that were edited": gone_back(edited),
    "predictions that were replaced": gone_back(replaced),
    "predictions that were rotated": gone_back(lambda path: path.rename(path.with_name("out.jsonl.1"))),
    "predictions that are gone": gone_back(lambda path: path.unlink()),
    "predictions at another path": gone_back(lambda _: None, then="other.jsonl"),
    "predictions of an earlier version": gone_back(lambda _: None, says=False),
}
