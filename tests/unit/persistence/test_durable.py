"""Files that are replaced where a step fails; `test_power_loss` has the order of the steps."""

import os

import pytest

from streammoe.persistence import durable


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_content_and_removes_the_new(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file"
    durable.replace(path, b"old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        durable.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
