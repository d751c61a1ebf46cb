"""Settings: every section of a config file, and the one place where they are read.

A section's model holds names, types, ranges and defaults; `load` merges file, environment and flags, and reports
everything that is wrong in one `ConfigError`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from datetime import time as clock
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    SkipValidation,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    create_model,
    field_serializer,
    field_validator,
)
from pydantic_core import ErrorDetails

from streammoe.bounds import BOUNDS
from streammoe.errors import ConfigError
from streammoe.schedules import SCHEDULES, Schedule, from_settings, power, to_settings

ENVIRONMENT_PREFIX = "STREAMMOE_"
ENVIRONMENT_SEPARATOR = "__"

Text = Annotated[str, StringConstraints(min_length=1)]


def _within_bounds(name: str) -> Any:
    """The rule of a number's bounds, which are those of the estimators."""
    return Field(ge=BOUNDS[name].least, le=BOUNDS[name].most)


def _size(name: str, default: int | None) -> Any:
    """A field with that rule."""
    return Field(default, ge=BOUNDS[name].least, le=BOUNDS[name].most)


class Section(BaseModel):
    """Base of the sections: frozen, without type conversions, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _target(value: object) -> object:
    """One column as its name, several as a tuple of names."""
    if isinstance(value, (list, tuple)):
        names = _columns(value)
        if not names:
            raise ValueError("must name a column, or several of them in a list")
        return names[0] if len(names) == 1 else names
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of a column, or a list of several")
    return value


def _columns(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of column names")
    if repeated := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"must name each column once, but repeats {', '.join(repeated)}")
    return tuple(value)


def _all_or_columns(value: object) -> object:
    if value == "*":
        return value
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError('must be "*" or a list of column names')
    return _columns(value)


Columns = Annotated[tuple[str, ...], BeforeValidator(_columns)]


def _host_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of host names")
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]", name):
            raise ValueError(f"must be host names without scheme, port and path, but holds {name!r}")
    return tuple(value)


class Schema(Section):
    """Which columns are learned from, and what they hold."""

    target: Annotated[Text | tuple[str, ...], BeforeValidator(_target)]
    """One column, or several outputs."""
    features: Annotated[Literal["*"] | tuple[str, ...], BeforeValidator(_all_or_columns)] = "*"
    ignore: Columns = ()
    weight: Text | None = None
    """The column that says how much an event counts; ``None`` lets all count alike."""
    categorical: Columns = ()
    timestamps: Columns = ()
    late_columns: bool = False
    max_columns: int = _size("max_columns", 256)
    """Columns that there may be where ``features`` lists none; up to so many late ones join."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The target columns, one for each output."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @field_validator("features", "ignore", "weight", "categorical", "timestamps")
    @classmethod
    def _disjoint(cls, value: str | tuple[str, ...] | None, info: ValidationInfo) -> str | tuple[str, ...] | None:
        """Let a column mean one thing only."""
        if value == "*" or value is None:
            return value
        names = (value,) if isinstance(value, str) else value
        target = info.data.get("target", ())
        for name in (target,) if isinstance(target, str) else target:
            if name in names:
                raise ValueError(f"must not hold the target {name!r}")
        for other in _MUST_NOT_HOLD[str(info.field_name)]:
            taken = info.data.get(other) or ()
            both = [name for name in ((taken,) if isinstance(taken, str) else taken) if name in names]
            if both:
                raise ValueError(f"must not hold what schema.{other} {_NAMES_TOO[other]} ({', '.join(both)})")
        features = info.data.get("features", "*")
        if info.field_name in {"categorical", "timestamps"} and features != "*":
            others = [name for name in names if name not in features]
            if others:
                raise ValueError(f"must name features only; schema.features does not list {', '.join(others)}")
        return value

    @field_validator("late_columns")
    @classmethod
    def _open(cls, late_columns: bool, info: ValidationInfo) -> bool:
        if late_columns and info.data.get("features", "*") != "*":
            raise ValueError("must be false where schema.features is a list, which says all of them")
        return late_columns


