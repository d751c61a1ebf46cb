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

    @pytest.mark.parametrize("example", sorted((CONFIG / "examples").glob("*.toml")), ids=lambda path: path.stem)
    def test_examples_load(self, example: Path) -> None:
        load_settings(example, environment={})  # with the connectors there are


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

    def test_the_last_flag_wins(self, config: Path) -> None:
        assert read(config, "model.seed=1", "model.seed=2").model.seed == 2

    def test_environment_alone_can_hold_sections_with_underscores(self, config: Path) -> None:
        settings = read(config, STREAMMOE_DEAD_LETTERS__MAX_RATIO="0.25")
        assert settings.dead_letters.max_ratio == 0.25

    def test_names_without_double_underscore_are_not_settings(self, config: Path) -> None:
        assert read(config, STREAMMOE_LOG_LEVEL="debug", OTHER__THING="1") == read(config)

    @pytest.mark.parametrize(
        ("text", "value"),
        [("*", "*"), ('["a", "b"]', ("a", "b"))],
    )
    def test_values_are_toml(self, config: Path, text: str, value: object) -> None:
        assert read(config, f"schema.features={text}").schema.features == value

    @pytest.mark.parametrize("text", ["b/*.csv", "a=b", "", "1\nformat = 2", '"open', "no # comment"])
    def test_values_that_are_not_toml_are_plain_text(self, config: Path, text: str) -> None:
        source = read(config, f"source.path={text}").sources[0]
        assert isinstance(source, FileSettings)
        assert source.path == text

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


