import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe.schedules import Constant, Power
from streammoe.settings import (
    SCHEDULE_TABLES,
    Kinds,
    Labels,
    Model,
    NoPredictions,
    PredictionFile,
    Predictions,
    Settings,
    learning_defaults,
    load,
    without_effect,
)

CONFIG = Path(__file__).parents[2] / "config"


class FileSettings(BaseModel):
    """Stands in for what a connector brings; lenient on purpose, since `load` must not rely on its strictness."""

    kind: Literal["file"]
    path: str
    format: str = "auto"
    api_token: str = ""


class QueueSettings(BaseModel):
    kind: Literal["queue"]
    topics: list[str] | str


SOURCES: dict[str, type[BaseModel]] = {"file": FileSettings, "queue": QueueSettings}
MINIMAL = '[source]\nkind = "file"\npath = "a.csv"\n[schema]\ntarget = "y"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("config.toml")
    path.write_text(MINIMAL)
    return path


def read(path: Path, *flags: str, **environment: str) -> Settings:
    return load(path, kinds=Kinds(SOURCES), environment=environment, overrides=flags)


def problems(path: Path, *flags: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        read(path, *flags, **environment)
    return refused.value.problems


def places(path: Path, *flags: str, **environment: str) -> list[str]:
    """The settings that are named by what is wrong, each problem by one; what is said of them is approved elsewhere."""
    return [problem.partition(":")[0] for problem in problems(path, *flags, **environment)]


class TestDefaults:
    def test_a_minimal_file_takes_every_default(self, config: Path) -> None:
        settings = read(config)
        assert settings.sources[0] == FileSettings(kind="file", path="a.csv")
        assert settings.schema.target == "y"
        assert settings.model == Model()
        assert settings.model.schedule == Power(0.6)
        assert settings.model.warmup is None

    def test_the_default_file_holds_every_setting_and_its_default(self) -> None:
        written = tomllib.loads((CONFIG / "default.toml").read_text())
        source = written.pop("source")
        sections = {name: hint for name, hint in Settings.__annotations__.items() if name != "sources"}
        assert set(written) == set(sections)
        for name, table in written.items():
            found = dict(table)
            if name == "model":  # what has a default for each kind is there as a comment, and tested below
                found["schedule"] = {"alpha": 0.6, **found["schedule"]}
                found["prior_strength"] = 0.1
            assert found == defaults(section_model(name)), name

        connector = pytest.importorskip("streammoe_connectors.files.source").FileSource
        assert source == defaults(connector.Settings) | {"kind": "file"}

    def test_settings_without_default_are_there_as_comments(self, tmp_path: Path) -> None:
        text = (CONFIG / "default.toml").read_text()
        opened, count = re.subn(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
        assert count == 18
        opened = opened.replace('"regressor"', '"classifier"', 1).replace('kind = "none"', 'kind = "file"', 1)
        written = tomllib.loads(opened)
        assert written["source"].keys() - tomllib.loads(text)["source"].keys() == {"path"}
        path = tmp_path / "opened.toml"
        path.write_text(
            re.sub(
                r"^(delimiter|decimal|header|block_\w+|max_record_bytes|follow|on_truncate).*\n",
                "",
                opened,
                flags=re.MULTILINE,
            )
        )
        settings = read(path)
        assert (settings.schema.target, settings.schema.weight, settings.model.warmup) == ("y", "w", 400)
        assert settings.model.classes == ("no", "yes")
        assert settings.predictions == PredictionFile(kind="file", path="predictions.jsonl")
        assert settings.labels == Labels(key="id", expire_events=100_000, expire_seconds=3600.0)
        assert (settings.metrics.tls_certfile, settings.metrics.password_file) == ("cert.pem", "password")

    def test_every_setting_of_the_default_file_has_a_comment(self) -> None:
        for line in (CONFIG / "default.toml").read_text().splitlines():
            if " = " in line:
                assert re.search(r"\S\s+# \S", line), line


def section_model(name: str) -> type[BaseModel]:
    from streammoe import settings

    by_kind = {"predictions": "NoPredictions", "dead_letters": "DeadLetterFile"}
    model = getattr(settings, by_kind.get(name, Settings.__annotations__[name]))
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Defaults of a section as TOML would hold them; a required or empty (None) one cannot be there."""
    known = {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in model.model_fields.items()
        if not field.is_required()
    }
    plain = json.loads(model.model_construct(**known).model_dump_json())
    return {name: value for name, value in plain.items() if name in known and value is not None}


class TestPrecedence:
    def test_flag_over_environment_over_file_over_default(self, config: Path) -> None:
        config.write_text(MINIMAL + "[model]\nn_experts = 2\ndegree = 2\ngate_degree = 2\n")
        environment = {"STREAMMOE_MODEL__N_EXPERTS": "3", "STREAMMOE_MODEL__DEGREE": "3"}
        model = read(config, "model.n_experts=5", **environment).model
        assert (model.n_experts, model.degree, model.gate_degree, model.seed) == (5, 3, 2, 0)

    def test_the_last_flag_wins_and_variables_hold_sections_with_underscores(self, config: Path) -> None:
        assert read(config, "model.seed=1", "model.seed=2").model.seed == 2
        assert read(config, STREAMMOE_DEAD_LETTERS__MAX_RATIO="0.25").dead_letters.max_ratio == 0.25
        assert read(config, STREAMMOE_LOG_LEVEL="debug", OTHER__THING="1") == read(config)

    def test_values_are_toml_or_plain_text(self, config: Path) -> None:
        assert read(config, "schema.features=*").schema.features == "*"
        assert read(config, 'schema.features=["a", "b"]').schema.features == ("a", "b")
        for text in ("b/*.csv", "a=b", "", "1\nformat = 2", '"open', "no # comment"):
            assert vars(read(config, f"source.path={text}").sources[0])["path"] == text

    def test_part_of_the_schedule_can_be_overridden(self, config: Path) -> None:
        assert read(config, "model.schedule.alpha=0.7").model.schedule == Power(0.7)
        config.write_text(MINIMAL + "[model.schedule]\noffset = 3\n")
        assert read(config, "model.schedule.alpha=0.7").model.schedule == Power(0.7, offset=3.0)

    def test_a_whole_table_can_be_overridden(self, config: Path) -> None:
        config.write_text(MINIMAL + "[model.schedule]\nalpha = 0.7\n")
        settings = read(config, 'model.schedule={kind = "constant", gamma = 0.01}')
        assert settings.model.schedule == Constant(0.01)

    def test_the_kind_of_source_can_be_overridden(self, config: Path) -> None:
        config.write_text('[source]\nkind = "file"\n[schema]\ntarget = "y"\n')
        assert read(config, "source.kind=queue", "source.topics=clicks").sources[0] == QueueSettings(
            kind="queue", topics="clicks"
        )


SCHEMAS = {
    "": ["target"],
    "target = []": ["target"],
    'target = ["y", "y"]': ["target"],
    'target = ["y", 1]': ["target"],
    'target = "y"\nfeatures = "x"': ["features"],
    'target = "y"\nfeatures = ["x", "x"]': ["features"],
    'target = "y"\nfeatures = ["x", "y"]': ["features"],
    'target = ["y", "z"]\nfeatures = ["x", "z"]': ["features"],
    'target = "y"\nignore = ["y"]': ["ignore"],
    'target = "y"\nfeatures = ["x"]\nignore = ["x"]': ["ignore"],
    'target = "y"\nweight = "y"': ["weight"],
    'target = "y"\nfeatures = ["x", "w"]\nweight = "w"\ncategorical = ["x", "y"]': ["weight", "categorical"],
    'target = "y"\nignore = ["i"]\nweight = "i"\ncategorical = ["i", "a"]': ["weight", "categorical"],
    'target = "y"\nweight = "w"\ncategorical = ["a"]\ntimestamps = ["t", "a", "w"]': ["timestamps"],
    'target = "y"\ncategorical = ["a"]\ntimestamps = ["t", "a"]': ["timestamps"],
    'target = "y"\nfeatures = ["x"]\ncategorical = ["c"]\nlate_columns = true': ["categorical", "late_columns"],
}
"""Columns that mean two things, and the settings of [schema] that are named for it."""

RULES: dict[str, list[str]] = {
    # One value alone
    "model.n_expert=4": ["model.n_expert"],
    "model.n_experts=0": ["model.n_experts"],
    "model.n_experts=true": ["model.n_experts"],
    "model.max_experts=1": ["model.max_experts"],
    "model.prior_strength=inf": ["model.prior_strength"],
    "model.degrees_of_freedom=2": ["model.degrees_of_freedom"],
    "model.schedule.alpha=0.3": ["model.schedule.alpha"],
    "model.schedule.kind=cosine": ["model.schedule.kind"],
    "model.schedule.kind=constant": ["model.schedule.gamma"],
    "model.schedule=power": ["model.schedule"],
    "predictions.interval=1": ["predictions.interval"],
    # Models, and what does not go together with their kind or noise
    "model.warmup=0": ["model.warmup"],
    "model.standardize=false model.prior_strength=0 model.warmup=0": ["model.warmup"],
    "model.kind=classifier model.covariance=full": ["model.covariance"],
    "model.kind=classifier model.expert=laplace": ["model.expert"],
    "model.kind=classifier schema.target=['y','z']": ["schema.target"],
    "model.expert=laplace schema.target=['y','z']": ["schema.target"],
    "model.covariance=full": ["model.covariance"],
    "model.covariance=full model.expert=student_t schema.target=['y','z']": ["model.covariance"],
    "model.classes=['a','b']": ["model.classes"],
    "model.kind=classifier model.classes=['a','a']": ["model.classes"],
    "model.kind=classifier model.classes=['1',1]": ["model.classes"],
    "model.kind=classifier model.classes=['a']": ["model.classes"],
    "model.kind=classifier model.classes=[0.5,1]": ["model.classes"],
    "model.kind=classifier model.classes=['','a']": ["model.classes"],
    # Predictions and sources
    "predictions.kind=file": ["predictions.path"],
    "predictions.kind=file predictions.path=out.txt": ["predictions.path"],
    "predictions.path=rows.jsonl": ["predictions.kind"],
    "source.kind=kafak": ["source.kind"],
    "source.kind=[1]": ["source.kind"],
    "source.formatt=1": ["source.formatt"],
    "source.kind=queue source.topics=['a',1]": ["source.topics.1", "source.topics", "source.path"],
    # Metrics
    "metrics.tls_certfile=a": ["metrics.tls_keyfile"],
    "metrics.tls_keyfile=a": ["metrics.tls_keyfile"],
    "metrics.allowed_hosts=a": ["metrics.allowed_hosts"],
    "metrics.allowed_hosts=['a:9464']": ["metrics.allowed_hosts"],
    "metrics.username=a": ["metrics.password_env"],
    "metrics.username=a:b metrics.password_file=b": ["metrics.username"],
    "metrics.password=hunter2": ["metrics.password_env"],
    "metrics.username=a metrics.password=hunter2 metrics.password_file=b": ["metrics.password_env"],
    "metrics.bearer_token=hunter2 metrics.bearer_token_env=B": ["metrics.bearer_token_env"],
    "metrics.bearer_token=2_000_002": ["metrics.bearer_token"],
    # Labels
    "labels.key=id schema.target=['z','id']": ["labels.key"],
    "labels.key=id schema.weight=id": ["labels.key"],
    "labels.key=id schema.categorical=['id']": ["labels.key"],
    "labels.key=id schema.timestamps=['id']": ["labels.key"],
    "labels.key=id schema.features=['a'] schema.target=id": ["labels.key"],
    "labels.key=id source.format=csv": ["labels.key"],
    "labels.key=id source.format=parquet": ["labels.key"],
    "labels.expire_events=5": ["labels.expire_events"],
    "labels.expire_seconds=1.5": ["labels.expire_seconds"],
    "labels.key=id labels.max_pending=0": ["labels.max_pending"],
    "labels.key=id labels.expire_events=0": ["labels.expire_events"],
    "labels.key=id labels.expire_seconds=0.0": ["labels.expire_seconds"],
    "labels.key=": ["labels.key"],
    "labels.key=y labels.kye=x source.kind=no": ["source.kind", "labels.kye"],
}
"""Flags that are wrong over the minimal file, and the settings that are named for it."""


class TestProblems:
    def test_columns_mean_one_thing_only(self, config: Path) -> None:
        for schema, named in SCHEMAS.items():
            config.write_text(f'[source]\nkind = "file"\npath = "a.csv"\n[schema]\n{schema}\n')
            assert places(config) == [f"schema.{name}" for name in named], schema

    def test_rules_of_one_setting_and_of_several(self, config: Path) -> None:
        for flags, named in RULES.items():
            found = problems(config, *flags.split())
            assert list(dict.fromkeys(problem.partition(":")[0] for problem in found)) == named, flags
            assert not re.search("hunter2|2_?000_?002", str(found)), "a secret is shown"

    def test_where_a_value_came_from_is_told(self, config: Path) -> None:
        found = problems(config, "model.degree=x", STREAMMOE_MODEL__SEED="-1", STREAMMOE_CHEKPOINT__DIR="a")
        origins = {"chekpoint": "STREAMMOE_CHEKPOINT__DIR", "model.degree": "model.degree"}
        origins["model.seed"] = "STREAMMOE_MODEL__SEED"
        for problem, (place, origin) in zip(found, origins.items(), strict=True):
            assert problem.startswith(f"{place}: ")
            assert f"{origin})" in problem
        (found,) = problems(config, "model.schedule={alpha = 2}", STREAMMOE_MODEL__SCHEDULE__ALPHA="3")
        assert "got 2" in found, "the winning layer is named"

    def test_all_problems_come_at_once(self, config: Path) -> None:
        config.write_text("[model]\nn_experts = 0\nwarmup = 0\ndegre = 2\n[model.schedule]\nalpha = 2\n[modle]\n")
        assert set(places(config, "metrics.port=-1", "nonsense")) == {
            "flag 'nonsense'",
            "modle",
            "source.kind",
            "schema.target",
            "model.n_experts",
            "model.warmup",
            "model.degre",
            "model.schedule.alpha",
            "metrics.port",
        }

    def test_secrets_are_masked(self, config: Path) -> None:
        config.write_text(MINIMAL.replace("path", "api_token = [7777]\npath"))
        text = "\n".join(
            [*problems(config), *problems(config, "password=7777"), *problems(config, "source.api_token=7777")]
        )
        assert "***" in text
        assert "7777" not in text

    def test_logins_in_addresses_are_masked(self, config: Path) -> None:
        for address in ("http://me:77/77@host/path", "me:77@host:9092,other:9092", "[me:7@7@host]", "me:@77@host"):
            (found,) = problems(config, f"metrics.port={address}")
            assert "***@host" in found
            assert "7" not in found

    def test_values_that_are_long_or_steer_a_terminal_are_shortened_or_refused(self, config: Path) -> None:
        (found,) = problems(config, f"model.bound={'x' * 10_000}")
        assert len(found) < 200
        lines = 'checkpoint.dir = "a\\u0000b"\npredictions = { kind = "file", path = "\\u0000.jsonl" }\n'
        config.write_text(lines + MINIMAL)
        assert places(config) == ["checkpoint.dir", "predictions.path"]

    def test_a_path_for_predictions_may_stay_where_they_are_turned_off(self, config: Path) -> None:
        config.write_text('predictions = { kind = "none", path = "rows.jsonl" }\n' + MINIMAL)
        assert read(config).predictions.kind == "none"

    def test_a_file_that_is_not_there_or_not_text(self, config: Path) -> None:
        assert places(Path("nowhere.toml")) == ["nowhere.toml"]
        assert places(Path()) == ["."]
        config.write_text(MINIMAL + "[model\n")
        assert places(config) == ["config.toml"]
        config.write_bytes(b"a = '\xff'")
        assert places(config) == ["config.toml"]

    def test_a_file_as_windows_saves_it(self, config: Path) -> None:
        before = read(config)
        config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes().replace(b"\n", b"\r\n"))
        assert read(config) == before

    @pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000 + "]" * 5_000], ids=["number", "nesting"])
    def test_huge_numbers_and_deep_nesting_are_no_bug(self, config: Path, value: str) -> None:
        assert places(config, f"model.seed={value}") == ["model.seed"]
        config.write_text(f"model.seed = {value}")
        assert places(config)


class TestKinds:
    def test_a_classifier_has_defaults_of_its_own(self, config: Path) -> None:
        model = read(config, "model.kind=classifier").model
        assert (model.schedule, model.bound) == (Power(0.5), "adaptive")
        model = read(config, "model.kind=classifier", "model.schedule.offset=3").model
        assert model.schedule == Power(0.5, offset=3.0)
        model = read(config, "model.kind=classifier", "model.schedule.alpha=0.7", "model.bound=paper").model
        assert (model.schedule, model.bound) == (Power(0.7), "paper")
        model = read(config, "model.kind=classifier", "model.schedule={kind = 'constant', gamma = 0.1}").model
        assert model.schedule == Constant(0.1)

    def test_labels_are_texts_as_they_are_in_records(self, config: Path) -> None:
        read_classes = read(config, "model.kind=classifier", 'model.classes=[true, 7, "x", "1.0"]').model.classes
        assert read_classes == ("true", "7", "x", "1.0")

    def test_several_targets(self, config: Path) -> None:
        schema = read(config, 'schema.target=["y", "z"]').schema
        assert schema.target == schema.targets == ("y", "z")
        assert read(config).schema.targets == ("y",)

    def test_the_format_of_predictions(self, config: Path) -> None:
        formats = {"path=a.JSONL": "jsonl", "path=a.parquet": "parquet", "path=a.txt format=jsonl": "jsonl"}
        for flags, expected in formats.items():
            found = read(config, "predictions.kind=file", *(f"predictions.{flag}" for flag in flags.split()))
            assert found.predictions.file_format == expected


class TestSettings:
    def test_are_frozen(self, config: Path) -> None:
        settings = read(config)
        with pytest.raises(ValueError):
            settings.model.seed = 1  # type: ignore[misc]
        with pytest.raises(AttributeError):
            settings.model = Model()  # type: ignore[misc]

    def test_learning_settings_are_json_and_hold_what_shapes_the_model(self, config: Path) -> None:
        first = read(config, 'schema.target=["y"]').learning_settings()
        assert json.loads(json.dumps(first)) == first == read(config, "checkpoint.keep=9").learning_settings()
        assert first != read(config, "model.schedule.alpha=0.7").learning_settings()
        assert first != read(config, 'schema.ignore=["id"]').learning_settings()
        assert first != read(config, "labels.key=id").learning_settings()

    def test_what_an_old_checkpoint_does_not_know_is_as_if_it_had_been_left_out(self, config: Path) -> None:
        now, known = read(config).learning_settings(), learning_defaults()
        for section in ("model", "schema", "labels"):
            values = now[section]
            assert isinstance(values, dict)
            assert {name: values[name] for name in values if name != "target"} == known[section]
        assert json.loads(json.dumps(known)) == known

    def test_every_schedule_has_a_table(self) -> None:
        assert set(SCHEDULE_TABLES) == {"power", "constant"}


@pytest.mark.parametrize(
    "flags", [["schema.ignore=['id']"], ["schema.features=['id', 'a']", "schema.categorical=['id']"]]
)
def test_the_key_of_labels_may_be_ignored_or_a_feature_that_is_named(config: Path, flags: list[str]) -> None:
    assert read(config, "labels.key=id", *flags).labels.key == "id"


class TestSeveralSources:
    @pytest.fixture
    def two(self, config: Path) -> Path:
        config.write_text(
            '[[source]]\nkind = "file"\npath = "a.csv"\n[[source]]\nkind = "queue"\ntopics = "t"\n'
            '[schema]\ntarget = "y"\n'
        )
        return config

    def test_they_are_taken_in_order(self, two: Path) -> None:
        assert read(two).sources == (FileSettings(kind="file", path="a.csv"), QueueSettings(kind="queue", topics="t"))

    def test_flags_and_variables_name_them_by_number(self, two: Path) -> None:
        settings = read(two, "source.0.path=b.csv", STREAMMOE_SOURCE__1__TOPICS="u")
        assert settings.sources == (FileSettings(kind="file", path="b.csv"), QueueSettings(kind="queue", topics="u"))

    def test_problems_name_one_of_them(self, two: Path, tmp_path: Path) -> None:
        for flag in ("source.path=b.csv", "source.2.path=b.csv", "source.0=b.csv", "source.1.kind=no", "source.0.p=x"):
            assert places(two, flag) == [flag.partition("=")[0]]
        (tmp_path / "none.toml").write_text('source = []\n[schema]\ntarget = "y"\n')
        assert places(tmp_path / "none.toml") == ["source"]

    def test_one_in_a_list_is_one(self, config: Path) -> None:
        config.write_text('[[source]]\nkind = "file"\npath = "a.csv"\n[schema]\ntarget = "y"\n')
        assert read(config).sources == (FileSettings(kind="file", path="a.csv"),)


class TestKindsOfConnectors:
    class Topic(BaseModel):
        kind: Literal["topic"]
        topic: str

    def load(self, config: Path, *flags: str) -> Settings:
        kinds = Kinds(SOURCES, {"topic": self.Topic}, {"topic": self.Topic})
        return load(config, kinds=kinds, environment={}, overrides=flags)

    def test_they_have_settings_of_their_own_beside_those_of_all(self, config: Path) -> None:
        found = self.load(config, "predictions.kind=topic", "predictions.topic=out", "predictions.gate=false")
        assert isinstance(found.predictions, self.Topic)
        assert isinstance(found.predictions, Predictions)
        assert (found.predictions.topic, found.predictions.gate, found.predictions.interval) == ("out", False, 0.9)
        found = self.load(config, "dead_letters.kind=topic", "dead_letters.topic=bad", "dead_letters.max_ratio=0.1")
        assert isinstance(found.dead_letters, self.Topic)
        assert found.dead_letters.max_ratio == 0.1

    def test_problems_name_both(self, config: Path) -> None:
        with pytest.raises(ConfigError) as refused:
            self.load(config, "predictions.kind=topic", "predictions.interval=2", "predictions.path=a.jsonl")
        places = {problem.partition(":")[0] for problem in refused.value.problems}
        assert places == {"predictions.topic", "predictions.interval", "predictions.path"}

    def test_turned_off_they_need_not_be_taken_out(self, config: Path) -> None:
        found = self.load(config, "predictions.topic=out", "predictions.kind=none", "predictions.interval=0.5")
        assert found.predictions == NoPredictions(interval=0.5)


# --- settings without effect ----------------------------------------------------------------------------------------


IDLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_experts": 8}, {"n_experts": "auto"}),
    ({"reseed": "auto", "n_experts": 1}, {"n_experts": 2}),
    ({"degrees_of_freedom": 3.0}, {"expert": "student_t"}),
    ({"averaging_rate": 0.1}, {"averaging": "exponential"}),
    ({"drift_restart": 50}, {"drift": "page_hinkley"}),
    ({"warmup_restarts": 2, "warmup": 0, "standardize": False}, {"warmup": 100}),
    ({"max_classes": 5}, {"kind": "classifier"}),
    ({"top_k": 4}, {"n_experts": 5}),
    ({"top_k": 6, "n_experts": "auto"}, {"max_experts": 7}),
    ({"degrees_of_freedom": 3.0, "kind": "classifier"}, {"kind": "regressor", "expert": "student_t"}),
]
"""Settings of which the first does nothing, and others with which it does."""


def test_a_setting_that_another_leaves_nothing_to_do_is_told() -> None:
    for idle, at_work in IDLE:
        (sentence,) = without_effect(Model(**idle))
        assert sentence.startswith(f"model.{next(iter(idle))} = ")
        assert without_effect(Model(**{**idle, **at_work})) == []


def test_our_own_files_are_valid_and_set_nothing_without_effect() -> None:
    for file in [CONFIG / "default.toml", *(CONFIG / "examples").glob("*.toml")]:
        model = tomllib.loads(file.read_text()).get("model", {}) | {"schedule": Power()}
        assert without_effect(Model(**model)) == [], file
        if file.name != "default.toml":  # which has no path
            load_settings(file, environment={})  # with the connectors there are
