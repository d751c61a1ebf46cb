"""How settings are read from a file, variables and flags. What each message says is approved in tests/messages."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from streammoe import settings as module
from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe.options import RegressorOptions
from streammoe.schedules import Constant, Power
from streammoe.settings import PredictionSettings, Settings
from streammoe.settings.reader import Kinds, load

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


class Topic(BaseModel):
    kind: Literal["topic"]
    topic: str


SOURCES: dict[str, type[BaseModel]] = {"file": FileSettings, "queue": QueueSettings}
MINIMAL = '[source]\nkind = "file"\npath = "a.csv"\n[schema]\ntarget = "y"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("config.toml")
    path.write_text(MINIMAL)
    return path


def read(path: Path, *flags: str, **environment: str) -> Settings:
    kinds = Kinds(SOURCES, {"topic": Topic}, {"topic": Topic})
    return load(path, kinds=kinds, environment=environment, overrides=flags)


def problems(path: Path, *flags: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as rejected:
        read(path, *flags, **environment)
    return rejected.value.problems


def named(path: Path, *flags: str, **environment: str) -> list[str]:
    """Return the settings that the problems name."""
    found = problems(path, *flags, **environment)
    return list(dict.fromkeys(problem.partition(":")[0] for problem in found))


# --- defaults -------------------------------------------------------------------------------------------------------


def test_the_default_file_holds_every_setting_with_its_default_and_a_comment() -> None:
    text = (CONFIG / "default.toml").read_text()
    written = tomllib.loads(text)
    source = written.pop("source")
    types = {module.section_name(name): kind for name, kind in Settings.__annotations__.items()}
    assert set(written) == set(types) - {"source", "given", "challenger"}
    for name, table in written.items():
        found = dict(table)
        if name == "model":  # words are short for objects there
            assert RegressorOptions(**found) == RegressorOptions()
            continue
        of_kind = {"dead_letters": module.DeadLetterFileSettings}
        assert found == defaults(of_kind.get(name, types[name])), name
    connector = pytest.importorskip("streammoe_connectors.files.source").FileSource
    assert source == defaults(connector.Settings) | {"kind": "file"}
    for line in text.splitlines():
        assert " = " not in line or re.search(r"\S\s+# \S", line), line


def defaults(section: Any) -> dict[str, Any]:
    """Return the defaults of a section as TOML would hold them; a required or empty (None) one cannot be there."""
    model = section if isinstance(section, type) else getattr(module, section)
    known = {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in model.model_fields.items()
        if not field.is_required()
    }
    plain = json.loads(model.model_construct(**known).model_dump_json())
    return {name: value for name, value in plain.items() if name in known and value is not None}


def test_a_classifier_has_defaults_of_its_own(config: Path) -> None:
    for flags, schedule, bound in (
        ("", Power(0.5), "adaptive"),
        ("model.schedule.offset=3", Power(0.5, offset=3.0), "adaptive"),
        ("model.schedule.alpha=0.7 model.bound=paper", Power(0.7), "paper"),
        ("model.schedule={kind='constant',gamma=0.1}", Constant(0.1), "adaptive"),
    ):
        model = read(config, "model.kind=classifier", *flags.split()).model
        assert (model.schedule, model.bound) == (schedule, bound)


# --- where values come from -----------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_over_the_file_over_defaults(config: Path) -> None:
    config.write_text(MINIMAL + "[model]\nn_experts = 2\ndegree = 2\ngate_degree = 2\n")
    environment = {"STREAMMOE_MODEL__N_EXPERTS": "3", "STREAMMOE_MODEL__DEGREE": "3"}
    model = read(config, "model.n_experts=5", **environment).model
    assert (model.n_experts, model.degree, model.gate_degree, model.seed) == (5, 3, 2, 0)
    assert read(config, "model.seed=1", "model.seed=2").model.seed == 2, "the last flag wins"
    assert read(config, STREAMMOE_DEAD_LETTERS__MAX_RATIO="0.25").dead_letters.max_ratio == 0.25


def test_dead_letters_go_to_the_folder_of_the_checkpoints_unless_told_otherwise(config):
    for flags, path in (
        ([], "state/dead-letters.jsonl"),
        (["checkpoint.dir=/elsewhere"], "/elsewhere/dead-letters.jsonl"),
        (["checkpoint.dir=/elsewhere", "dead_letters.path=bad.jsonl"], "bad.jsonl"),
    ):
        assert read(config, *flags).dead_letters.path == path
    assert read(config, STREAMMOE_LOG_LEVEL="debug", OTHER__THING="1") == read(config)


def test_values_are_toml_or_plain_text(config: Path) -> None:
    assert read(config, "schema.features=*").schema.features == "*"
    assert read(config, 'schema.features=["a", "b"]').schema.features == ("a", "b")
    for text in ("b/*.csv", "a=b", "", "1\nformat = 2", '"open', "no # comment"):
        assert vars(read(config, f"source.path={text}").source)["path"] == text
    classes = read(config, "model.kind=classifier", 'model.classes=[true, 7, "x", "1.0"]').model.classes
    assert classes == ("true", "7", "x", "1.0"), "as they are in records"


def test_a_table_can_be_replaced_in_part_or_whole(config: Path) -> None:
    config.write_text(MINIMAL + "[model.schedule]\noffset = 3\n")
    assert read(config, "model.schedule.alpha=0.7").model.schedule == Power(0.7, offset=3.0)
    assert read(config, 'model.schedule={kind = "constant", gamma = 0.01}').model.schedule == Constant(0.01)
    config.write_text('[source]\nkind = "file"\n[schema]\ntarget = "y"\n')
    found = read(config, "source.kind=queue", "source.topics=clicks").source
    assert found == QueueSettings(kind="queue", topics="clicks")


def test_a_file_may_be_as_windows_saves_it(config: Path) -> None:
    before = read(config)
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes().replace(b"\n", b"\r\n"))
    assert read(config) == before


def test_connectors_have_settings_in_addition_to_shared_ones(config: Path) -> None:
    found = read(config, "predictions.kind=topic", "predictions.topic=out", "predictions.gate=false").predictions
    assert isinstance(found, Topic)
    assert isinstance(found, PredictionSettings)
    assert (found.topic, found.gate, found.interval) == ("out", False, 0.9)
    letters = read(config, "dead_letters.kind=topic", "dead_letters.topic=bad", "dead_letters.max_ratio=0.1")
    assert isinstance(letters.dead_letters, Topic)
    assert letters.dead_letters.max_ratio == 0.1
    wrong = named(config, "predictions.kind=topic", "predictions.interval=2", "predictions.path=a.jsonl")
    assert set(wrong) == {"predictions.topic", "predictions.interval", "predictions.path"}
    found = read(config, "predictions.topic=out", "predictions.kind=none", "predictions.interval=0.5").predictions
    assert found == PredictionSettings(interval=0.5), "those of a kind may stay where it is turned off"


# --- problems -------------------------------------------------------------------------------------------------------


def test_secrets_and_logins_in_addresses_are_masked(config: Path) -> None:
    for address in ("http://me:77/77@host/path", "me:77@host:9092,other:9092", "[me:7@7@host]", "me:@77@host"):
        (found,) = problems(config, f"metrics.port={address}")
        assert "***@host" in found
        assert "7" not in found
    config.write_text(MINIMAL.replace("path", "api_token = [7777]\npath"))
    for flags in ([], ["password=7777"], ["source.api_token=7777"]):
        text = "\n".join(problems(config, *flags))
        assert "***" in text
        assert "7777" not in text


def test_values_that_are_long_or_steer_a_terminal_are_shortened_or_rejected(config: Path) -> None:
    (found,) = problems(config, f"model.bound={'x' * 10_000}")
    assert len(found) < 200
    lines = 'checkpoint.dir = "a\\u0000b"\npredictions = { kind = "file", path = "\\u0000.jsonl" }\n'
    config.write_text(lines + MINIMAL)
    assert named(config) == ["checkpoint.dir", "predictions.path"]


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000 + "]" * 5_000], ids=["number", "nesting"])
def test_huge_numbers_and_deep_nesting_are_no_bug(config: Path, value: str) -> None:
    assert named(config, f"model.seed={value}") == ["model.seed"]
    config.write_text(f"model.seed = {value}")
    assert named(config)


# --- settings that a checkpoint keeps, and settings without effect --------------------------------------------------


def test_learning_settings_are_json_and_hold_what_shapes_the_model(config: Path) -> None:
    first = read(config, 'schema.target=["y"]').learning_settings()
    assert json.loads(json.dumps(first)) == first == read(config, "checkpoint.keep=9").learning_settings()
    for flag in ("model.schedule.alpha=0.7", 'schema.ignore=["id"]', "labels.key=id"):
        assert first != read(config, flag).learning_settings()


def test_our_own_files_are_valid() -> None:
    for file in (CONFIG / "examples").glob("*.toml"):
        load_settings(file, environment={})  # with the connectors there are