class TestProblems:
    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("model.n_expert = 4", "model.n_expert: unknown setting (from config.toml); did you mean n_experts?"),
            (
                "checkpoint.zzz = 4",
                (
                    "checkpoint.zzz: unknown setting (from config.toml); "
                    "known here: dir, every_events, every_seconds, keep, retry_seconds"
                ),
            ),
            ("modle.degree = 1", "modle: unknown section (from config.toml); did you mean model?"),
            ("model = 1", "model: must be a table, got 1 (from config.toml)"),
            (
                "model.n_experts = 0",
                "model.n_experts: must be at least 1, got 0 (from config.toml)",
            ),
            ("model.n_experts = true", "model.n_experts: must be a whole number, got true (from config.toml)"),
            (
                'model.n_experts = "many"',
                "model.n_experts: must be a whole number, or 'auto', got 'many' (from config.toml)",
            ),
            (
                "model.max_experts = 1",
                "model.max_experts: must be at least 2, got 1 (from config.toml)",
            ),
            ('model.reseed = "always"', "model.reseed: must be 'off' or 'auto', got 'always' (from config.toml)"),
            ('model.degree = "1"', "model.degree: must be a whole number, got '1' (from config.toml)"),
            ("model.seed = true", "model.seed: must be a whole number, got true (from config.toml)"),
            ("model.prior_strength = inf", "model.prior_strength: must be a finite number, got inf (from config.toml)"),
            (
                'model.bound = "loose"',
                "model.bound: must be 'adaptive', 'tight' or 'paper', got 'loose' (from config.toml)",
            ),
            ("metrics.port = -1", "metrics.port: must be at least 0, got -1 (from config.toml)"),
            ("dead_letters.max_ratio = 0", "dead_letters.max_ratio: must be greater than 0, got 0 (from config.toml)"),
            (
                "model.schedule.alpha = 0.3",
                "model.schedule.alpha: must be at least 0.5, got 0.3 (from config.toml)",
            ),
            (
                'model.schedule.kind = "cosine"',
                "model.schedule.kind: must be one of power, constant, got 'cosine' (from config.toml)",
            ),
            (
                'model.schedule.kind = "constant"',
                "model.schedule.gamma: required, but not set; add it to [model.schedule] in config.toml",
            ),
            (
                "model.schedule.alhpa = 1",
                "model.schedule.alhpa: unknown setting (from config.toml); did you mean alpha?",
            ),
            ('model.schedule = "power"', "model.schedule: must be a table, got 'power' (from config.toml)"),
            (
                "model.warmup = 0",
                (
                    "model.warmup: must be above 0, since model.standardize = true cannot do without a warm-up, "
                    "got 0 (from config.toml)"
                ),
            ),
            (
                "model = { warmup = 0, prior_strength = 0, standardize = false }",
                (
                    "model.warmup: must be above 0, since model.prior_strength = 0.0 cannot do without a warm-up, "
                    "got 0 (from config.toml)"
                ),
            ),
        ],
    )
    def test_sentences(self, config: Path, line: str, sentence: str) -> None:
        config.write_text(f"{line}\n{MINIMAL}")
        assert problems(config) == (sentence,)

    @pytest.mark.parametrize(
        ("schema", "sentence"),
        [
            ("", "schema.target: required, but not set; add it to [schema] in config.toml"),
            (
                'target = "y"\nfeatures = ["x", "y"]',
                "schema.features: must not hold the target 'y', got a list (from config.toml)",
            ),
            (
                'target = "y"\nignore = ["y"]',
                "schema.ignore: must not hold the target 'y', got a list (from config.toml)",
            ),
            (
                'target = "y"\nfeatures = ["x"]\nignore = ["x"]',
                "schema.ignore: must not hold what schema.features lists too (x), got a list (from config.toml)",
            ),
            (
                'target = "y"\nfeatures = ["x", "x"]',
                "schema.features: must name each column once, but repeats x, got a list (from config.toml)",
            ),
            (
                'target = "y"\nfeatures = "x"',
                "schema.features: must be \"*\" or a list of column names, got 'x' (from config.toml)",
            ),
        ],
    )
    def test_schema_sentences(self, config: Path, schema: str, sentence: str) -> None:
        config.write_text(f'[source]\nkind = "file"\npath = "a.csv"\n[schema]\n{schema}\n')
        assert problems(config) == (sentence,)

    @pytest.mark.parametrize(
        ("lines", "parts"),
        [
            ("target = []", ["schema.target: must name a column, or several of them in a list"]),
            ('target = ["y", "y"]', ["schema.target: must name each column once, but repeats y"]),
            ('target = ["y", 1]', ["schema.target: must be a list of column names"]),
            ('target = ["y", "z"]\nfeatures = ["x", "z"]', ["schema.features: must not hold the target 'z'"]),
            ('target = "y"\nweight = "y"', ["schema.weight: must not hold the target 'y', got 'y'"]),
            (
                'target = "y"\nfeatures = ["x", "w"]\nweight = "w"\ncategorical = ["x", "y"]\ntimestamps = ["x"]',
                [
                    "schema.weight: must not hold what schema.features lists too (w)",
                    "schema.categorical: must not hold the target 'y'",
                ],
            ),
            (
                'target = "y"\nignore = ["i"]\nweight = "i"\ncategorical = ["i", "a"]\ntimestamps = ["a"]',
                [
                    "schema.weight: must not hold what schema.ignore lists too (i)",
                    "schema.categorical: must not hold what schema.ignore lists too (i)",
                ],
            ),
            (
                'target = "y"\nweight = "w"\ncategorical = ["a"]\ntimestamps = ["t", "a", "w"]',
                ["schema.timestamps: must not hold what schema.weight names (w)"],
            ),
            (
                'target = "y"\ncategorical = ["a"]\ntimestamps = ["t", "a"]',
                ["schema.timestamps: must not hold what schema.categorical lists too (a)"],
            ),
            (
                'target = "y"\nfeatures = ["x"]\ncategorical = ["c"]\nlate_columns = true',
                [
                    "schema.categorical: must name features only; schema.features does not list c",
                    "schema.late_columns: must be false where schema.features is a list, which says all of them",
                ],
            ),
        ],
    )
    def test_columns_mean_one_thing_only(self, config: Path, lines: str, parts: list[str]) -> None:
        config.write_text(f'[source]\nkind = "file"\npath = "a.csv"\n[schema]\n{lines}\n')
        found = problems(config)
        assert len(found) == len(parts)
        assert all(sentence.startswith(part) for sentence, part in zip(found, parts, strict=True)), found

    def test_what_belongs_to_the_other_kind_of_model_is_told_at_once(self, config: Path) -> None:
        config.write_text(MINIMAL + '[model]\nkind = "classifier"\ncovariance = "full"\nn_experts = 0\n')
        assert problems(config, 'schema.target=["y", "z"]', "metrics.port=-1") == (
            "model.n_experts: must be at least 1, got 0 (from config.toml)",
            (
                "model.covariance: must be 'diagonal' where model.kind = 'classifier'; classes have no covariance, "
                "got 'full' (from config.toml)"
            ),
            "metrics.port: must be at least 0, got -1 (from flag metrics.port)",
            "schema.target: must be one column where model.kind = 'classifier', got a list (from flag schema.target)",
        )

    def test_noise_that_does_not_go_together_with_the_rest_is_told_at_once(self, config: Path) -> None:
        several = 'schema.target=["y", "z"]'
        assert problems(config, several, "model.expert=laplace") == (
            (
                "schema.target: must be one column where model.expert = 'laplace'; 'student_t' takes several, "
                "got a list (from flag schema.target)"
            ),
        )
        assert problems(config, "model.covariance=full") == (
            (
                "model.covariance: must be 'diagonal' where schema.target is one column; one output has nothing to be "
                "correlated with, got 'full' (from flag model.covariance)"
            ),
        )
        assert problems(config, several, "model.expert=student_t", "model.covariance=full") == (
            (
                "model.covariance: must be 'diagonal' where model.expert = 'student_t'; only 'gaussian' has it in "
                "full, got 'full' (from flag model.covariance)"
            ),
        )
        assert problems(config, "model.kind=classifier", "model.expert=laplace") == (
            (
                "model.expert: must be left out where model.kind = 'classifier'; classes have no noise, "
                "got 'laplace' (from flag model.expert)"
            ),
        )
        assert problems(config, "model.expert=cauchy", "model.degrees_of_freedom=2") == (
            "model.expert: must be 'gaussian', 'student_t' or 'laplace', got 'cauchy' (from flag model.expert)",
            "model.degrees_of_freedom: must be greater than 2, got 2 (from flag model.degrees_of_freedom)",
        )

    @pytest.mark.parametrize(
        ("classes", "sentence"),
        [
            ('["a", "a"]', "must name each label once, but repeats a"),
            ('["1", 1]', "must name each label once, but repeats 1"),
            ('["a"]', "must name at least two labels; left out, labels are taken as they come"),
            ("[0.5, 1]", "must be a list of labels: texts, whole numbers or booleans"),
            ('["", "a"]', "must be a list of labels: texts, whole numbers or booleans"),
        ],
    )
    def test_classes_are_labels(self, config: Path, classes: str, sentence: str) -> None:
        (found,) = problems(config, "model.kind=classifier", f"model.classes={classes}")
        assert found == f"model.classes: {sentence}, got a list (from flag model.classes)"

    def test_classes_are_for_classifiers(self, config: Path) -> None:
        (found,) = problems(config, 'model.classes=["a", "b"]')
        assert found.startswith("model.classes: must be left out where model.kind = 'regressor'")

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            (
                ["kind=file"],
                "predictions.path: required, but not set; add it to [predictions] in config.toml",
            ),
            (
                ["kind=file", "path=out.txt"],
                (
                    'predictions.path: must end in one of .jsonl, .ndjson, .parquet, since predictions.format = "auto" '
                    "goes by that, got 'out.txt' (from flag predictions.path)"
                ),
            ),
            (["interval=1"], "predictions.interval: must be less than 1, got 1 (from flag predictions.interval)"),
        ],
    )
    def test_prediction_sentences(self, config: Path, flags: list[str], sentence: str) -> None:
        assert problems(config, *(f"predictions.{flag}" for flag in flags)) == (sentence,)

    @pytest.mark.parametrize(
        ("source", "sentence"),
        [
            ("", "source.kind: required, but not set; one of file, queue"),
            ('kind = "kafak"', "source.kind: must be one of file, queue, got 'kafak' (from config.toml)"),
            ("kind = [1]", "source.kind: must be one of file, queue, got a list (from config.toml)"),
            ('kind = "file"', "source.path: required, but not set; add it to [source] in config.toml"),
            (
                'kind = "file"\npath = "a"\nformatt = 1',
                "source.formatt: unknown setting (from config.toml); did you mean format?",
            ),
        ],
    )
    def test_source_sentences(self, config: Path, source: str, sentence: str) -> None:
        config.write_text(f'[source]\n{source}\n[schema]\ntarget = "y"\n')
        assert problems(config) == (sentence,)

    def test_members_of_a_connectors_unions_are_not_part_of_the_path(self, config: Path) -> None:
        config.write_text('[source]\nkind = "queue"\ntopics = ["a", 1]\n[schema]\ntarget = "y"\n')
        assert problems(config)[0] == "source.topics.1: must be text, got 1 (from config.toml)"

    def test_where_a_value_came_from_is_told(self, config: Path) -> None:
        found = problems(config, "model.degree=x", STREAMMOE_MODEL__SEED="-1", STREAMMOE_CHEKPOINT__DIR="a")
        assert found == (
            "chekpoint: unknown section (from environment variable STREAMMOE_CHEKPOINT__DIR); did you mean checkpoint?",
            "model.degree: must be a whole number, got 'x' (from flag model.degree)",
            "model.seed: must be at least 0, got -1 (from environment variable STREAMMOE_MODEL__SEED)",
        )

    def test_the_winning_layer_is_blamed(self, config: Path) -> None:
        (found,) = problems(config, "model.schedule={alpha = 2}", STREAMMOE_MODEL__SCHEDULE__ALPHA="3")
        assert found == "model.schedule.alpha: must be at most 1, got 2 (from flag model.schedule)"

    def test_all_problems_come_at_once(self, config: Path) -> None:
        config.write_text("[model]\nn_experts = 0\nwarmup = 0\ndegre = 2\n[model.schedule]\nalpha = 2\n")
        text = "\n".join(problems(config, "metrics.port=-1", "nonsense"))
        for part in (
            "flag 'nonsense'",
            "source.kind",
            "schema.target",
            "model.n_experts",
            "model.warmup",
            "model.degre:",
            "model.schedule.alpha",
            "metrics.port",
        ):
            assert part in text

    def test_secrets_are_masked(self, config: Path) -> None:
        config.write_text(MINIMAL.replace("path", "api_token = [7777]\npath"))
        text = "\n".join(
            [*problems(config), *problems(config, "password=7777"), *problems(config, "source.api_token=7777")]
        )
        assert "***" in text
        assert "7777" not in text

    def test_logins_in_addresses_are_masked(self, config: Path) -> None:
        (found,) = problems(config, "metrics.port=http://me:77/77@host/path")
        assert "http://***@host/path" in found
        assert "77" not in found

    @pytest.mark.parametrize("address", ["me:77@host", "me:77@host:9092,other:9092", "[me:7@7@host]", "me:@77@host"])
    def test_logins_in_servers_are_masked(self, config: Path, address: str) -> None:
        (found,) = problems(config, f"metrics.port={address}")
        assert "***@host" in found
        assert "7" not in found

    def test_long_values_are_shortened(self, config: Path) -> None:
        (found,) = problems(config, f"model.bound={'x' * 10_000}")
        assert len(found) < 200

    def test_a_syntax_error_is_placed(self, config: Path) -> None:
        config.write_text(MINIMAL + "[model\n")
        (found,) = problems(config)
        assert found.startswith("config.toml: is not TOML: ")
        assert "line 6" in found

    def test_no_setting_holds_what_no_path_can(self, config: Path) -> None:
        lines = 'checkpoint.dir = "a\\u0000b"\npredictions = { kind = "file", path = "\\u0000.jsonl" }\n'
        config.write_text(lines + MINIMAL)
        assert problems(config) == (
            "checkpoint.dir: must not hold the character NUL",
            "predictions.path: must not hold the character NUL",
        )

    def test_a_path_for_predictions_that_nobody_writes_is_told(self, config: Path) -> None:
        config.write_text('predictions.path = "rows.jsonl"\n' + MINIMAL)
        (found,) = problems(config)
        assert found.startswith("predictions.kind: required where predictions.path is set")
        config.write_text('predictions = { kind = "none", path = "rows.jsonl" }\n' + MINIMAL)
        assert read(config).predictions.kind == "none"

    def test_a_file_that_is_not_there_or_not_text(self, config: Path) -> None:
        assert problems(Path("nowhere.toml")) == (
            "nowhere.toml: cannot be read (No such file or directory); give the path of a config file",
        )
        assert problems(Path()) == (".: cannot be read (Is a directory); give the path of a config file",)
        config.write_bytes(b"a = '\xff'")
        assert problems(config) == ("config.toml: is not UTF-8 text (byte 5); save it in that encoding",)

    def test_a_file_as_windows_saves_it(self, config: Path) -> None:
        before = read(config)
        config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes().replace(b"\n", b"\r\n"))
        assert read(config) == before

    @pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000 + "]" * 5_000])
    def test_huge_numbers_and_deep_nesting_are_no_bug(self, config: Path, value: str) -> None:
        with pytest.raises(ConfigError, match=r"model\.seed: must be"):
            read(config, f"model.seed={value}")
        config.write_text(f"model.seed = {value}")
        with pytest.raises(ConfigError):
            read(config)


