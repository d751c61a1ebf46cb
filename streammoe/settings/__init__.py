"""Settings: every section of a config file, with names, types, ranges and defaults.

`streammoe.settings.reader` merges file, environment and flags, and reports all errors in one `ConfigError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from streammoe.fields import Change, Section, facts_of, option
from streammoe.notation import EVERY, TICKS, Notations, factor_of, is_format
from streammoe.options import ClassifierOptions, RegressorOptions
from streammoe.secrets import Secret

Text = Annotated[str, StringConstraints(min_length=1)]


def _target(value: object) -> object:
    """Convert one column to its name, and several to a tuple of names."""
    if isinstance(value, (list, tuple)):
        names = _columns(value)
        if not names:
            raise ValueError("must name a column, or list several")
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


def _times(value: object) -> object:
    """Check a list of columns, or a table of their formats."""
    if not isinstance(value, dict):
        return _columns(value)
    for name, form in value.items():
        if form not in TICKS and not is_format(form):
            known = ", ".join(map(repr, TICKS))
            raise ValueError(f"must have a format for {name!r}: {known}, or one for Python's strptime, without %Z")
    return value


def _markers(value: object) -> object:
    """Check texts and numbers that stand for missing values, of all columns or by column."""
    table = value if isinstance(value, dict) else {EVERY: value}
    lists = {name: tuple(each) if isinstance(each, (list, tuple)) else (each,) for name, each in table.items()}
    markers = [marker for each in lists.values() for marker in each]
    if not all(isinstance(marker, str | int | float) and not isinstance(marker, bool) for marker in markers):
        raise ValueError("must hold texts or numbers, in a list or by column, such as { CO = [-200, 'off'] }")
    return lists


def _units(value: object) -> object:
    """Check the factors of texts before and after numbers."""
    table = {unit.strip(): factor for unit, factor in value.items()} if isinstance(value, dict) else {"": value}
    factors = [factor for factor in table.values() if isinstance(factor, int | float) and not isinstance(factor, bool)]
    bad = [unit for unit in table if not unit or (unit[0] in "0123456789+-.," and unit != "-")]
    if bad or len(factors) < len(table) or not all(0.0 < abs(factor) < math.inf for factor in factors):
        raise ValueError(
            "must map texts before or after numbers to their factors, other than 0, such as { '°C' = 1, M = 1e6 }; "
            "they do not begin with a digit, a sign, a point or a comma, except for a lone minus sign behind a number"
        )
    units = dict(zip(table, map(float, factors), strict=True))
    for (unit, factor), (other, same) in combinations(units.items(), 2):
        right = factor_of(other, {unit: factor})
        if same == factor and right is not None and right != factor:
            raise ValueError(
                f"must not give {unit!r} and {other!r} the same factor: with {unit} = {factor:g}, {other} is {right:g}"
            )
    return units


def _host_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of host names")
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]", name):
            raise ValueError(f"must be host names without scheme, port and path, but contains {name!r}")
    return tuple(value)


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ValueError("must be a time zone of the IANA database, such as Europe/Berlin") from None
    return name


def _late(late_columns: bool, info: ValidationInfo) -> bool:
    if late_columns and info.data.get("features", "*") != "*":
        raise ValueError("must be false if schema.features is a list, which is complete")
    return late_columns


class SchemaSettings(Section):
    """The columns to learn from, and their meaning."""

    target: Annotated[Text | tuple[str, ...], BeforeValidator(_target)]
    """One column, or several outputs."""
    features: Annotated[Literal["*"] | tuple[str, ...], BeforeValidator(_all_or_columns)] = "*"
    ignore: Columns = ()
    weight: Text | None = None
    """The column with the weight of an event; ``None`` gives all the same weight."""
    categorical: Columns = ()
    timestamps: Annotated[tuple[str, ...] | dict[str, str], BeforeValidator(_times)] = ()
    """Features that are times; in a table, with the format of each."""
    numeric: Columns = ()
    missing: Annotated[dict[str, tuple[str | float, ...]], BeforeValidator(_markers)] = option(
        {},
        "What stands for a missing value besides NA, None and the like: a list, or by column { CO = [-200] }.",
        change="restart",
    )
    thousands: Literal["", ",", ".", "'", " ", "_"] = option(
        "", "Separator of thousands in numbers that are text, such as a comma.", change="restart"
    )
    units: Annotated[dict[str, float], BeforeValidator(_units)] = option(
        {},
        'Factors of units, percent or currency signs before or after numbers: { "°C" = 1, "%" = 0.01, M = 1e6 }.',
        change="restart",
    )
    time_zone: Annotated[str, AfterValidator(_known_zone)] = option(
        "UTC", "Time zone of times that name none, such as Europe/Berlin.", change="restart"
    )
    late_columns: Annotated[bool, AfterValidator(_late)] = False
    max_columns: int = option(
        256,
        'Maximum number of columns if features = "*", including late ones.',
        change="restart",
        ge=1,
        le=10_000,
    )
    """Maximum number of columns if ``features`` is not a list, late ones included."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Target columns, one for each output."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @field_validator("features", "ignore", "weight", "categorical", "timestamps", "numeric")
    @classmethod
    def _disjoint(
        cls, value: str | tuple[str, ...] | dict[str, str] | None, info: ValidationInfo
    ) -> str | tuple[str, ...] | dict[str, str] | None:
        """Reject columns with more than one meaning."""
        if value == "*" or value is None:
            return value
        names = (value,) if isinstance(value, str) else value
        of_features = info.field_name in {"categorical", "timestamps", "numeric"}
        for other, taken in info.data.items():  # the settings before this one, as far as they are valid
            held = (taken,) if isinstance(taken, str) else taken or ()
            both = [] if of_features and other == "features" else [name for name in held if name in names]
            if both and other == "target":
                raise ValueError(f"must not contain the target {both[0]!r}")
            if both:
                raise ValueError(f"must not contain what schema.{other} names, too ({', '.join(both)})")
        features = info.data.get("features", "*")
        if of_features and features != "*":
            others = [name for name in names if name not in features]
            if others:
                raise ValueError(f"must name features only; schema.features does not list {', '.join(others)}")
        return value

    @property
    def notations(self) -> Notations:
        """How values are written."""
        times = self.timestamps if isinstance(self.timestamps, dict) else {}
        return Notations(
            self.missing, self.thousands, self.units, times, "" if self.time_zone == "UTC" else self.time_zone
        )


