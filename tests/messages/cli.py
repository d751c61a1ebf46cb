"""Of the command line: wrong arguments, and files that are not what they should be.

What click, TOML's and Parquet's readers say in their own words is left out: it changes with their versions.
"""

import contextlib
import gzip
import json
import re
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from click.testing import CliRunner

from streammoe import MoERegressor
from streammoe.commands import main
from streammoe.daemon.signals import StopFlag
from streammoe.errors import not_installed
from tests.unit.estimators.damages import quiet

CONFIG = """
source = { kind = "file", path = "data.csv" }
schema = { target = "y" }
model = { n_experts = 1, warmup = 20 }
metrics.enabled = false
"""

_LETTERS = [
    {
        "place": {"path": path, "offset": 6},
        "stage": "decode",
        "reason": "malformed",
        "detail": "bad",
        "record": "1,2",
        "format": "csv",
        "columns": ["a", column],
    }
    for path, column in (("data.csv", "y"), ("more.csv", "z"))
]


def _prepare():
    """Write files of every kind, right and wrong, into the current folder."""
    rows = "".join(f"{i % 7},{i % 11},{i % 5}\n" for i in range(60))
    Path("data.csv").write_text("a,b,y\n" + rows)
    Path("header.csv").write_text("a,b,y\n")
    Path("mostly-bad.csv").write_text("a,b,y\n" + rows + "x,1,2\n" * 90)
    Path("twice.csv").write_text("a,a,y\n1,2,3\n")
    for name in ("empty.csv", "empty.jsonl", "file"):
        Path(name).touch()
    for name in ("binary.csv", "binary.jsonl", "binary.csv.gz", "binary.toml", "binary.model"):
        Path(name).write_bytes(bytes(range(256)) * 8)
    Path("cut.csv.gz").write_bytes(gzip.compress(Path("data.csv").read_bytes(), mtime=0)[:-9])
    Path("scrambled.csv.gz").write_bytes(gzip.compress(b"a,b,y\n" + b"na,1,2\n" * 1500, mtime=0)[:-9])
    Path("utf-16.csv").write_bytes("a,y\n1,2\n".encode("utf-16"))
    Path("letters.jsonl").write_text("no letter\n")
    for name, entries in {"one": _LETTERS[:1], "two": _LETTERS}.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    Path("no-target.jsonl").write_text('{"a": 1}\n')
    Path("rejected.jsonl").write_text('what?\n{"a": ""}\n{"a": 1, "y": null}\n')
    Path("unlabelled.jsonl").write_text('{"a": 1, "y": null}\n{"a": 1}\n')
    Path("weightless.jsonl").write_text('{"a": 1, "y": 1, "w": 0}\n')
    Path("loop.csv").symlink_to("loop.csv")
    Path("folder").mkdir()
    Path("config.toml").write_text(CONFIG)
    Path("other.model").write_bytes(_model_of_other_columns())


@cache
def _model_of_other_columns():
    model = MoERegressor(n_experts=2, warmup=0, standardize=False)
    with quiet():
        model.learn_array(np.zeros((3, 1)), np.zeros(3), feature_names=["other"])
    model.save("other.model")
    return Path("other.model").read_bytes()


def _stopped():
    """Return a flag that says from the beginning that a stop was requested."""
    flag = StopFlag()
    flag.requested = True
    return contextlib.nullcontext(flag)


def _call(*arguments, before=(), stop=contextlib.nullcontext):
    """Return a case of a command in a folder with files of every kind, after one that ends well."""

    def call(folder):
        # A command sets up logging for its process, which here is that of the tests.
        with contextlib.chdir(folder), patch("logging.basicConfig"), patch("streammoe.assembly.compile_kernels"):
            _prepare()
            if before:
                assert CliRunner().invoke(main, before).exit_code == 0
            with stop():
                done = CliRunner().invoke(main, arguments, env={"COLUMNS": "120"}, prog_name="streammoe")
        lines = [line for line in done.output.splitlines() if line.strip() and not re.match(r"\d{4}-\d\d-\d\d ", line)]
        return "\n".join([f"exit {done.exit_code}", *lines])

    return call


def _is_stopped():
    return patch("streammoe.daemon.signals.StopFlag", _stopped)


