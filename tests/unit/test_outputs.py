"""No command destroys what it reads, under whatever name, or anything that is not a file."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe import MoERegressor
from streammoe.commands import main
from streammoe.errors import CheckpointError
from streammoe.persistence import FolderLock
from streammoe.persistence.durable import replace

pytestmark = pytest.mark.usefixtures("logging_as_before")

CONFIG = """
source = { kind = "file", path = "data.csv" }
schema.target = "y"
model = { n_experts = 1, warmup = 20 }
metrics = { enabled = false, password = { file = "secret" }, username = "me" }
"""
NAMES = {
    "itself": lambda path, link: path,
    "another spelling": lambda path, link: f"../{Path.cwd().name}/{path}",
    "a symbolic link": lambda path, link: Path(link).symlink_to(path) or link,
    "a hard link": lambda path, link: os.link(path, link) or link,
}
FIT = "fit data.csv --config config.toml --from-model start.model"
CALLS = {
    f"{FIT} --out": ["data.csv", "config.toml", "start.model"],
    "fit data.csv data2.csv --target y --workers 2 --out": ["data2.csv"],
    "fit d*.csv --target y --out": ["data2.csv"],
    "run config.toml --from-model start.model --set predictions.kind=file --set predictions.path=": [
        "data.csv",
        "config.toml",
        "start.model",
        "secret",
        "letters.jsonl",
    ],
    "run config.toml --from-model start.model --set dead_letters.path=": ["data.csv", "config.toml", "start.model"],
    "check-config config.toml --set dead_letters.path=": ["data.csv", "secret"],
    "dead-letters config.toml --out": ["data.csv", "config.toml", "secret", "letters.jsonl"],
}
"""Commands up to the output, and what they read or write besides."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data.csv", "data2.csv"):
        Path(name).write_text("a,y\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(60)))
    Path("config.toml").write_text(CONFIG + 'dead_letters.path = "letters.jsonl"\n')
    Path("secret").write_text("secret")
    Path("letters.jsonl").write_text("")
    Path("other").write_text("")
    model = MoERegressor(n_experts=1, warmup=20)
    model.learn_array(np.arange(30.0)[:, None] % 7, np.arange(30.0) % 5, feature_names=["a"])
    model.save("start.model")


def contents():
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for at, call in enumerate(CALLS) for name in (list(NAMES) if at == 0 else [list(NAMES)[at % 4]])],
)
def test_an_output_is_never_what_is_read_or_written_besides(call, name):
    for place in CALLS[call]:
        output = NAMES[name](place, "link.jsonl")
        before = contents()
        end = "" if call.endswith("=") else " "
        done = CliRunner().invoke(main, f"{call}{end}{output}".split())
        assert done.exit_code == 2, (place, done.output)
        assert contents() == before
        said = " ".join(done.output.split())
        assert repr(output) in said
        assert place in said or "d*.csv" in said
        if output.startswith("link"):
            Path(output).unlink()


def test_no_output_replaces_a_checkpoint_of_any_daemon():
    run = CliRunner().invoke(main, ["run", "config.toml", "--set", "checkpoint.dir=elsewhere"])
    (checkpoint,) = map(str, Path("elsewhere").glob("checkpoint-*"))
    before = Path(checkpoint).read_bytes()
    Path("link.model").symlink_to(checkpoint)
    for output in (checkpoint, "link.model", "elsewhere/lock", "elsewhere/checkpoint-999999999999.safetensors"):
        done = CliRunner().invoke(main, f"{FIT} --out {output}".split())
        assert (run.exit_code, done.exit_code, "reserved" in done.output) == (0, 2, True), output
    assert Path(checkpoint).read_bytes() == before
    assert {path.name for path in Path("elsewhere").iterdir()} == {Path(checkpoint).name, "lock", "status.json"}
    assert CliRunner().invoke(main, f"{FIT} --out elsewhere/new.model".split()).exit_code == 0


def test_only_a_regular_file_is_replaced_and_a_link_to_one_stays():
    os.mkfifo("pipe")
    Path("to-a-device").symlink_to("/dev/null")
    for path in ("pipe", "to-a-device", "/dev/full"):
        with pytest.raises(OSError, match="not a regular file") as failed:
            replace(Path(path), b"new")
        assert (failed.value.errno, failed.value.filename) == (errno.EINVAL, path)
        assert not Path(path).is_file()
        done = CliRunner().invoke(main, ["fit", "data.csv", "--target", "y", "--out", path])
        assert (done.exit_code, "not a regular file" in done.output) == (2, True)
    Path("folder").mkdir()
    Path("folder", "link").symlink_to("../other")
    replace(Path("folder", "link"), b"new")
    assert (Path("folder", "link").readlink(), Path("other").read_bytes()) == (Path("../other"), b"new")
    assert [path.name for path in Path("folder").iterdir()] == ["link"]


def test_a_file_of_somebody_else_is_not_taken_for_the_lock():
    Path("state").mkdir()
    Path("state", "lock").write_text("mine")
    with pytest.raises(CheckpointError, match="something else than the lock"):
        FolderLock("state")
    assert Path("state", "lock").read_text() == "mine"
