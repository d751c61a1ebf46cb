"""Of `streammoe.daemon` but for its server: guards, reload, a full disk."""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from streammoe import assembly
from streammoe.commands.promote import promote
from streammoe.configuration import extension, load_settings, settings_from
from streammoe.daemon.guards import BadRecordGuard
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.reload import Reload
from streammoe.daemon.signals import HangupFlag, StopFlag
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.scaleout.follower import GlobalFollower, GlobalReader
from streammoe.scaleout.global_model import Contained, save

_FULL = RetriableCheckpointError("the disk is full")


def _records(n, seed, jump):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    y = np.where(a > 0.0, b, -b) + 0.1 * rng.normal(size=n)
    if jump:
        y += jump * rng.choice([-1.0, 1.0], size=n)
    return b"".join(b'{"a":%.5f,"b":%.5f,"y":%.5f}\n' % row for row in zip(a, b, y, strict=True))


def _jump(on_jump, every_events=50):
    """A daemon whose loss jumps."""

    def jump(folder):
        (folder / "events.jsonl").write_bytes(_records(1_200, 0, 0.0) + _records(400, 1, 1e3))
        schedule = {"kind": "constant", "gamma": 0.05}
        tables = {
            "source": {"kind": "file", "path": str(folder / "events.jsonl"), "block_bytes": 4096},
            "schema": {"target": "y"},
            "model": {"n_experts": 2, "warmup": 100, "schedule": schedule},
            "checkpoint": {"dir": str(folder / "state"), "every_events": every_events, "every_seconds": 1e9},
            "metrics": {"enabled": False},
            "guard": {"on_jump": on_jump},
        }
        aside = folder / "state" / "set-aside"  # by itself it has a random name
        with (
            patch.object(assembly, "compile_kernels"),
            patch("tempfile.mkdtemp", side_effect=lambda **_: (aside.mkdir(), str(aside))[1]),
            patch("streammoe.daemon.guards.MIN_WINDOW", 100),
            assembly.open_daemon(settings_from(tables, "test")) as running,
        ):
            running.daemon.run(StopFlag())

    return jump


def _bad_records(latest, now):
    """A guard of a source that ends, after this many rejected records of an earlier run and of this one."""

    def judge(_):
        guard = BadRecordGuard(0.1, np.ones(latest, np.bool_))
        guard.judge(np.ones(now, np.bool_))
        guard.judge_end()

    return judge


def _reload(line):
    """SIGHUP after a line was added to the settings."""

    def reload(folder):
        path = folder / "config.toml"
        path.write_text('source = { kind = "file", path = "a.csv" }\nschema.target = "y"\n')

        def load():
            return load_settings(path, environment={})

        asked = Reload(HangupFlag(), load(), load, path)
        path.write_text(path.read_text() + line)

        asked.apply(lambda _, *, affects_events: None)

    return reload


def _saving_fails(folder):
    """A disk that is full for two attempts, and then, in another run, for good."""
    clock = [0.0]
    time = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds))
    with patch("streammoe.daemon.checkpoints.time", time):
        for outcomes in ([_FULL, _FULL, 1], _FULL):
            with patch.object(CheckpointStore, "save", side_effect=outcomes):
                _over({})(folder)


def _over(*models):
    """Starts with these settings of the model, one after the other, from the checkpoint that the last one has left."""

    def start(folder):
        (folder / "events.jsonl").write_bytes(_records(50, 0, 0.0))
        tables = {
            "source": {"kind": "file", "path": str(folder / "events.jsonl")},
            "schema": {"target": "y"},
            "checkpoint": {"dir": str(folder / "state"), "retry_seconds": 60.0},
            "metrics": {"enabled": False},
        }
        for model in models:
            given = settings_from({**tables, "model": model}, "test")
            with patch.object(assembly, "compile_kernels"), assembly.open_daemon(given) as running:
                running.daemon.run(StopFlag())

    return start


def _global(*, damaged=False, back=False, **arguments):
    """A daemon that looks for a global model, and may find the first version, or another thing."""

    def follow(folder):
        rows = np.random.default_rng(0).normal(size=(60, 3))
        model = MoERegressor(2, **{"warmup": 20, **arguments})
        model.learn_array(rows[:, :2], rows[:, 2], feature_names=["a", "b"])
        shared = CheckpointStore(folder / "shared")
        shared.folder.mkdir()
        save(shared, model, {"state": Contained(generation=7, n=60, state_digest="0" * 64, divergence=None)})
        reader, pipeline = GlobalReader(shared.folder), Pipeline(model, Schema(("y",)), PrequentialScores())
        follower = GlobalFollower(MoERegressor(2), reader, Metrics().live)
        path = shared.path(1)
        for act in ((path.unlink if back else None), None):
            if damaged:
                path.write_bytes(path.read_bytes()[:-1])
            reader.read_once()
            follower.after_batch(pipeline)
            if act is not None:
                act()

    return follow


_PLAIN = {"kind": "gaussian", "tail": np.inf}


def _challengers(folder):
    """Starts with one challenger, another one, after a promotion, with other settings than then, and without one."""
    (folder / "events.jsonl").write_bytes(_records(200, 0, 0.0))
    lines = []
    for option, promotes in ((2, False), (3, True), (3, False), (4, False), (0, False)):
        tables = {
            "source": {"kind": "file", "path": str(folder / "events.jsonl")},
            "schema": {"target": "y"},
            "model": {"n_experts": 3 if not option else 1, "warmup": 50, "hold": bool(option)},
            "checkpoint": {"dir": str(folder / "state")},
            "metrics": {"enabled": False},
            **({"challenger": {"n_experts": option, "hold": False}} if option else {}),
        }
        try:
            with (
                patch.object(assembly, "compile_kernels"),
                assembly.open_daemon(settings_from(tables, "test")) as found,
            ):
                found.daemon.run(StopFlag())
        except CheckpointError as error:
            lines.append(str(error))
        with (folder / "events.jsonl").open("ab") as file:
            file.write(_records(100, option, 0.0))
        with patch("streammoe.commands.promote.time_of_day", return_value="2026-11-28T17:02:11+00:00"):
            lines += promote(folder / "state") if promotes else []
    return "\n".join(lines)


CASES = {
    "challengers": _challengers,
    "a model without tails, and other settings": _over({"expert": _PLAIN, "drift": "off"}, {}),
    "a global model that is damaged": _global(damaged=True),
    "a global model whose versions go back": _global(back=True),
    "a global model of too few events": _global(warmup=100),
    "an extension that is not installed": lambda _: extension("missing"),
    "jump, alarm": _jump("alarm"),
    "jump, stop": _jump("stop"),
    "jump, stop without a checkpoint": _jump("stop", every_events=10**9),
    "bad records in a row": _bad_records(0, 1_000),
    "bad records up to the end, some of an earlier run": _bad_records(10, 10),
    "reload, applied": _reload("checkpoint.keep = 8\n"),
    "reload, unchanged": _reload(""),
    "reload, fixed settings": _reload("checkpoint.keep = 8\nmodel.seed = 3\nmetrics.port = 1\n"),
    "reload, limits lowered and raised": _reload("model.max_levels = 9\nschema.late_columns = true\n"),
    "reload, a limit raised": _reload("model.max_levels = 99\n"),
    "reload, another kind of model": _reload("model.kind = 'classifier'\n"),
    "reload, two problems": _reload("checkpoint.keep = 0\ncheckpoint.kep = 5\n"),
    "saving fails, works, fails for good": _saving_fails,
}