_MUST_NOT_HOLD = {
    "features": (),
    "ignore": ("features",),
    "weight": ("features", "ignore"),
    "categorical": ("ignore", "weight"),
    "timestamps": ("ignore", "weight", "categorical"),
}
"""Of each setting those that may not name the same column."""
_NAMES_TOO = {"features": "lists too", "ignore": "lists too", "categorical": "lists too", "weight": "names"}

DEFAULT_ALPHA = {"regressor": 0.6, "classifier": 0.5}
DEFAULT_PRIOR_STRENGTH = {"regressor": 0.1, "classifier": 0.04}


def _kind(data: Mapping[str, Any]) -> str:
    return str(data.get("kind", "regressor"))  # an invalid one has its own message


def _labels(value: object) -> tuple[str, ...] | None:
    """Labels as texts, in the way that they are read from records."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(label, str | int) and label != "" for label in value):
        raise ValueError("must be a list of labels: texts, whole numbers or booleans")
    labels = tuple(str(label).lower() if isinstance(label, bool) else str(label) for label in value)
    if repeated := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"must name each label once, but repeats {', '.join(repeated)}")
    if len(labels) < 2:
        raise ValueError("must name at least two labels; left out, labels are taken as they come")
    return labels


NUMBER_OF_EXPERTS: TypeAdapter[int] = TypeAdapter(
    Annotated[int, _within_bounds("n_experts")], config=ConfigDict(strict=True)
)


def _experts(value: object, _: object) -> object:
    """A number of experts, or the word that leaves it to the model."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError("must be a whole number, or 'auto'")
        return value
    return NUMBER_OF_EXPERTS.validate_python(value)


