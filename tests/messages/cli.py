"""Of the command line: wrong arguments, and files that are not what they should be.

What click, TOML's and Parquet's readers say in their own words is left out: it changes with their versions.
"""

import contextlib
import gzip
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from streammoe import MoERegressor
from streammoe.commands import main

CONFIG = """
source = { kind = "file", path = "data.csv" }
schema = { target = "y" }
model = { n_experts = 1, warmup = 20 }
metrics.enabled = false
"""


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    """Undo what a command does to its process's logging, which here is that of the tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _prepare() -> None:
    """Write files of every kind, right and wrong, into the current folder."""
    rows = "".join(f"{i % 7},{i % 11},{i % 5}\n" for i in range(60))
    Path("data.csv").write_text("a,b,y\n" + rows)
    Path("header.csv").write_text("a,b,y\n")
    Path("mostly-bad.csv").write_text("a,b,y\n" + rows + "?,1,2\n" * 90)
    Path("twice.csv").write_text("a,a,y\n1,2,3\n")
    for name in ("empty.csv", "empty.jsonl", "file"):
        Path(name).touch()
    for name in ("binary.csv", "binary.jsonl", "binary.csv.gz", "binary.toml", "binary.model"):
        Path(name).write_bytes(bytes(range(256)) * 8)
    Path("cut.csv.gz").write_bytes(gzip.compress(Path("data.csv").read_bytes(), mtime=0)[:-9])
    Path("utf-16.csv").write_bytes("a,y\n1,2\n".encode("utf-16"))
    Path("letters.jsonl").write_text("no letter\n")
    Path("loop.csv").symlink_to("loop.csv")
    Path("folder").mkdir()
    Path("config.toml").write_text(CONFIG)
    model = MoERegressor(n_experts=2, warmup=0)
    model.learn_array(np.zeros((3, 1)), np.zeros(3), feature_names=["other"])
    model.save("other.model")


def _call(*arguments: str, before: tuple[str, ...] = ()) -> Callable[[Path], str]:
    """Return a case of a command in a folder with files of every kind, after one that ends well."""

    def call(folder: Path) -> str:
        with contextlib.chdir(folder), _logging_as_before():
            _prepare()
            if before:
                assert CliRunner().invoke(main, before).exit_code == 0
            done = CliRunner().invoke(main, arguments, env={"COLUMNS": "120"}, prog_name="streammoe")
        lines = [line for line in done.output.splitlines() if line.strip() and not re.match(r"\d{4}-\d\d-\d\d ", line)]
        return "\n".join([f"exit {done.exit_code}", *lines])

    return call


_RUN = ("run", "config.toml")
_WRONG = (
    # Settings
    "run config.toml --set model.degree=abc",
    "demo --dir file",
    "demo --dir file/demo",
    # Configurations
    "run missing.toml",
    "run folder",
    "run binary.toml",
    "check-config missing.toml",
    "check-config data.csv",
    "rollback missing",
    "rollback file",
    "rollback folder",
    "rollback folder --set checkpoint.dir=state",
    # Sources
    *(
        f"run config.toml --set source.path={path}"
        for path in (
            "missing.csv",
            "folder",
            "missing/*.csv",
            "file/data.csv",
            "loop.csv",
            "file",
            "twice.csv",
            "mostly-bad.csv",
            "binary.csv",
            "binary.jsonl",
            "binary.csv.gz",
            "cut.csv.gz",
            "utf-16.csv",
        )
    ),
    "run config.toml --set schema.target=z",
    "run config.toml --set source.follow=true --set source.path=binary.csv.gz",
    # What a daemon writes, and the port
    "run config.toml --set checkpoint.dir=file",
    "run config.toml --set checkpoint.dir=file/state",
    "run config.toml --set dead_letters.path=folder",
    "run config.toml --set dead_letters.path=file/letters.jsonl",
    "run config.toml --set predictions.kind=file --set predictions.path=folder",
    "run config.toml --set predictions.kind=file --set predictions.path=file/rows.jsonl",
    "run config.toml --set predictions.kind=file --set predictions.path=rows.txt",
    "run config.toml --set metrics.enabled=true --set metrics.host=192.0.2.1",
    *(
        f"run config.toml --set metrics.enabled=true --set metrics.port=0 {flags}"
        for flags in (
            "--set metrics.tls_certfile=missing.pem --set metrics.tls_keyfile=missing.pem",
            "--set metrics.tls_certfile=data.csv --set metrics.tls_keyfile=data.csv",
            "--set metrics.bearer_token_file=missing",
            "--set metrics.bearer_token_file=file",
        )
    ),
    # Models and checkpoints
    "run config.toml --from-model missing.model",
    "run config.toml --from-model folder",
    "run config.toml --from-model binary.model",
    "run config.toml --from-model file",
    "run config.toml --from-model other.model",
    "inspect missing",
    "inspect folder",
    "inspect data.csv",
    "inspect file",
    # Evaluations and fits
    *(f"evaluate {path} --target y" for path in ("missing.csv", "folder", "file", "empty.csv", "header.csv", "-")),
    *(f"evaluate {path} --target y" for path in ("binary.csv", "cut.csv.gz", "mostly-bad.csv")),
    "evaluate data.csv --target z",
    "evaluate data.csv --target a --classify --expert laplace",
    "evaluate data.csv --target y --schedule linear:1",
    "evaluate data.csv --target y --schedule power:x",
    "evaluate data.csv --target y --schedule power:0.6:1:2:3",
    "evaluate data.csv --target y --n-experts few",
    "evaluate data.csv --target y --against LinearRegression",
    "evaluate data.csv --target y --plot out.txt",
    "evaluate data.csv --target y --html missing/out.html",
    "evaluate data.csv --target y --set metrics.port=1",
    "evaluate data.csv --target y --format xls",
    "fit data.csv",
    "fit missing.csv --target y",
    "fit data.csv --target y --method magic",
    "fit data.csv --target y --rounds 0",
    "fit data.csv --target y --tolerance -1",
    "fit data.csv --target y --method mm --step 2",
    "fit data.csv --target y --out folder",
    "fit data.csv --target y --out missing/m.model",
    "fit data.csv --target y --trace missing/trace.csv",
    "fit data.csv --target y --config missing.toml",
    "fit data.csv --target y --from-model binary.model",
    "fit mostly-bad.csv --target y",
    # Dead letters, and the way to a topic
    "dead-letters missing.jsonl",
    "dead-letters folder",
    "dead-letters binary.csv",
    "dead-letters letters.jsonl --dry-run",
    "dead-letters letters.jsonl --replay missing.toml",
    "dead-letters letters.jsonl --replay config.toml",
    "produce missing.csv --topic t --bootstrap-servers 127.0.0.1:1",
    "produce folder --topic t --bootstrap-servers 127.0.0.1:1",
    "produce data.csv --topic t --config missing.toml",
    "produce data.csv --topic t --config binary.toml",
)

CASES = {
    **{command: _call(*command.split()) for command in _WRONG},
    "run config.toml --from-model other.model, again": _call(*_RUN, "--from-model", "other.model", before=_RUN),
    "run config.toml --set model.n_experts=2, again": _call(*_RUN, "--set", "model.n_experts=2", before=_RUN),
    "rollback state, with one checkpoint": _call("rollback", "state", before=_RUN),
    "rollback state --to 7": _call("rollback", "state", "--to", "7", before=_RUN),
}