class Classifier(ClassifierOptions):
    """Classifier options with labels as strings, as they are read from records."""

    @field_validator("classes", mode="before")
    @classmethod
    def _as_texts(cls, labels: object) -> object:
        if not isinstance(labels, (list, tuple)):
            return labels
        if not all(isinstance(label, str | int) and label != "" for label in labels):
            raise ValueError("must be a list of labels: strings, integers or booleans")
        return tuple(str(label).lower() if isinstance(label, bool) else str(label) for label in labels)


Model: TypeAlias = RegressorOptions | Classifier
MODELS: Mapping[str, type[Model]] = {"regressor": RegressorOptions, "classifier": Classifier}
"""The options of the table ``model``, by its kind."""


def _expiry(limit: float | None, info: ValidationInfo) -> float | None:
    if limit is not None and info.data.get("key", "") is None:
        raise ValueError("must be omitted if labels.key is, since no records wait then")
    return limit


class Labels(Section):
    """Joining of features with labels that arrive later."""

    key: Text | None = None
    """The field that identifies both halves; ``None`` if features and target are in the same record."""
    max_pending: int = option(
        100_000, "Records that may wait for their other half; beyond that the oldest expires.", change="reload", ge=1
    )
    expire_events: Annotated[int | None, AfterValidator(_expiry)] = option(
        None, "Number of records after which a waiting one expires; by default unlimited.", change="reload", ge=1
    )
    expire_seconds: Annotated[float | None, AfterValidator(_expiry)] = option(
        None, "Like expire_events, in seconds, by the records' timestamps; files have none.", change="reload", gt=0
    )
    keep_expired: bool = option(
        False, "Write records that expire to the dead letters, which may be most of the stream.", change="reload"
    )


class CheckpointSettings(Section):
    """Where and how often the model is saved."""

    dir: Text = "state"
    every_events: int = option(
        200_000, "Save after this many events, or after every_seconds, whichever comes first.", change="reload", ge=1
    )
    every_seconds: float = option(30.0, "Save after this many seconds at the latest.", change="reload", gt=0)
    keep: int = option(3, "Number of generations to keep.", change="reload", ge=1)
    retry_seconds: float = option(
        600.0,
        "How long to retry when saving fails, while learning waits; then exit 4.",
        change="reload",
        ge=0,
    )
    stop_seconds: float = option(
        25.0,
        "How long a stop may take; then the process ends as if it was killed, and says what was not saved.",
        change="reload",
        gt=0,
    )
    mirror: str = option(
        "", "Folder or URL of fsspec to which the newest checkpoint is copied; empty: nowhere.", change="reload"
    )
    mirror_every_seconds: float = option(60.0, "How often to copy it, if there is a new one.", change="reload", gt=0)


def _without_colon(username: str | None) -> str | None:
    if username is not None and ":" in username:
        raise ValueError("must not contain a colon, which ends a user name in HTTP")
    return username


class ListenerSettings(Section):
    """The address at which something is served, and to whom; the sections that extend it add a port."""

    section: ClassVar[str]
    exposes: ClassVar[str]
    """What anybody can do who may connect, for a warning."""

    enabled: bool
    host: Text = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)
    """0 takes any free port."""
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_host_names)] = ()
    """Host names that requests may use, in addition to this machine's loopback names."""
    tls_certfile: Text | None = None
    """The certificate chain; without it connections are not encrypted."""
    tls_keyfile: Text | None = Field(None, validate_default=True)
    """The certificate's private key, without a password."""
    username: Annotated[Text | None, AfterValidator(_without_colon)] = None
    """The user who is answered, with a password."""
    password: Secret | None = Field(None, validate_default=True)
    """The user's password."""

    @field_validator("tls_keyfile", "password")
    @classmethod
    def _with_the_other(cls, value: Any, info: ValidationInfo) -> Any:
        other = "username" if info.field_name == "password" else "tls_certfile"
        if other in info.data and (value is None) != (info.data[other] is None):
            raise ValueError(f"must be set if and only if {cls.section}.{other} is")
        return value