class Model(Section):
    """What is learned and how; the names are those of the estimators' arguments."""

    kind: Literal["regressor", "classifier"] = "regressor"
    n_experts: Annotated[int | Literal["auto"], WrapValidator(_experts)] = 4
    """``"auto"`` lets the model choose among 1 to `max_experts`."""
    max_experts: int = _size("max_experts", 6)
    top_k: int | None = _size("top_k", None)
    """How many experts learn from an event; ``None``: all."""
    batch_size: int = _size("batch_size", 1)
    """Events of a step."""
    reseed: Literal["off", "auto"] = "off"
    """Whether an expert that is starved or a duplicate is tried as half of another."""
    degree: int = _size("degree", 1)
    gate_degree: int = _size("gate_degree", 1)
    expert: Literal["gaussian", "student_t", "laplace"] = "gaussian"
    degrees_of_freedom: float = Field(4.0, gt=2, le=1e6)
    """Of Student-t experts."""
    covariance: Literal["diagonal", "full"] = "diagonal"
    bound: Literal["adaptive", "tight", "paper"] = "adaptive"
    prior_strength: Annotated[float, _within_bounds("prior_strength")] = Field(
        default_factory=lambda data: DEFAULT_PRIOR_STRENGTH[_kind(data)]
    )
    seed: int = _size("seed", 0)
    standardize: bool = True
    range_factor: float = Field(1e6, ge=0)
    averaging: Literal["polyak", "decay", "exponential", "none"] = "polyak"
    averaging_rate: float = Field(0.01, gt=0, lt=1)
    """Least weight of an iterate in an exponential average."""
    drift: Literal["off", "page_hinkley"] = "off"
    drift_restart: int = _size("drift_restart", 200)
    """Events that steps take for seen after a drift."""
    warmup: int | None = _size("warmup", None)
    """Events in the warm-up buffer; ``None`` lets it grow with the number of parameters."""
    warmup_restarts: int = _size("warmup_restarts", 5)
    classes: Annotated[tuple[str, ...] | None, BeforeValidator(_labels)] = None
    """All labels of a classifier; ``None`` takes them as they come."""
    max_classes: int = _size("max_classes", 100)
    max_levels: int = _size("max_levels", 64)
    schedule: SkipValidation[Schedule] = Field(default_factory=lambda data: power(DEFAULT_ALPHA[_kind(data)]))
    """Checked as a table of its own, whose names depend on its kind (`SCHEDULE_TABLES`)."""

    @field_validator("expert")
    @classmethod
    def _has_noise(cls, expert: str, info: ValidationInfo) -> str:
        if expert != "gaussian" and info.data.get("kind") == "classifier":
            raise ValueError("must be left out where model.kind = 'classifier'; classes have no noise")
        return expert

    @field_validator("covariance")
    @classmethod
    def _has_covariance(cls, covariance: str, info: ValidationInfo) -> str:
        if covariance == "full" and info.data.get("kind") == "classifier":
            raise ValueError("must be 'diagonal' where model.kind = 'classifier'; classes have no covariance")
        if covariance == "full" and info.data.get("expert", "gaussian") != "gaussian":
            expert = info.data["expert"]
            raise ValueError(f"must be 'diagonal' where model.expert = {expert!r}; only 'gaussian' has it in full")
        return covariance

    @field_validator("classes")
    @classmethod
    def _has_classes(cls, classes: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if classes is not None and info.data.get("kind") == "regressor":
            raise ValueError("must be left out where model.kind = 'regressor'; set that to 'classifier'")
        return classes

    @field_validator("warmup")
    @classmethod
    def _long_enough(cls, warmup: int | None, info: ValidationInfo) -> int | None:
        needs = {"standardize": True, "prior_strength": 0.0, "n_experts": "auto"}
        needing = [name for name, value in needs.items() if warmup == 0 and info.data.get(name) == value]
        if needing:
            settings = " and ".join(f"model.{name} = {_shown(needs[name])}" for name in needing)
            raise ValueError(f"must be above 0, since {settings} cannot do without a warm-up")
        return warmup

    @field_serializer("schedule")
    def _schedule_table(self, schedule: Schedule) -> dict[str, str | float]:
        return to_settings(schedule)


class Labels(Section):
    """How features find a label that comes later."""

    key: Text | None = None
    """The field that both hold; ``None`` where features and target come in the same record."""
    max_pending: int = Field(100_000, ge=1)
    """Records that may wait for their other half; beyond that the oldest expires."""
    expire_events: int | None = Field(None, ge=1)
    """Records until one that waits expires; ``None`` sets no limit."""
    expire_seconds: float | None = Field(None, gt=0)
    """The same in seconds, by the records' own times."""

    @field_validator("expire_events", "expire_seconds")
    @classmethod
    def _joined(cls, limit: float | None, info: ValidationInfo) -> float | None:
        if limit is not None and info.data.get("key", "") is None:
            raise ValueError("must be left out where labels.key is, since nothing waits then")
        return limit


class Checkpoint(Section):
    """Where and how often the model is saved; whichever of the two comes first."""

    dir: Text = "state"
    every_events: int = Field(50_000, ge=1)
    every_seconds: float = Field(30.0, gt=0)
    keep: int = Field(3, ge=1)
    retry_seconds: float = Field(600.0, ge=0)
    """How long saving is tried again while learning goes on, once it fails; 0 ends the run at the first failure."""


class Metrics(Section):
    """The address that metrics are served at."""

    enabled: bool = True
    host: Text = "127.0.0.1"
    port: int = Field(9464, ge=0, le=65535)
    """0 takes any free port."""
    alive_seconds: float = Field(300.0, gt=0)
    """How long one turn of the learning loop may take before /healthz says that it hangs."""
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_host_names)] = ()
    """Host names that requests may use, in addition to this machine's loopback names."""
    tls_certfile: Text | None = None
    """The certificate, with those of the authorities behind it; without it nothing is encrypted."""
    tls_keyfile: Text | None = Field(None, validate_default=True)
    """Its private key, without a password."""
    username: Text | None = None
    """Who may scrape, with a password."""
    password: SecretStr | None = None
    """That user's; better in one of the next two."""
    password_file: Text | None = None
    """A file that holds it; a line end behind it is not part of it."""
    password_env: Text | None = Field(None, validate_default=True)
    """The environment variable that holds it."""
    bearer_token: SecretStr | None = None
    """What else may stand for a user and password; better in one of the next two."""
    bearer_token_file: Text | None = None
    """A file that holds it."""
    bearer_token_env: Text | None = Field(None, validate_default=True)
    """The environment variable that holds it."""

    @field_validator("tls_keyfile")
    @classmethod
    def _with_certificate(cls, key: str | None, info: ValidationInfo) -> str | None:
        if "tls_certfile" in info.data and (key is None) != (info.data["tls_certfile"] is None):
            raise ValueError("must be set together with metrics.tls_certfile, and left out without it")
        return key

    @field_validator("username")
    @classmethod
    def _without_colon(cls, username: str | None) -> str | None:
        if username is not None and ":" in username:
            raise ValueError("must not hold a colon, which ends a user's name where it is sent")
        return username

    @field_validator("password_env", "bearer_token_env")
    @classmethod
    def _one_secret(cls, variable: str | None, info: ValidationInfo) -> str | None:
        name = str(info.field_name).removesuffix("_env")
        given = [variable, info.data.get(name), info.data.get(f"{name}_file")]
        count = sum(value is not None for value in given)
        if count > 1:
            raise ValueError(f"must not be set together with others; choose one of {name}, {name}_file and {name}_env")
        if name == "password" and "username" in info.data and (count == 1) != (info.data["username"] is not None):
            raise ValueError(
                "must be set where metrics.username is, unless password_file or password is; or none of them"
            )
        return variable


