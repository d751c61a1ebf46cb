"""Predictions are cut back to the checkpoint from which a start resumes, and nothing else ever is."""

import json
import os
import shutil

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.pipeline.predictions import prediction_sink, restart
from streammoe.ports import Predictions


def rows(start, stop):
    n = stop - start
    return Predictions(
        places=[{"path": "a.csv", "offset": i} for i in range(start, stop)],
        versions=np.arange(start, stop),
        predictions=np.arange(start, stop, dtype=np.float64)[:, None],
        targets=np.zeros((n, 1)),
        outputs=("y",),
    )


class Written:
    """A file of predictions, or parts, with a checkpoint amid them."""

    def __init__(self, folder, format, before=5, after=3):
        self.path = folder / f"out.{format}"
        self.format = format
        sink = self.open()
        sink.write(rows(0, before))
        sink.flush()
        self.position = json.loads(json.dumps(sink.position()))
        self.content = self.seen()
        sink.write(rows(before, before + after))
        sink.flush()
        sink.close()

    def open(self, path=None):
        return prediction_sink(path or self.path, self.format)

    def seen(self):
        folder = self.path.parent
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    def restored(self, path=None):
        sink = self.open(path)
        sink.restore(self.position)()
        return sink


FORMATS = pytest.mark.parametrize("format", ["jsonl", "parquet"])


@FORMATS
@pytest.mark.parametrize("before", [0, 5])
def test_what_came_after_the_checkpoint_is_removed_and_written_again(tmp_path, format, before):
    written = Written(tmp_path, format, before=before)
    undisturbed = written.seen()
    assert undisturbed != written.content
    sink = written.open()
    sink.restore(written.position)
    sink.close()
    assert written.seen() == undisturbed, "nothing changes before everything else has been opened"
    sink = written.restored()
    assert written.seen() == written.content
    sink.write(rows(before, before + 3))
    sink.flush()
    sink.close()
    assert written.seen() == undisturbed


@FORMATS
def test_without_anything_after_the_checkpoint_nothing_changes_and_a_copy_is_as_good(tmp_path, format):
    written = Written(tmp_path, format, after=0)
    for path in list(tmp_path.iterdir()):
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").rename(path)
    written.restored().close()
    assert written.seen() == written.content


def test_half_a_line_that_a_kill_has_left_goes_too(tmp_path):
    written = Written(tmp_path, "jsonl")
    with written.path.open("ab") as stream:
        stream.write(b'{"half": ')
    sink = written.restored()
    sink.write(rows(5, 6))
    sink.flush()
    sink.close()
    assert [json.loads(line)["model_version"] for line in written.path.read_bytes().splitlines()] == [*range(6)]


def edit(path):
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def replace(path):
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(b"something else\n" * 1000)


@pytest.mark.parametrize("damage", [edit, replace, lambda path: os.truncate(path, 10)], ids=["edited", "other", "cut"])
def test_a_file_that_no_longer_holds_the_position_is_an_error_and_stays(tmp_path, damage):
    for rows_before in (5, 0) if damage is replace else (5,):
        folder = tmp_path / str(rows_before)
        folder.mkdir()
        written = Written(folder, "jsonl", before=rows_before)
        damage(written.path)
        before = written.seen()
        sink = written.open()
        with pytest.raises(CheckpointError):
            sink.restore(written.position)
        sink.close()
        assert written.seen() == before


def test_a_file_moved_away_within_its_folder_is_cut_there(tmp_path):
    written = Written(tmp_path, "jsonl")
    written.path.rename(tmp_path / "out.jsonl.1")
    written.restored().close()
    assert written.seen() == {"out.jsonl": b"", "out.jsonl.1": written.content["out.jsonl"]}


def test_a_file_that_is_gone_is_written_from_the_start(tmp_path):
    written = Written(tmp_path, "jsonl")
    written.path.unlink()
    written.restored().close()
    assert written.seen() == {"out.jsonl": b""}


def test_another_path_leaves_the_file_alone(tmp_path):
    written = Written(tmp_path, "jsonl")
    before = written.seen()
    other = tmp_path / "other" / "out.jsonl"
    other.parent.mkdir()
    other.write_bytes(b"{}\n")
    written.restored(other).close()
    assert written.seen() == before
    assert other.read_bytes() == b"{}\n"


def test_parts_of_other_runs_and_other_files_stay(tmp_path):
    others = Written(tmp_path, "parquet")  # a series of its own, with higher versions
    (tmp_path / "out-000000000009.parquet").write_bytes(b"no parquet")
    before = others.seen()
    sink = others.open()
    sink.flush()
    position = sink.position()
    sink.write(rows(0, 4))
    sink.flush()
    sink.close()
    again = others.open()
    again.restore(json.loads(json.dumps(position)))()
    again.close()
    assert others.seen() == before


def test_a_position_that_no_sink_has_written_is_rejected(tmp_path):
    lines = {"kind": "lines", "path": "x", "inode": 1, "bytes": 0, "head_sha256": "", "tail_sha256": ""}
    parts = {"kind": "parts", "series": 1, "parts": 0, "newest": 0}
    wrong = [{"kind": "lines"}, {**lines, "inode": -1}, {**lines, "bytes": "0"}, parts]
    for position in (*wrong, {**parts, "series": "x", "parts": 2**70}):
        sink = prediction_sink(tmp_path / "out", "jsonl" if position["kind"] == "lines" else "parquet")
        with pytest.raises(CheckpointError):
            sink.restore(position)
        sink.close()


@FORMATS
@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_what_a_start_does_with_them(tmp_path, format, to):
    written = Written(tmp_path, format)
    sink = prediction_sink(tmp_path / f"out.{to}", to)
    metadata = {"positions": [{"kind": "file"}], "predictions": written.position}
    assert restart(sink, None).save_first
    assert restart(sink, {"positions": [None]}).save_first  # written by a version that did not say
    assert restart(sink, {**metadata, "positions": [{"positions": [{"kind": "stdin"}, None]}]}).cut is None
    found = restart(sink, metadata)
    assert not found.save_first
    before = written.seen()
    found.cut()
    after = written.seen() if format == to else {**written.seen(), **before}
    assert (after == before) == (format != to)
    sink.close()