class TestMetrics:
    @pytest.mark.parametrize(
        ("metrics", "problem"),
        [
            ('tls_certfile = "a"', "metrics.tls_keyfile: must be set together with metrics.tls_certfile"),
            ('tls_keyfile = "a"', "metrics.tls_keyfile: must be set together with metrics.tls_certfile"),
            ('allowed_hosts = "a"', "metrics.allowed_hosts: must be a list of host names"),
            ('allowed_hosts = ["a:9464"]', "metrics.allowed_hosts: must be host names without scheme, port and path"),
            ('username = "a:b"', "metrics.username: must not hold a colon"),
            ('username = "a"', "metrics.password_env: must be set where metrics.username is"),
            ('password = "hunter2"', "metrics.password_env: must be set where metrics.username is"),
            (
                'username = "a"\npassword = "hunter2"\npassword_file = "b"',
                "metrics.password_env: must not be set together with others; choose one of password, password_file",
            ),
            (
                'bearer_token = "hunter2"\nbearer_token_env = "B"',
                "metrics.bearer_token_env: must not be set together with others; choose one of bearer_token,",
            ),
            ("bearer_token = 2_000_002", "metrics.bearer_token: must be"),
        ],
    )
    def test_what_does_not_go_together_is_told_without_secrets(self, config: Path, metrics: str, problem: str) -> None:
        config.write_text(f"{config.read_text()}\n[metrics]\n{metrics}\n")
        with pytest.raises(ConfigError) as refused:
            read(config)
        assert [told for told in refused.value.problems if told.startswith(problem)]
        assert "hunter2" not in str(refused.value)
        assert "2000002" not in str(refused.value)


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

    @pytest.mark.parametrize(
        ("flags", "format"),
        [(["path=a.JSONL"], "jsonl"), (["path=a.parquet"], "parquet"), (["path=a.txt", "format=jsonl"], "jsonl")],
    )
    def test_the_format_of_predictions(self, config: Path, flags: list[str], format: str) -> None:
        settings = read(config, "predictions.kind=file", *(f"predictions.{flag}" for flag in flags))
        assert settings.predictions.file_format == format