PREDICTION_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format of predictions by the extension of their file."""


class Predictions(Section):
    """What predictions hold; where they go is told by the model of their kind, which is derived from this one."""

    kind: str = "none"
    interval: float = Field(0.9, ge=0, lt=1)
    """Probability of the predictive interval; 0 leaves it out."""
    gate: bool = True


class NoPredictions(Predictions):
    """Predictions are scored, and written nowhere."""

    kind: Literal["none"] = "none"


class PredictionFile(Predictions):
    """Predictions go to files."""

    kind: Literal["file"]
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    path: Text

    @field_validator("path")
    @classmethod
    def _has_format(cls, path: str, info: ValidationInfo) -> str:
        if info.data.get("format") == "auto" and Path(path).suffix.lower() not in PREDICTION_FORMATS:
            known = ", ".join(PREDICTION_FORMATS)
            raise ValueError(f'must end in one of {known}, since predictions.format = "auto" goes by that')
        return path

    @property
    def file_format(self) -> str:
        """The format of the file, ``jsonl`` or ``parquet``."""
        return PREDICTION_FORMATS[Path(self.path).suffix.lower()] if self.format == "auto" else self.format


class DeadLetters(Section):
    """How many refused records are too many; where they go is told by the model of their kind, derived from this."""

    kind: str = "file"
    max_ratio: float = Field(0.5, gt=0, le=1)


class DeadLetterFile(DeadLetters):
    """Refused records go to a file."""

    kind: Literal["file"] = "file"
    path: Text = "state/dead-letters.jsonl"


class Guard(Section):
    """What to do where the loss jumps."""

    on_jump: Literal["off", "alarm", "stop", "rollback"] = "alarm"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one daemon."""

    sources: tuple[BaseModel, ...]
    """Read one after the other; each an instance of the `Settings` that the connector brings for its kind."""
    schema: Schema
    labels: Labels
    model: Model
    checkpoint: Checkpoint
    metrics: Metrics
    predictions: Predictions
    """Of a kind that a connector brings, also an instance of its `Settings`."""
    dead_letters: DeadLetters
    """The same."""
    guard: Guard

    def learning_settings(self) -> dict[str, object]:
        """What shapes the learned state, as plain JSON values, to compare with what a checkpoint was learned with."""
        return {
            "model": self.model.model_dump(mode="json"),
            "schema": self.schema.model_dump(mode="json"),
            "labels": self.labels.model_dump(mode="json"),
        }


