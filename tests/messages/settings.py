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
        (folder / "loop").symlink_to("loop")
        return load_settings(folder / name, environment={})

    return load


_WRONG_FLAGS = (
    # Numbers, which are judged alike under every name
    *(f"model.n_experts={value}" for value in ("none", "0", "2.0", "[]")),
    *("model.degree={a = 1}", "model.range_factor=nan", "model.range_factor=-1e6", "model.range_factor=a million"),
    *("dead_letters.max_ratio=2", "dead_letters.max_ratio=0", "source.block_bytes=1", "source.max_record_bytes=1 MB"),
    # Schedules
    *("model.schedule=linear", "model.schedule={ kind = 'linear' }", "model.schedule={ kind = 'constant' }"),
    *("model.schedule={ kind = 'constant', gamma = 1.5 }", "model.schedule={ kind = 'power', beta = 1 }"),
    # Yes and no, and one of a few
    *("metrics.enabled=yes", "model.kind=tree", "model.averaging=all", "model.expert.df=1"),
    *("model.expert={ kind = 'laplace', df = 3 }", "model.warmup=-1", "source.kind=kafak"),
    *("source.format=xls", "source.header=[1, 2]", "predictions.kind=paper"),
    *("source.encoding=utf-16", "source.encoding=latin-99"),
    *("source.skip_lines=-1", "source.record=a..b"),
    # Columns
    *(f"schema.target={value}" for value in ("", "[]", "[1, 2]", "['y', 'y']")),
    *(f"schema.features={value}" for value in ("a", "['a', 2]", "['y']")),
    *("schema.thousands=.", "schema.units={kg=0}", "schema.units={W=1, kW=1}", "schema.units={'5'=1}"),
    "schema.missing=[true]",
    *("schema.time_zone=Berlin", "schema.timestamps={t='d/m/Y'}", "schema.timestamps={t='%H:%M %Z'}"),
    *("schema.ignore=id", "schema.categorical=['y']", "schema.weight=['w']"),
    # Names and paths
    *("model.n_expert=2", "modell.n_experts=2", "model.schedule.gama=2", "colour.red=1", "model=3", "=3"),
    *("source.path=", "predictions.path=rows.jsonl", "dead_letters.path=data.csv", "dead_letters.path=state/lock"),
    *("metrics.tls_keyfile=key.pem", "metrics.username=me"),
    # A global model, and a challenger
    *("global.serve=best", "challenger.n_experts=0", "challenger.n_expert=2", "challenger.kind=classifier"),
    "challenger.n_experts=4",
)
_WRONG_TOGETHER = (
    # A column means one thing only
    *("schema.target=['y','z'] schema.features=['x','z']", "schema.ignore=['y']", "schema.weight=y"),
    *("schema.ignore=['i'] schema.weight=i schema.categorical=['i','a']", "labels.key=id schema.target=['z','id']"),
    "schema.weight=w schema.categorical=['a'] schema.timestamps=['t','a','w']",
    "schema.features=['x'] schema.categorical=['c'] schema.late_columns=true",
    # Settings that do not go together with the kind of the model or its noise
    "model.standardize=false model.prior_strength=0 model.warmup=0",
    *(f"model.kind=classifier model.expert{noise}" for noise in (".covariance=full", "=laplace")),
    "model.kind=classifier schema.target=['y','z']",
    "model.expert={kind='student_t',covariance='full'} schema.target=['y','z']",
    "model.classes=['a','b']",
    *(f"model.kind=classifier model.classes={some}" for some in ("['1',1]", "['a']", "[0.5,1]", "['','a']")),
    # Metrics and labels
    *("metrics.tls_certfile=a", "metrics.allowed_hosts=['a:9464']", "metrics.username=a:b metrics.password.file=b"),
    *(f"metrics.username=u metrics.password{secret}" for secret in (".file=a metrics.password.env=B", "=2_000_002")),
    *("labels.key=id source.format=csv", "labels.expire_events=5", "predictions.kind=file predictions.path=a.Parquet"),
    # Lags are those of inputs
    'schema.target=z model.lags={"size"=1,"inputs"=["z"]}',
    'schema.ignore=["b"] model.lags={"size"=1,"inputs"=["b"]}',
    'schema.weight=w model.lags={"size"=1,"inputs"=["w"]}',
    'schema.features=["a"] model.lags={"size"=1,"inputs"=["b"]}',
    "labels.key=id model.lags=1 challenger.lags=2",
    "model.lags={size=1,inputs=['y']} challenger.n_experts=2",
    "global.path=folder challenger.lags=2",
    # Several at once
    "labels.key=y labels.kye=x source.kind=no",
)
_WRONG_FILES = {
    "nothing in it": "",
    "no kind": 'source.path = "data.csv"\nschema.target = "y"',
    "a section that is no table": BASE + "model = 3",
    "several sources": '[[source]]\nkind = "file"\n[[source]]\nkind = "kafka"\n[schema]\ntarget = "y"',
    "a source that is text": 'source = "data.csv"\nschema.target = "y"',
    "several mistakes": BASE + '[model]\nn_experts = "x"\ndegre = 2\n[metrics]\nport = "p"',
    "a table twice": "[model.schedule]\n[model.schedule]",
    "a file where a folder must be": BASE + 'checkpoint.dir = "/dev/null"\n'
    'dead_letters.path = "/dev/null/a/b"\npredictions = { kind = "file", path = "/" }',
    "text that is no TOML": "this is no TOML",
    "a huge number": "model.n_experts = " + "9" * 5000,
    "tables within tables": "a = " + "[" * 5000,
    "a NUL in a name": BASE + 'checkpoint.dir = "a\\u0000b"',
}
_WRONG_VARIABLES = {
    "STREAMMOE_MODEL__N_EXPERT": "2",
    "STREAMMOE_SCHEMA__FEATURES": "a,b",
    "STREAMMOE___": "1",
}

CASES = {
    "lags of a category": _case(flags=["model.lags={size=2, inputs=['a']}", "schema.categorical=['a']"]),
    **{f"--set {flag}": _case(flags=[flag]) for flag in _WRONG_FLAGS},
    **{f"--set {flags}": _case(flags=flags.split()) for flags in _WRONG_TOGETHER},
    **{f"a file: {name}": _case(config) for name, config in _WRONG_FILES.items()},
    **{f"{name}={value}": _case(environment={name: value}) for name, value in _WRONG_VARIABLES.items()},
    "a binary file": _case(bytes(range(256))),
    "a global model and lags": _case(flags=["global.path=shared", "model.lags=2"]),
    "a path that leads nowhere": _at("missing.toml"),
    "a folder": _at("folder"),
    "a link to itself": _at("loop"),
}
