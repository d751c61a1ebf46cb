import pytest

from streammoe.errors import CheckpointError, ConfigError
from streammoe.runtime.appending import AppendedLines


def append(path, *lines):
    file = AppendedLines(path, "some.path")
    for line in lines:
        file.write(line)
    file.flush()
    file.close()


def test_lines_come_after_those_of_the_last_run(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    append(path, b"a\n", b"b\nc\n")
    append(path)
    append(path, b"d\n")
    assert path.read_bytes() == b"a\nb\nc\nd\n"


def test_a_torn_line_is_ended_first(tmp_path):
    (tmp_path / "file").write_bytes(b"a\nhal")
    append(tmp_path / "file", b"b\n")
    assert (tmp_path / "file").read_bytes() == b"a\nhal\nb\n"


def test_a_file_that_cannot_be_opened_names_its_setting(tmp_path):
    with pytest.raises(ConfigError, match=r"some\.path .*cannot be opened for appending \(Is a directory\)"):
        AppendedLines(tmp_path, "some.path")


def test_a_full_disk_names_the_setting_and_what_to_do():
    file = AppendedLines("/dev/full", "some.path")
    file.write(b"a\n")
    with pytest.raises(CheckpointError, match=r"some\.path /dev/full: cannot be written .*make room on the disk"):
        file.flush()
    with pytest.raises(CheckpointError):
        file.close()