def without_effect(model: Model) -> list[str]:
    """Sentences on settings that differ from their defaults where others leave them nothing to do.

    They are no errors: whoever tries another value of the one should not have to take out the other.

    >>> print(*without_effect(Model(max_experts=8)))
    model.max_experts = 8 has no effect where model.n_experts = 4; set n_experts to 'auto', or leave max_experts out
    """
    fixed = not isinstance(model.n_experts, str)
    most = model.max_experts if isinstance(model.n_experts, str) else model.n_experts
    is_regressor = model.kind == "regressor"
    rules = [
        ("max_experts", fixed, "n_experts", "'auto'"),
        ("reseed", model.n_experts == 1, "n_experts", "2 or more"),
        ("top_k", (model.top_k or 0) >= most, "n_experts" if fixed else "max_experts", "more"),
        ("degrees_of_freedom", model.kind == "classifier", "kind", "'regressor'"),
        ("degrees_of_freedom", is_regressor and model.expert != "student_t", "expert", "'student_t'"),
        ("averaging_rate", model.averaging != "exponential", "averaging", "'exponential'"),
        ("drift_restart", model.drift == "off", "drift", "'page_hinkley'"),
        ("warmup_restarts", model.warmup == 0, "warmup", "more"),
        ("max_classes", is_regressor, "kind", "'classifier'"),
    ]
    return [
        f"model.{name} = {_shown(getattr(model, name))} has no effect where model.{other} = "
        f"{_shown(getattr(model, other))}; set {other} to {wanted}, or leave {name} out"
        for name, idle, other, wanted in rules
        if idle and getattr(model, name) != Model.model_fields[name].default
    ]


def learning_defaults() -> dict[str, dict[str, object]]:
    """Learning settings of a daemon that sets none of them, in the form of `Settings.learning_settings`.

    A setting that a checkpoint does not know came with a later version, and was what its default is.
    """
    sections = {"model": Model(), "schema": Schema(target="y"), "labels": Labels()}
    known = {name: section.model_dump(mode="json") for name, section in sections.items()}
    del known["schema"]["target"]
    return known


def _schedule_table(kind: str) -> type[Section]:
    schedule = SCHEDULES[kind]
    settings: dict[str, Any] = {
        "kind": (Literal[kind], kind),
        **{
            name: (number, schedule._field_defaults.get(name, ...))
            for name, number in get_type_hints(schedule, include_extras=True).items()
        },
    }
    return create_model(schedule.__name__, __base__=Section, **settings)


SCHEDULE_TABLES: Mapping[str, type[BaseModel]] = {kind: _schedule_table(kind) for kind in SCHEDULES}
"""The model of the table ``model.schedule``, by its kind."""


class Kinds(NamedTuple):
    """What each connector wants to be told, by the ``kind`` that selects it; each model has a field ``kind``."""

    sources: Mapping[str, type[BaseModel]]
    predictions: Mapping[str, type[BaseModel]] = MappingProxyType({})
    dead_letters: Mapping[str, type[BaseModel]] = MappingProxyType({})


def load(
    path: str | Path,
    *,
    kinds: Kinds,
    environment: Mapping[str, str] = os.environ,
    overrides: Sequence[str] = (),
) -> Settings:
    """Read the settings of a daemon: flag over environment over file over default.

    Values of flags and environment variables are read as TOML, and as plain text where they are none.

    Args:
        path: config file (TOML).
        kinds: of connectors.
        environment: ``STREAMMOE_<SECTION>__<FIELD>`` is a setting; names without a double underscore are not.
        overrides: flags, ``section.field=value``. Of several sources the first is ``source.0.field``.

    Raises:
        ConfigError: with one sentence for each thing that is wrong.
    """
    reader = _Reader(str(path))
    reader.read_file(Path(path))
    for name, text in sorted(environment.items()):
        reader.read_variable(name, text)
    for flag in overrides:
        reader.read_flag(flag)
    return reader.settings(kinds)


def from_tables(tables: Mapping[str, Any], name: str, *, kinds: Kinds, overrides: Sequence[str] = ()) -> Settings:
    """The settings of tables that are in no file; messages call them `name`. Otherwise as `load`.

    Raises:
        ConfigError: with one sentence for each thing that is wrong.
    """
    reader = _Reader(name)
    reader.tables = {section: dict(table) for section, table in tables.items()}
    for flag in overrides:
        reader.read_flag(flag)
    return reader.settings(kinds)