class TestSettings:
    def test_are_frozen(self, config: Path) -> None:
        settings = read(config)
        with pytest.raises(ValueError, match="frozen"):
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


class TestLabels:
    @pytest.mark.parametrize(
        ("flags", "columns"),
        [
            (["schema.target=['z', 'id']"], "target"),
            (["schema.weight=id"], "weight"),
            (["schema.categorical=['id']"], "categorical"),
            (["schema.timestamps=['id']"], "timestamps"),
            (["schema.features=['a']", "schema.target=id"], "target"),
        ],
    )
    def test_the_key_means_nothing_else(self, config: Path, flags: list[str], columns: str) -> None:
        (found,) = problems(config, "labels.key=id", *flags)
        rule = f"labels.key: must not be a column that schema.{columns} names, got 'id' (from flag labels.key)"
        assert found == rule

    @pytest.mark.parametrize(
        "flags", [["schema.ignore=['id']"], ["schema.features=['id', 'a']", "schema.categorical=['id']"]]
    )
    def test_the_key_may_be_ignored_or_a_feature_that_is_named(self, config: Path, flags: list[str]) -> None:
        assert read(config, "labels.key=id", *flags).labels.key == "id"

    @pytest.mark.parametrize("format", ["csv", "parquet"])
    def test_formats_without_json_are_refused(self, config: Path, format: str) -> None:
        (found,) = problems(config, "labels.key=id", f"source.format={format}")
        assert found == (
            f"labels.key: must be left out where a source has the format {format!r}; only JSON Lines are joined, "
            "got 'id' (from flag labels.key)"
        )

    @pytest.mark.parametrize("flag", ["expire_events=5", "expire_seconds=1.5"])
    def test_nothing_expires_where_nothing_waits(self, config: Path, flag: str) -> None:
        (found,) = problems(config, f"labels.{flag}")
        assert found.startswith(f"labels.{flag.partition('=')[0]}: must be left out where labels.key is")

    @pytest.mark.parametrize("flag", ["max_pending=0", "expire_events=0", "expire_seconds=0.0", "key=''"])
    def test_bounds(self, config: Path, flag: str) -> None:
        found = problems(config, "labels.key=id", f"labels.{flag}")
        assert found[0].startswith(f"labels.{flag.partition('=')[0]}: must ")

    def test_with_other_mistakes_beside_it_each_is_told(self, config: Path) -> None:
        found = problems(config, "labels.key=y", "labels.kye=x", "source.kind=no")
        assert [problem.partition(":")[0] for problem in found] == ["source.kind", "labels.kye"]
        assert len(problems(config, "labels.key=y", "schema.weigth=x")) == 1


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

    @pytest.mark.parametrize("flag", ["source.path=b.csv", "source.2.path=b.csv", "source.0=b.csv"])
    def test_a_flag_without_a_number_of_one_is_refused(self, two: Path, flag: str) -> None:
        (found,) = problems(two, flag)
        name = flag.partition("=")[0]
        assert found.startswith(f"{name}: there are 2 sources (from flag {name}); name one of them by its number")

    def test_problems_name_the_source(self, two: Path) -> None:
        assert problems(two, "source.1.kind=quue") == (
            "source.1.kind: must be one of file, queue, got 'quue' (from flag source.1.kind)",
        )
        assert problems(two, "source.0.pth=x")[0].startswith("source.0.pth: unknown setting (from flag source.0.pth)")

    def test_none_is_one_too_few(self, config: Path) -> None:
        config.write_text('source = []\n[schema]\ntarget = "y"\n')
        assert problems(config) == ("source: required, but not set; add [source] to config.toml",)

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

    def test_dead_letters_too(self, config: Path) -> None:
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


@pytest.mark.parametrize(
    ("idle", "at_work"),
    [
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
    ],
)
def test_a_setting_that_another_leaves_nothing_to_do_is_told(idle: dict[str, Any], at_work: dict[str, Any]) -> None:
    name = next(iter(idle))
    (sentence,) = without_effect(Model(**idle))
    assert sentence.startswith(f"model.{name} = ")
    assert f"or leave {name} out" in sentence
    assert without_effect(Model(**{**idle, **at_work})) == []


@pytest.mark.parametrize(
    "file", [CONFIG / "default.toml", *sorted((CONFIG / "examples").glob("*.toml"))], ids=lambda p: p.name
)
def test_our_own_files_set_nothing_without_effect(file: Path) -> None:
    assert without_effect(Model(**tomllib.loads(file.read_text()).get("model", {}) | {"schedule": Power()})) == []
