"""What a daemon says of itself in its folder, and what `streammoe status` makes of it."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.status import status_of
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import STATUS, FolderLock
from tests.unit import daemons

pytestmark = pytest.mark.usefixtures("logging_as_before")
STATE = Path("state")


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, 200, 50)


def write(**more):
    """Change what the file says."""
    path = STATE / STATUS
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def test_it_says_what_was_learned_how_it_ended_and_counts_starts():
    for starts in (1, 2):
        with daemons.opened() as running:
            assert status_of(STATE)["state"] == "not ready"
            assert running.daemon.metrics.registry.get_sample_value("streammoe_starts_total", {}) == starts
            summary = running.daemon.run(StopFlag())
        found = status_of(STATE)
        assert (found["state"], found["starts"], found["end"]["error"]) == ("stopped", starts, None)
    assert (found["model_events"], found["events"]["learned"]) == (200, 200)
    assert json.loads((STATE / STATUS).read_text())["connected"] is True
    assert found["scores"] == summary.scores
    assert found["predicts"] in found["member_weights"]
    assert found["previous_end"]["error"] is None


def test_it_says_why_a_run_failed_and_the_next_one_remembers():
    with pytest.raises(SourceError), daemons.opened():
        raise SourceError("there is nothing to read")
    found = status_of(STATE)
    assert (found["state"], found["end"]["error"]) == ("failed", "there is nothing to read")
    with daemons.opened():
        assert status_of(STATE)["previous_end"] == found["end"]


@pytest.mark.parametrize(
    ("said", "is_locked", "state", "code"),
    [
        ({"problem": "", "alive": True}, True, "learning", 0),
        ({"problem": "nothing can be saved", "alive": True}, True, "not ready", 0),
        ({"problem": "", "alive": False}, True, "hanging", 1),
        ({"problem": "", "alive": True, "written": "2020-01-01T00:00:00+00:00"}, True, "hanging", 1),
        ({"problem": "", "alive": True, "written": None}, True, "hanging", 1),
        ({"problem": "", "alive": True}, False, "killed", 1),
    ],
)
def test_whether_it_is_alive_is_seen_by_the_lock_and_by_how_old_the_file_is(said, is_locked, state, code):
    daemons.run()
    write(**({"end": None, "written": datetime.now(UTC).isoformat()} | said))
    lock = FolderLock(STATE) if is_locked else None
    done = CliRunner().invoke(main, ["status", "state", "--check", "--json"])
    assert (json.loads(done.stdout)["state"], done.exit_code) == (state, code)
    if lock is not None:
        lock.close()


NONE_OF_OURS = [
    *(b"", b"[1]", b"\xff", b"[" * 200_000, b" " * (1 << 24) + b"{}"),
    *(b'{"starts": "many"}', b'{"starts": -5}', b'{"starts": %d}' % 10**400, b'{"starts": 1, "end": "x"}'),
]


@pytest.mark.parametrize("content", [None, *NONE_OF_OURS], ids=lambda content: content and content[:20])
def test_what_is_no_status_is_named_and_does_not_stop_a_daemon(content):
    STATE.mkdir()
    if content is not None:
        (STATE / STATUS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state: there is no status\.json that can be read"):
        status_of(STATE)
    daemons.run()
    assert status_of(STATE)["starts"] == 1


def test_a_status_that_cannot_be_written_is_said_once_and_stops_nothing(caplog):
    (STATE / STATUS).mkdir(parents=True)
    assert daemons.run().learned == 200
    assert sum("is out of date" in record.getMessage() for record in caplog.records) == 1


def test_the_text_says_what_matters_first_and_nothing_that_is_empty():
    daemons.run()
    lines = CliRunner().invoke(main, ["status", "state"]).stdout.splitlines()
    assert lines[0].split() == ["state", "stopped"]
    assert not [line for line in lines if line.split()[0] in {"stalled", "partitions", "columns_missing"}]


def test_neither_a_pipe_nor_a_link_is_read_or_written_through():
    STATE.mkdir()
    Path("victim").write_text('{"starts": 7}')
    for name in (STATUS, f".{STATUS}.tmp"):
        (STATE / name).symlink_to(Path("victim").absolute())
    daemons.run()
    assert Path("victim").read_text() == '{"starts": 7}'
    assert status_of(STATE)["starts"] == 1
    for name in (STATUS, f".{STATUS}.tmp"):
        (STATE / name).unlink(missing_ok=True)
        os.mkfifo(STATE / name)
    daemons.run()
    assert status_of(STATE)["starts"] == 1


def test_a_daemon_whose_folder_cannot_be_written_is_not_ready_and_does_not_hang():
    daemons.run()
    write(end=None, problem="", alive=True, written="2020-01-01T00:00:00+00:00")
    with FolderLock(STATE):
        STATE.chmod(0o500)
        found = status_of(STATE)
        STATE.chmod(0o700)
        assert (found["state"], "its owner may not write" in found["problem"]) == ("not ready", True)
        assert status_of(STATE)["state"] == "hanging"


def test_one_that_was_killed_is_remembered_and_says_nothing_that_only_holds_while_it_runs():
    daemons.run()
    write(end=None)
    assert not status_of(STATE).keys() & {"alive", "connected"}
    with daemons.opened():
        assert "was killed" in status_of(STATE)["previous_end"]["error"]
