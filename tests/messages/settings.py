"""Of settings: a config file, flags and environment variables with something wrong in them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from streammoe.configuration import load_settings

BASE = """
source = { kind = "file", path = "data.csv" }
schema = { target = "y" }
"""


def _flags(*flags: str, config: str = BASE) -> Callable[[Path], object]:
    """Return a case of a config file and flags."""
    return lambda folder: _load(folder, config.encode(), flags=flags)


def _text(config: str) -> Callable[[Path], object]:
    """Return a case of a whole config file."""
    return lambda folder: _load(folder, config.encode())


def _variable(name: str, value: str) -> Callable[[Path], object]:
    """Return a case of an environment variable."""
    return lambda folder: _load(folder, BASE.encode(), environment={name: value})


def _load(
    folder: Path, config: bytes, *, flags: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> object:
    path = folder / "config.toml"
    path.write_bytes(config)
    return load_settings(path, overrides=flags, environment=environment or {})


def _at(name: str) -> Callable[[Path], object]:
    """Return a case of a path that is no config file."""

    def load(folder: Path) -> object:
        (folder / "folder").mkdir()
        (folder / "file").touch()
        (folder / "loop").symlink_to("loop")
        return load_settings(folder / name, environment={})

    return load


_WRONG_FLAGS = (
    # Numbers
    "model.degree=abc",
    "model.degree=2.5",
    "model.degree=-1",
    "model.degree=true",
    "model.degree=[1]",
    "model.degree={a = 1}",
    "model.degree=",
    "model.n_experts=none",
    "model.n_experts=0",
    "model.n_experts=2.0",
    "model.n_experts=many",
    "model.n_experts=[]",
    "model.warmup=lots",
    "model.warmup=-5",
    "model.range_factor=nan",
    "model.range_factor=inf",
    "model.range_factor=-1e6",
    "model.range_factor=a million",
    "model.seed=x",
    "model.top_k=0",
    "model.batch_size=half",
    "model.max_levels=no",
    "checkpoint.every_events=0",
    "checkpoint.every_seconds=soon",
    "checkpoint.keep=0",
    "checkpoint.retry_seconds=-1",
    "dead_letters.max_ratio=2",
    "dead_letters.max_ratio=50%",
    "dead_letters.max_ratio=0",
    "metrics.port=70000",
    "metrics.port=http",
    "metrics.port=-1",
    "metrics.alive_seconds=0",
    "source.block_bytes=1",
    "source.max_record_bytes=1 MB",
    # Yes and no
    "metrics.enabled=yes",
    "metrics.enabled=1",
    "model.standardize=on",
    "source.follow=maybe",
    "schema.late_columns=0",
    # One of a few
    "model.kind=tree",
    "model.kind=1",
    "model.expert=poisson",
    "model.bound=loose",
    "model.averaging=all",
    "model.drift=adwin",
    "model.covariance=round",
    "model.reseed=always",
    "guard.on_jump=panic",
    "source.kind=kafak",
    "source.kind=7",
    "source.format=xls",
    "source.on_truncate=weep",
    "predictions.kind=paper",
    "dead_letters.kind=none",
    # Tables and lists
    "model.schedule=power",
    "model.schedule={ kind = 'linear' }",
    "model.schedule={ kind = 'constant' }",
    "model.schedule={ kind = 'constant', gamma = 'x' }",
    "model.schedule={ kind = 'constant', gamma = 1.5 }",
    "model.schedule={ kind = 'power', alpha = 0.1 }",
    "model.schedule={ kind = 'power', beta = 1 }",
    "schema.target=",
    "schema.target=3",
    "schema.target=[]",
    "schema.target=[1, 2]",
    "schema.target=['y', 'y']",
    "schema.features=a",
    "schema.features=[]",
    "schema.features=['a', 2]",
    "schema.features=['y']",
    "schema.ignore=id",
    "schema.categorical=['y']",
    "schema.weight=['w']",
    "schema.timestamps=true",
    "labels.key=7",
    # Names and paths
    "model.n_expert=2",
    "modell.n_experts=2",
    "model.schedule.gama=2",
    "colour.red=1",
    "model=3",
    "n_experts=3",
    "model.n_experts",
    "=3",
    ".=3",
    "source.path=",
    "source.path=1",
    "checkpoint.dir=",
    "checkpoint.dir=['a']",
    "predictions.path=rows.jsonl",
    "dead_letters.path=data.csv",
    "dead_letters.path=state/lock",
    "metrics.host=",
    "metrics.tls_keyfile=key.pem",
    "metrics.username=me",
)
_WRONG_FILES = {
    "nothing in it": "",
    "no source": 'schema.target = "y"',
    "no target": 'source = { kind = "file", path = "data.csv" }',
    "no kind": 'source.path = "data.csv"\nschema.target = "y"',
    "a section that is no table": BASE + "model = 3",
    "a section that is a list": BASE + "[[model]]\nn_experts = 2",
    "an empty list of sources": 'source = []\nschema.target = "y"',
    "a source that is text": 'source = "data.csv"\nschema.target = "y"',
    "sources of which one is wrong": '[[source]]\nkind = "file"\npath = "a.csv"\n[[source]]\nkind = "fil"\n'
    '[schema]\ntarget = "y"',
    "several mistakes": BASE + '[model]\nn_experts = "x"\ndegre = 2\n[metrics]\nport = "p"',
    "text that is no TOML": "this is no TOML",
    "a quote that is left open": 'schema.target = "y',
    "a huge number": "model.n_experts = " + "9" * 5000,
    "tables within tables": "a = " + "[" * 5000,
    "a NUL in a name": BASE + 'checkpoint.dir = "a\\u0000b"',
    "a date": BASE + "model.seed = 2026-01-01",
}
_WRONG_VARIABLES = {
    "STREAMMOE_MODEL__DEGREE": "abc",
    "STREAMMOE_MODEL__N_EXPERTS": "",
    "STREAMMOE_MODEL__N_EXPERT": "2",
    "STREAMMOE_METRICS__PORT": "9464/tcp",
    "STREAMMOE_METRICS__ENABLED": "False",
    "STREAMMOE_SCHEMA__FEATURES": "a,b",
    "STREAMMOE___": "1",
}

CASES = {
    **{f"--set {flag}": _flags(flag) for flag in _WRONG_FLAGS},
    **{f"a file: {name}": _text(config) for name, config in _WRONG_FILES.items()},
    **{f"{name}={value}": _variable(name, value) for name, value in _WRONG_VARIABLES.items()},
    "a binary file": lambda folder: _load(folder, bytes(range(256))),
    "a file in UTF-16": lambda folder: _load(folder, BASE.encode("utf-16")),
    "a path that leads nowhere": _at("missing.toml"),
    "a folder": _at("folder"),
    "a file as a folder": _at("file/config.toml"),
    "a link to itself": _at("loop"),
}