_RUN = ("run", "config.toml")
_WRONG = {
    "run": ("missing.toml", "folder", "binary.toml"),
    "check-config": ("data.csv",),
    "demo --dir": ("file",),
    **dict.fromkeys(("rollback", "promote"), ("missing", "file", "folder")),
    "backup": ("missing there", "folder there"),
    "restore": ("missing state", "file state"),
    "inspect": ("missing", "folder", "file"),
    "inspect other.model --plot": ("folder/there/model.svg",),
    "card": ("missing",),
    "run config.toml --from-model": ("missing.model", "other.model"),
    "run config.toml --set": (
        *("schema.target=z", "schema.target=a,y", "source.follow=true --set source.path=binary.csv.gz"),
        "checkpoint.dir=file",
        *("dead_letters.path=folder", "dead_letters.path=config.toml", "dead_letters.path=data.csv"),
        *(f"predictions.kind=file --set predictions.path={path}" for path in ("file/rows.jsonl", "rows.csv")),
        "metrics.enabled=true --set metrics.host=192.0.2.1",
    ),
    "run config.toml --set source.path=": (
        *("missing.csv", "folder", "loop.csv", "file", "twice.csv", "mostly-bad.csv", "binary.csv", "binary.jsonl"),
        *("binary.csv.gz", "cut.csv.gz", "scrambled.csv.gz", "utf-16.csv", "no-target.jsonl"),
    ),
    "run config.toml --set metrics.enabled=true --set metrics.port=0 --set": (
        *(f"metrics.tls_certfile={name} --set metrics.tls_keyfile={name}" for name in ("missing.pem", "data.csv")),
        *(f"metrics.username=u --set metrics.password.file={name}" for name in ("missing", "file")),
    ),
    "evaluate": (
        *(f"{path} --target y" for path in ("empty.csv", "header.csv", "-")),
        *(f"{path} --target y" for path in ("cut.csv.gz", "mostly-bad.csv")),
        *(
            f"{path}.jsonl --target y --set schema.weight=w"
            for path in ("no-target", "rejected", "unlabelled", "weightless")
        ),
    ),
    "evaluate data.csv --target": ("a --classify --set model.expert=laplace",),
    "evaluate data.csv --target y": (
        *("--set model.schedule=linear", "--set model.schedule=power --set model.schedule.alpha=x"),
        *("--against LinearRegression", "--set metrics.port=1", "--vs model.kind=classifier --vs metrics.port=1"),
        *("--vs model.kind=classifier", "--grid model.n_experts", "--vs model.n_experts=2 --against river:X"),
    ),
    "fit": ("data.csv", "mostly-bad.csv --target y", "data.csv twice.csv --target y", "--workers 2 - --target y"),
    "fit data.csv --target y": (
        *("--out folder", "--out missing/m.model"),
        *("--out data.csv", "--out /dev/full", "--out /proc/model"),
        "--from-model other.model --out other.model",
    ),
    "dead-letters": ("missing.toml",),
    "dead-letters config.toml --set": ("dead_letters.path=missing.jsonl", "dead_letters.path=letters.jsonl"),
    "dead-letters config.toml --out": ("missing/out.csv", "out.txt", "config.toml"),
    "dead-letters config.toml --set dead_letters.path=one.jsonl --out": (
        *("out.jsonl", "out.csv --reason poison", "out.csv"),
        "out.csv --set dead_letters.path=two.jsonl",
    ),
    "reduce": (
        *("missing --out out", "file --out out", "missing", "folder --out folder"),
        *(
            "folder --out s3://me:word@bucket",
            "s3://me:word@bucket --out out",
            "folder ./folder --out out",
        ),
        *(
            "folder --out file",
            "folder --out out --metrics-port 0",
            "folder --out out --watch --metrics-port 0 --every 0",
        ),
        "folder --out out --watch --metrics-host 192.0.2.1 --metrics-port 1",
    ),
}
"""Beginnings of commands, and their ends."""
_COMMANDS = [f"{begin}{'' if begin.endswith('=') else ' '}{end}" for begin, ends in _WRONG.items() for end in ends]


def _without_an_extra(_):
    requires = ["numpy>=2", "kafka-python[crc32c,zstd]>=3; extra == 'kafka'"]
    with patch("sys.executable", "/opt/moe/bin/python"), patch("importlib.metadata.requires", lambda _: requires):
        raise not_installed('source.kind = "kafka"', "kafka-python", "kafka")


CASES = {
    "a package is missing": _without_an_extra,
    **{command: _call(*command.split()) for command in _COMMANDS},
    "run config.toml --from-model other.model, again": _call(*_RUN, "--from-model", "other.model", before=_RUN),
    **{
        f"run config.toml --set {flag}, again": _call(*_RUN, "--set", flag, before=_RUN)
        for flag in ("model.drift=off", "model.averaging=none", "model.max_levels=9", "schema.weight=b")
    },
    "run config.toml --set model.n_experts=2, again": _call(*_RUN, "--set", "model.n_experts=2", before=_RUN),
    "rollback state, with one checkpoint": _call("rollback", "state", before=_RUN),
    "promote state, without a challenger": _call("promote", "state", before=_RUN),
    "evaluate, stopped at once": _call("evaluate", "data.csv", "--target", "y", stop=_is_stopped),
    "fit, stopped at once": _call("fit", "data.csv", "--target", "y", stop=_is_stopped),
    "rollback state --to 7": _call("rollback", "state", "--to", "7", before=_RUN),
}