class MetricsSettings(ListenerSettings):
    """The address at which metrics are served."""

    section: ClassVar = "metrics"
    exposes: ClassVar = "CAN READ THE METRICS, including names of outputs and topics"

    enabled: bool = True
    port: int = Field(9464, ge=0, le=65535)


class ServeSettings(ListenerSettings):
    """The address at which predictions are served."""

    section: ClassVar = "serve"
    exposes: ClassVar = "CAN ASK THE MODEL, and read names of columns, rejected records and what was learned"

    enabled: bool = False
    port: int = Field(9465, ge=0, le=65535)
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "streammoe"
    """The name of the model in the Open Inference Protocol."""
    max_body_bytes: int = Field(1 << 20, ge=1 << 10, le=1 << 28)
    max_rows: int = Field(10_000, ge=1)
    """Rows of one request."""
    rows_per_second: int = Field(20_000, ge=1)
    """Rows answered in a second, on average, so that requests cannot keep learning waiting."""


class PredictionSettings(Section):
    """The content of predictions; their destination depends on their kind, whose model extends this one.

    Those of the kind ``none`` are scored but not written.
    """

    kind: str = "none"
    interval: float = option(
        0.9, "Probability of the predictive interval; 0 leaves it out.", change="reload", ge=0, lt=1
    )
    gate: bool = option(True, "Include the experts' shares in each prediction.", change="reload")


def _of_lines(path: str) -> str:
    if Path(path).suffix.lower() in {".parquet", ".pq", ".csv"}:
        raise ValueError("must end in .jsonl: predictions are JSON Lines")
    return path


class PredictionFileSettings(PredictionSettings):
    """Predictions that are written to files."""

    kind: Literal["file"]
    path: Annotated[Text, AfterValidator(_of_lines)]


class DeadLetters(Section):
    """The limit on rejected records; their destination depends on their kind, whose model extends this one."""

    kind: str = "file"
    max_ratio: float = option(
        0.5,
        "Fail if more of the last 1,000 records, or of all up to a source's end, were rejected.",
        change="reload",
        gt=0,
        le=1,
    )


class DeadLetterFileSettings(DeadLetters):
    """Rejected records that are written to a file."""

    kind: Literal["file"] = "file"
    path: Text = "state/dead-letters.jsonl"
    """By default in ``checkpoint.dir``."""


class GuardSettings(Section):
    """The reaction to a jump of the loss."""

    on_jump: Literal["off", "alarm", "stop"] = "alarm"


class Global(Section):
    """A global model that other daemons' shards are part of, too, and whether it predicts."""

    path: str = ""
    """A folder; empty: there is none."""
    serve: Literal["global", "better"] = "better"
    """Which model predicts: the global one, or whichever has had the lower loss lately."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one daemon."""

    source: Any
    """An instance of its connector's `Settings`."""
    schema: SchemaSettings
    labels: Labels
    model: Model
    checkpoint: CheckpointSettings
    metrics: MetricsSettings
    serve: ServeSettings
    predictions: PredictionSettings
    """If the kind belongs to a connector, also an instance of its `Settings`."""
    dead_letters: DeadLetters
    """If the kind belongs to a connector, also an instance of its `Settings`."""
    guard: GuardSettings
    global_: Global = field(default_factory=Global)
    """The section ``global``, a word that Python reserves."""
    challenger: Model | None = None
    """Options of a second model that learns next to that of `model`, from which it has what is not given."""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """The tables of `LEARNING` as they were given, without defaults."""

    def learning_settings(self) -> dict[str, object]:
        """Return the settings that affect the learned state as JSON values, for comparison with a checkpoint."""
        sections = (*LEARNING, *(["challenger"] if self.challenger is not None else []))
        return {section: getattr(self, section).model_dump(mode="json") for section in sections}

    def exchanged(self) -> Self:
        """Return the settings with the challenger in place of the model, and the other way round."""
        assert self.challenger is not None  # noqa: S101 - for the type checker; callers know that there is one
        return replace(self, model=self.challenger, challenger=self.model)


def section_name(attribute: str) -> str:
    """Return the name of the section that an attribute of `Settings` holds.

    >>> section_name("global_")
    'global'
    """
    return attribute.removesuffix("_")


LEARNING = ("model", "schema", "labels")
"""Sections that affect what is learned."""


def change_policy(section: str, table: type[BaseModel], name: str) -> Change:
    """Return when a setting may change once there is a checkpoint.

    Args:
        section: section of the setting.
        table: model of that section.
        name: name of the setting.

    >>> change_policy("model", RegressorOptions, "degree"), change_policy("metrics", MetricsSettings, "port")
    ('never', 'restart')
    """
    field = table.model_fields.get(name)
    said = None if field is None else facts_of(field).change
    if section == "challenger" and said != "reload":
        return "restart"  # of the challenger, too
    return said or ("never" if section in LEARNING else "restart")