def _with_nul(value: object, place: str = "") -> Iterator[str]:
    """The settings that hold a character which is in no path and no name."""
    if isinstance(value, str) and "\0" in value:
        yield place
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _with_nul(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _with_nul(inner, f"{place}.{i}")


Place = tuple[str, ...]
AnySection = TypeVar("AnySection", bound=BaseModel)


class _Reader:
    """The merged tables, where each value came from, and what is wrong with them so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.tables: dict[str, Any] = {}
        self.origins: dict[Place, str] = {}
        self.problems: list[str] = []

    def read_file(self, path: Path) -> None:
        try:
            self.tables = tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # editors on Windows begin with a mark
        except OSError as error:
            self._unreadable(f"cannot be read ({error.strerror}); give the path of a config file")
        except UnicodeDecodeError as error:
            self._unreadable(f"is not UTF-8 text (byte {error.start}); save it in that encoding")
        except tomllib.TOMLDecodeError as error:
            self._unreadable(f"is not TOML: {error}")
        except ValueError:
            self._unreadable("holds a number of too many digits")
        except RecursionError:
            self._unreadable("nests lists or tables too deeply")

    def _unreadable(self, sentence: str) -> NoReturn:
        # Without the file every required setting would be reported as missing, which would bury the cause.
        raise ConfigError(f"{self.file}: {sentence}")

    def read_variable(self, name: str, text: str) -> None:
        place = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(ENVIRONMENT_SEPARATOR))
        if name.startswith(ENVIRONMENT_PREFIX) and len(place) > 1:
            if all(place):
                self._put(place, text, f"environment variable {name}")
            else:
                shape = f"{ENVIRONMENT_PREFIX}SECTION{ENVIRONMENT_SEPARATOR}FIELD"
                self.problems.append(f"environment variable {name}: must look like {shape}")

    def read_flag(self, flag: str) -> None:
        name, equals, text = flag.partition("=")
        place = tuple(name.strip().split("."))
        if equals and len(place) > 1 and all(place):
            self._put(place, text, f"flag {name.strip()}")
        else:  # the value stays out of the message, it may be a password
            self.problems.append(f"flag {name!r}: must look like section.field=value, such as model.n_experts=4")

    def _put(self, place: Place, text: str, origin: str) -> None:
        table: dict[str, Any] = self.tables
        first = 0
        sources = self.tables.get("source")
        if place[0] == "source" and isinstance(sources, list):
            number = place[1]
            if not (len(place) > 2 and number.isdecimal() and int(number) < len(sources)):
                self.problems.append(
                    f"{'.'.join(place)}: there are {len(sources)} sources (from {origin}); name one of them by its "
                    f"number, such as source.0.{place[-1]}"
                )
                return
            table, first = sources[int(number)], 2
        self.origins = {known: where for known, where in self.origins.items() if known[: len(place)] != place}
        for i, part in enumerate(place[first:-1], start=first + 1):
            if not isinstance(table.get(part), dict):
                table[part] = {}
                self.origins[place[:i]] = origin
            table = table[part]
        table[place[-1]] = _parsed(text)
        self.origins[place] = origin

    def settings(self, kinds: Kinds) -> Settings:
        sections = {"source" if name == "sources" else name: model for name, model in get_type_hints(Settings).items()}
        unknown = [name for name in self.tables if name not in sections]
        self.problems += [self._unknown((name,), "section", sections) for name in unknown]
        self.problems += [f"{place}: must not hold the character NUL" for place in _with_nul(self.tables)]
        tables = {name: self.tables.get(name, {}) for name in sections}
        read: dict[str, Any] = {"sources": self._sources(kinds.sources, tables.pop("source"))}
        predictions: dict[str, type[BaseModel]] = {
            "none": NoPredictions,
            "file": PredictionFile,
            **_joined(Predictions, kinds.predictions),
        }
        letters: dict[str, type[BaseModel]] = {"file": DeadLetterFile, **_joined(DeadLetters, kinds.dead_letters)}
        table = tables.pop("predictions")
        if isinstance(table, dict) and "path" in table and "kind" not in table:
            self.problems.append(
                'predictions.kind: required where predictions.path is set; "file" writes them there, "none" nowhere'
            )
        if isinstance(table, dict) and table.get("kind", "none") == "none":
            # Whoever turns them off need not take out where they went.
            table = {name: value for name, value in table.items() if name in NoPredictions.model_fields}
        read["predictions"] = self._chosen(("predictions",), predictions, table, default="none")
        read["dead_letters"] = self._chosen(("dead_letters",), letters, tables.pop("dead_letters"), default="file")
        model = tables["model"]
        if isinstance(model, dict) and "schedule" in model:
            table = model.pop("schedule")
            alpha = DEFAULT_ALPHA.get(str(model.get("kind")))
            if alpha is not None and isinstance(table, dict) and table.get("kind", "power") == "power":
                table = {"alpha": alpha, **table}
            schedule = self._chosen(("model", "schedule"), SCHEDULE_TABLES, table, default="power")
            if schedule is not None:
                model["schedule"] = from_settings(schedule.model_dump())
        read |= {name: self._checked((name,), sections[name], table) for name, table in tables.items()}
        schema = tables["schema"]
        if isinstance(model, dict) and isinstance(schema, dict):
            self._check_outputs(model, schema.get("target"))
        self._check_labels(**read)
        if self.problems:
            raise ConfigError(*self.problems)
        return Settings(**read)

    def _check_outputs(self, model: dict[str, Any], target: object) -> None:
        """Whether the model is one of as many outputs as there are targets."""
        n = len(target) if isinstance(target, list) else int(isinstance(target, str))
        one = []
        if model.get("kind") == "classifier":
            one += ["must be one column where model.kind = 'classifier'"]
        if model.get("expert") == "laplace":
            one += ["must be one column where model.expert = 'laplace'; 'student_t' takes several"]
        if n > 1:
            self.problems += [self._broken(("schema", "target"), rule, target) for rule in one]
        if n == 1 and model.get("covariance") == "full":
            rule = "must be 'diagonal' where schema.target is one column; one output has nothing to be correlated with"
            self.problems.append(self._broken(("model", "covariance"), rule, "full"))

    def _check_labels(
        self, *, labels: Labels | None, schema: Schema | None, sources: Iterable[BaseModel | None], **_: object
    ) -> None:
        """Whether what is sound by itself goes together with joined labels."""
        key = None if labels is None else labels.key
        if key is None:
            return
        if schema is not None:
            taken = {"target": schema.targets, "weight": (schema.weight,)}
            if schema.features == "*":  # with a list the key may be a feature, if that names it
                taken |= {"categorical": schema.categorical, "timestamps": schema.timestamps}
            self.problems += [
                self._broken(("labels", "key"), f"must not be a column that schema.{name} names", key)
                for name, columns in taken.items()
                if key in columns
            ]
        formats = [form for source in sources if (form := getattr(source, "format", None)) in {"csv", "parquet"}]
        if formats:
            rule = f"must be left out where a source has the format {formats[0]!r}; only JSON Lines are joined"
            self.problems.append(self._broken(("labels", "key"), rule, key))

    def _sources(self, models: Mapping[str, type[BaseModel]], tables: Any) -> tuple[BaseModel | None, ...]:
        """One table, or several that are read one after the other."""
        if not isinstance(tables, list):
            return (self._chosen(("source",), models, tables),)
        if not tables:
            self.problems.append(self._missing(("source",), f"add [source] to {self.file}"))
        return tuple(self._chosen(("source", str(i)), models, table) for i, table in enumerate(tables))

    def _chosen(
        self, place: Place, models: Mapping[str, type[BaseModel]], table: Any, default: str | None = None
    ) -> BaseModel | None:
        """Check a table whose model depends on its ``kind``."""
        if not isinstance(table, dict):
            return self._checked(place, Section, table)
        kind = table.get("kind", default)
        if isinstance(kind, str) and kind in models:
            return self._checked(place, models[kind], {"kind": kind, **table})
        if kind is None:
            self.problems.append(self._missing((*place, "kind"), f"one of {', '.join(models)}"))
        else:
            self.problems.append(self._broken((*place, "kind"), f"must be one of {', '.join(models)}", kind))
        return None

    def _checked(self, place: Place, model: type[AnySection], table: Any) -> AnySection | None:
        if not isinstance(table, dict):
            self.problems.append(self._broken(place, "must be a table", table))
            return None
        try:
            return model.model_validate(table, extra="forbid")
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                if error["type"] != "default_factory_not_called":  # a default that waits for what is wrong elsewhere
                    self.problems.append(self._sentence(place, model, table, error))
            return None

    def _sentence(self, section: Place, model: type[BaseModel], table: Mapping[str, Any], error: ErrorDetails) -> str:
        place = section + tuple(_within(table, error["loc"]))
        if error["type"] == "extra_forbidden":
            return self._unknown(place, "setting", model.model_fields if len(place) == len(section) + 1 else ())
        if error["type"] == "missing":
            return self._missing(place, f"add it to [{'.'.join(section)}] in {self.file}")
        return self._broken(place, _rule(error), error["input"])

    def _unknown(self, place: Place, what: str, known: Iterable[str]) -> str:
        near = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}" if known else ""
        return f"{'.'.join(place)}: unknown {what} ({self._origin(place)}){hint}"

    def _missing(self, place: Place, hint: str) -> str:
        return f"{'.'.join(place)}: required, but not set; {hint}"

    def _broken(self, place: Place, rule: str, value: object) -> str:
        shown = _shown(value)
        if _SECRET.search(".".join(place)):
            rule, shown = rule.replace(str(value), _MASK), _MASK
        rule = _LOGIN.sub(f"{_MASK}@", rule)
        return f"{'.'.join(place)}: {rule}, got {shown} ({self._origin(place)})"

    def _origin(self, place: Place) -> str:
        lengths = range(len(place), 0, -1)
        return "from " + next((self.origins[place[:n]] for n in lengths if place[:n] in self.origins), self.file)


_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "float_type": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""What pydantic says in Python's words, as those who write a config file say it, by the type of its error."""


def _rule(error: ErrorDetails) -> str:
    """Return which rule a value breaks."""
    details = error.get("ctx", {})
    if error["type"] == "string_too_short" and details["min_length"] == 1:
        return "must not be empty"
    if error["type"] in _RULES:
        bounds = {name: f"{value:g}" if isinstance(value, float) else value for name, value in details.items()}
        return _RULES[error["type"]].format(**bounds)
    # A validator's own words; or pydantic's, "Input should be ...", "String should have ...".
    return str(details.get("error") or re.sub(r"^\w+ should", "must", error["msg"]))


def _joined(common: type[Section], models: Mapping[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """What connectors want to be told, beside what is common to all kinds of their section."""
    return {kind: create_model(model.__name__, __base__=(model, common)) for kind, model in models.items()}


def _within(table: object, location: tuple[int | str, ...]) -> Iterator[str]:
    """The parts of an error's location that are in the user's table: pydantic adds names of union members."""
    for i, part in enumerate(location):
        if isinstance(table, dict) and (part in table or i == len(location) - 1):
            table = table.get(part)
        elif isinstance(table, list) and isinstance(part, int):
            table = table[part]
        else:
            continue
        yield str(part)


def _parsed(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text  # plain text needs no quotes in a shell
    return table["value"] if len(table) == 1 else text


_SECRET = re.compile("password|secret|token", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=//)\S*@|[^\s/'\",]*:(?!//)[^\s'\",]*@")  # of an address, with or without a protocol before it
_MASK = "***"
_LONGEST_SHOWN = 60


def _shown(value: object) -> str:
    """A value as its user may have written it, short, and without what may be secret inside a table."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case date() | clock():  # TOML knows dates and times of day
            return value.isoformat()
    text = _LOGIN.sub(f"{_MASK}@", repr(value))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
