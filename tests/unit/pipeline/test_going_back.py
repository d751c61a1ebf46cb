"""Predictions are cut back to the checkpoint from which a start resumes, and nothing else ever is."""

import json
import os
import shutil

import pytest

from streammoe.errors import CheckpointError
from streammoe.pipeline.predictions import JsonlPredictions, plan_restart
from streammoe.ports import nothing_more
from tests.unit.pipeline.written_rows import rows_from


class Written:
    """A file of predictions with a checkpoint amid them."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.path = folder / "out.jsonl"
        sink = JsonlPredictions(self.path)
        sink.write(rows_from(0, 5))
        sink.flush()
        self.position = json.loads(json.dumps(sink.position()))
        self.content = self.seen()
        sink.write(rows_from(5, 3))
        sink.flush()
        sink.close()

    def seen(self):
        return {path.name: path.read_bytes() for path in sorted(self.path.parent.iterdir()) if path.is_file()}

    def restore(self, path=None, write=lambda sink: None):
        sink = JsonlPredictions(path or self.path)
        try:
            cut = sink.restore(self.position)
            before = self.seen()
            cut()
            write(sink)
            sink.flush()
        finally:
            sink.close()
        return before


def test_what_came_after_the_checkpoint_is_removed_and_written_again(tmp_path):
    written = Written(tmp_path)
    undisturbed = written.seen()
    shutil.copy(written.path, tmp_path / "copy")
    (tmp_path / "copy").rename(written.path)  # which is as good
    with written.path.open("ab") as stream:
        stream.write(b'{"half": ')  # which a kill has left
    damaged = written.seen()
    assert written.restore() == damaged, "nothing changes before everything else has been opened"
    assert written.seen() == written.content
    written.restore(write=lambda sink: sink.write(rows_from(5, 3)))
    assert written.seen() == undisturbed


def edit(path):
    path.write_bytes(b"x" + path.read_bytes()[1:])


def replace(path):
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(b"something else\n" * 1000)


@pytest.mark.parametrize("damage", [edit, replace, lambda path: os.truncate(path, 10)])
def test_a_file_that_no_longer_holds_the_position_is_an_error_and_stays(tmp_path, damage):
    written = Written(tmp_path)
    damage(written.path)
    damaged = written.seen()
    with pytest.raises(CheckpointError):
        written.restore()
    assert written.seen() == damaged


def test_a_file_that_is_moved_gone_or_no_longer_meant_is_no_error(tmp_path):
    moved, gone, other = (Written(tmp_path / name) for name in ("moved", "gone", "other"))
    moved.path.rename(moved.path.with_name("out.jsonl.1"))
    moved.restore()
    assert moved.seen() == {"out.jsonl": b"", "out.jsonl.1": moved.content["out.jsonl"]}, "it is cut there"
    gone.path.unlink()
    gone.restore()
    assert gone.seen() == {"out.jsonl": b""}
    before = other.seen()
    (tmp_path / "out.jsonl").write_bytes(b"{}\n")
    other.restore(tmp_path / "out.jsonl")
    assert (other.seen(), (tmp_path / "out.jsonl").read_bytes()) == (before, b"{}\n")


def test_a_start_cuts_only_what_can_be_read_again(tmp_path):
    written = Written(tmp_path)
    sink = JsonlPredictions(written.path)
    metadata = {"positions": [{"kind": "file"}], "predictions": written.position}
    assert plan_restart(sink, metadata, replayable=False).begin is nothing_more
    found, before = plan_restart(sink, metadata), written.seen()
    assert not found.must_save
    found.begin()
    assert written.seen() != before
    sink.close()
