"""Every section of a config file: names, types, ranges and defaults of its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from datetime import time as clock
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    SkipValidation,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    WrapValidator,
    create_model,
    field_serializer,
    field_validator,
)

from streammoe import text
from streammoe.bounds import BOUNDS
from streammoe.schedules import SCHEDULES, Schedule, power, to_settings
from streammoe.secrets import masked

LONGEST_SHOWN = 60

Text = Annotated[str, StringConstraints(min_length=1)]


def _within_bounds(name: str) -> Any:
    """The rule of a number's bounds, which are those of the estimators."""
    return Field(ge=BOUNDS[name].least, le=BOUNDS[name].most)


def _size(name: str, default: int | None) -> Any:
    """A field with that rule."""
    return Field(default, ge=BOUNDS[name].least, le=BOUNDS[name].most)


def shown(value: object) -> str:
    """Return a value as its user may have written it, short, and without what may be secret inside a table."""
    match value:
        case None | bool():
            return text.shown(value)
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case date() | clock():  # TOML knows dates and times of day
            return value.isoformat()
    return text.cut(masked(repr(value)), LONGEST_SHOWN)


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
            settings = " and ".join(f"model.{name} = {shown(needs[name])}" for name in needing)
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
