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

    def __init__(self, folder, before=5, after=3):
        folder.mkdir(exist_ok=True)
        self.path = folder / "out.jsonl"
        sink = self.open()
        sink.write(rows_from(0, before))
        sink.flush()
        self.position = json.loads(json.dumps(sink.position()))
        self.content = self.seen()
        sink.write(rows_from(before, after))
        sink.flush()
        sink.close()

    def open(self, path=None):
        return JsonlPredictions(path or self.path)

    def seen(self):
        return {path.name: path.read_bytes() for path in sorted(self.path.parent.iterdir()) if path.is_file()}

    def restored(self, path=None):
        sink = self.open(path)
        sink.restore(self.position)()
        return sink


@pytest.mark.parametrize("before", [0, 5])
def test_what_came_after_the_checkpoint_is_removed_and_written_again(tmp_path, before):
    written = Written(tmp_path, before=before)
    undisturbed = written.seen()
    assert undisturbed != written.content
    sink = written.open()
    sink.restore(written.position)
    sink.close()
    assert written.seen() == undisturbed, "nothing changes before everything else has been opened"
    sink = written.restored()
    assert written.seen() == written.content
    sink.write(rows_from(before, 3))
    sink.flush()
    sink.close()
    assert written.seen() == undisturbed


def test_half_a_line_goes_too_and_a_copy_will_do(tmp_path):
    written = Written(tmp_path, after=0)
    shutil.copy(written.path, tmp_path / "copy")
    (tmp_path / "copy").rename(written.path)
    with written.path.open("ab") as stream:
        stream.write(b'{"half": ')  # which a kill has left
    written.restored().close()
    assert written.seen() == written.content


def edit(path):
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def replace(path):
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(b"something else\n" * 1000)


@pytest.mark.parametrize("damage", [edit, replace, lambda path: os.truncate(path, 10)])
def test_a_file_that_no_longer_holds_the_position_is_an_error_and_stays(tmp_path, damage):
    written = Written(tmp_path)
    damage(written.path)
    damaged = written.seen()
    sink = written.open()
    with pytest.raises(CheckpointError):
        sink.restore(written.position)
    sink.close()
    assert written.seen() == damaged


def test_a_file_that_is_moved_gone_or_no_longer_meant_is_no_error(tmp_path):
    moved, gone, other = (Written(tmp_path / name) for name in ("moved", "gone", "other"))
    moved.path.rename(moved.path.with_name("out.jsonl.1"))
    moved.restored().close()
    assert moved.seen() == {"out.jsonl": b"", "out.jsonl.1": moved.content["out.jsonl"]}, "it is cut there"
    gone.path.unlink()
    gone.restored().close()
    assert gone.seen() == {"out.jsonl": b""}
    before = other.seen()
    (tmp_path / "out.jsonl").write_bytes(b"{}\n")
    other.restored(tmp_path / "out.jsonl").close()
    assert other.seen() == before
    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"


def test_a_start_cuts_only_what_can_be_read_again(tmp_path):
    written = Written(tmp_path)
    sink = written.open()
    metadata = {"positions": [{"kind": "file"}], "predictions": written.position}
    assert (
        plan_restart(sink, {**metadata, "positions": [{"positions": [{"kind": "stdin"}, None]}]}).begin is nothing_more
    )
    found, before = plan_restart(sink, metadata), written.seen()
    assert not found.must_save
    found.begin()
    assert written.seen() != before
    sink.close()
