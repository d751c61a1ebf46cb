"""Of settings: a config file, flags and environment variables with something wrong in them."""

from streammoe.configuration import load_settings

BASE = """
source = { kind = "file", path = "data.csv" }
schema = { target = "y" }
"""


def _case(config=BASE, *, flags=(), environment=None):
    """Return a case of a config file, flags and environment variables."""

    def load(folder):
        (folder / "config.toml").write_bytes(config if isinstance(config, bytes) else config.encode())
        return load_settings(folder / "config.toml", overrides=flags, environment=environment or {})

    return load


def _at(name):
    """Return a case of a path that is no config file."""

    def load(folder):
        (folder / "folder").mkdir()
        (folder / "file").touch()
        (folder / "loop").symlink_to("loop")
        return load_settings(folder / name, environment={})

    return load


_WRONG_VALUES = {
    "model.degree": ("abc", "2.5", "-1", "true", "[1]", "{a = 1}", ""),
    "model.n_experts": ("none", "0", "2.0", "many", "[]"),
    "model.warmup": ("lots", "-5"),
    "model.range_factor": ("nan", "inf", "-1e6", "a million"),
    "model.schedule": (
        *("power", "{ kind = 'linear' }", "{ kind = 'constant' }", "{ kind = 'constant', gamma = 'x' }"),
        *("{ kind = 'constant', gamma = 1.5 }", "{ kind = 'power', alpha = 0.1 }", "{ kind = 'power', beta = 1 }"),
    ),
    "dead_letters.max_ratio": ("2", "50%", "0"),
    "metrics.port": ("70000", "http", "-1"),
    "schema.target": ("", "3", "[]", "[1, 2]", "['y', 'y']"),
    "schema.features": ("a", "[]", "['a', 2]", "['y']"),
}
_WRONG_FLAGS = (
    *(f"{name}={value}" for name, values in _WRONG_VALUES.items() for value in values),
    # Numbers
    *("model.seed=x", "model.top_k=0", "model.batch_size=half", "model.max_levels=no", "checkpoint.every_events=0"),
    *("checkpoint.every_seconds=soon", "checkpoint.keep=0", "checkpoint.retry_seconds=-1", "metrics.alive_seconds=0"),
    *("source.block_bytes=1", "source.max_record_bytes=1 MB"),
    # Yes and no
    *("metrics.enabled=yes", "metrics.enabled=1", "model.standardize=on", "source.follow=maybe"),
    "schema.late_columns=0",
    # One of a few
    *("model.kind=tree", "model.kind=1", "model.expert=poisson", "model.bound=loose", "model.averaging=all"),
    *("model.drift=adwin", "model.covariance=round", "model.reseed=always", "guard.on_jump=panic"),
    *("source.kind=kafak", "source.kind=7", "source.format=xls", "source.on_truncate=weep"),
    *("predictions.kind=paper", "dead_letters.kind=none"),
    # Lists
    *("schema.ignore=id", "schema.categorical=['y']", "schema.weight=['w']", "schema.timestamps=true", "labels.key=7"),
    # Names and paths
    *("model.n_expert=2", "modell.n_experts=2", "model.schedule.gama=2", "colour.red=1", "model=3", "n_experts=3"),
    *("model.n_experts", "=3", ".=3", "source.path=", "source.path=1", "checkpoint.dir=", "checkpoint.dir=['a']"),
    *("predictions.path=rows.jsonl", "dead_letters.path=data.csv", "dead_letters.path=state/lock", "metrics.host="),
    *("metrics.tls_keyfile=key.pem", "metrics.username=me"),
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
    **{f"--set {flag}": _case(flags=[flag]) for flag in _WRONG_FLAGS},
    **{f"a file: {name}": _case(config) for name, config in _WRONG_FILES.items()},
    **{f"{name}={value}": _case(environment={name: value}) for name, value in _WRONG_VARIABLES.items()},
    "a binary file": _case(bytes(range(256))),
    "a file in UTF-16": _case(BASE.encode("utf-16")),
    "a path that leads nowhere": _at("missing.toml"),
    "a folder": _at("folder"),
    "a file as a folder": _at("file/config.toml"),
    "a link to itself": _at("loop"),
}
