import errno
import json

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.persistence import CheckpointStore, store
from streammoe.scaleout import watcher
from streammoe.scaleout.global_model import read_newest
from tests.unit.scaleout.shards import Daemon, Largest, learned


@pytest.fixture
def reduce(tmp_path, monkeypatch, logging_as_before):
    """Call the command in a folder with the states of shards north and south."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watcher, "reduce_with_details", Largest())
    for name, draw in (("north", 1), ("south", 2)):
        Daemon(tmp_path / name / "state", learned(draw)).save()

    def call(*arguments, code=0):
        done = CliRunner().invoke(main, ["reduce", *map(str, arguments)])
        assert done.exit_code == code, done.output
        call.log = done.stderr
        return done.stdout if code == 0 else done.output

    return call


BOTH = ("north/state", "south/state", "--out", "out")


def test_it_writes_a_global_model_and_prints_what_it_contains(reduce):
    assert reduce(*BOTH).splitlines() == [
        "version 1, 60 events: out/checkpoint-000000000001.safetensors",
        "  north/state: 30 events, share 0.5, 0 nats apart",
        "  south/state: 30 events, share 0.5, 0.5 nats apart",
    ]
    found = json.loads(reduce(*BOTH, "--json"))
    assert (found["outcome"], found["version"], found["n"], found["problems"]) == ("unchanged", 1, 60, {})
    assert found["shards"]["south/state"]["n"] == 30
    assert read_newest(CheckpointStore("out"))[0].version == 1


AGAIN = "run the command again, or use --watch"


def test_a_shard_with_a_problem_is_named_and_without_watch_no_next_round_promised(reduce, monkeypatch):
    found = json.loads(reduce("north/state", "absent", "--out", "out", "--json"))
    assert found["shards"].keys() == {"north/state"}
    assert found["problems"]["absent"]["reason"] == "empty"
    assert "the newest checkpoint of shard absent does not count; once" in reduce.log
    assert AGAIN in reduce.log
    with monkeypatch.context() as broken:
        broken.setattr(store, "replace", _full)
        assert "no space left" in reduce(*BOTH, code=4)
    assert AGAIN in reduce.log
    assert "next round" not in reduce.log


def _full(path, *pieces):
    raise OSError(errno.ENOSPC, "no space left")
