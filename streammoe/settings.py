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
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, cast, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    create_model,
    field_serializer,
    field_validator,
)
from pydantic_core import ErrorDetails

from streammoe.errors import ConfigError
from streammoe.schedules import SCHEDULES, Schedule, from_settings, power, to_settings

ENVIRONMENT_PREFIX = "STREAMMOE_"
ENVIRONMENT_SEPARATOR = "__"

Text = Annotated[str, StringConstraints(min_length=1)]


class Section(BaseModel):
    """Base of the sections: frozen, without type conversions, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _one_target(value: object) -> object:
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ValueError(f"must be one column, several targets are not supported yet; {len(value)} are listed")
        return value[0]
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


class Schema(Section):
    """Which columns are learned from."""

    target: Annotated[Text, BeforeValidator(_one_target)]
    features: Annotated[Literal["*"] | tuple[str, ...], BeforeValidator(_all_or_columns)] = "*"
    ignore: Annotated[tuple[str, ...], BeforeValidator(_columns)] = ()

    @field_validator("features", "ignore")
    @classmethod
    def _disjoint(cls, names: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        if names == "*":
            return names
        if info.data.get("target") in names:
            raise ValueError(f"must not hold the target {info.data['target']!r}")
        if both := [name for name in info.data.get("features", ()) if name in names]:
            raise ValueError(f"must not hold what schema.features lists too ({', '.join(both)})")
        return names


class Model(Section):
    """What is learned and how; the names are those of the estimators' arguments."""

    kind: Literal["regressor"] = "regressor"
    n_experts: int = Field(4, ge=1, le=1000)
    degree: int = Field(1, ge=1)
    gate_degree: int = Field(1, ge=1)
    covariance: Literal["diagonal"] = "diagonal"
    bound: Literal["tight", "paper"] = "tight"
    prior_strength: float = Field(0.1, ge=0)
    seed: int = Field(0, ge=0)
    standardize: bool = True
    range_factor: float = Field(1e6, ge=0)
    averaging: Literal["polyak", "decay", "none"] = "polyak"
    warmup: int | None = Field(None, ge=0)
    """Events in the warm-up buffer; ``None`` lets it grow with the number of parameters."""
    warmup_restarts: int = Field(5, ge=1)
    schedule: SkipValidation[Schedule] = power()
    """Checked as a table of its own, whose names depend on its kind (`SCHEDULE_TABLES`)."""

    @field_validator("warmup")
    @classmethod
    def _long_enough(cls, warmup: int | None, info: ValidationInfo) -> int | None:
        needs = {"standardize": True, "prior_strength": 0.0}
        needing = [name for name, value in needs.items() if warmup == 0 and info.data.get(name) == value]
        if needing:
            settings = " and ".join(f"model.{name} = {_shown(needs[name])}" for name in needing)
            raise ValueError(f"must be above 0, since {settings} cannot do without a warm-up")
        return warmup

    @field_serializer("schedule")
    def _schedule_table(self, schedule: Schedule) -> dict[str, str | float]:
        return to_settings(schedule)


class Checkpoint(Section):
    """Where and how often the model is saved; whichever of the two comes first."""

    dir: Text = "state"
    every_events: int = Field(50_000, ge=1)
    every_seconds: float = Field(30.0, gt=0)
    keep: int = Field(3, ge=1)


class Metrics(Section):
    """The address that metrics are served at."""

    enabled: bool = True
    host: Text = "127.0.0.1"
    port: int = Field(9464, ge=0, le=65535)
    """0 takes any free port."""


class Predictions(Section):
    """Where predictions go."""

    kind: Literal["none"] = "none"


class DeadLetters(Section):
    """Where refused records go, and how many are too many."""

    kind: Literal["file"] = "file"
    path: Text = "state/dead-letters.jsonl"
    max_ratio: float = Field(0.5, gt=0, le=1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one daemon."""

    source: BaseModel
    """An instance of the `Settings` that the connector brings for its kind."""
    schema: Schema
    model: Model
    checkpoint: Checkpoint
    metrics: Metrics
    predictions: Predictions
    dead_letters: DeadLetters

    def learning_settings(self) -> dict[str, object]:
        """What shapes the learned state, as plain JSON values, to compare with what a checkpoint was learned with."""
        return {"model": self.model.model_dump(mode="json"), "schema": self.schema.model_dump(mode="json")}


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


def load(
    path: str | Path,
    *,
    sources: Mapping[str, type[BaseModel]],
    environment: Mapping[str, str] = os.environ,
    overrides: Sequence[str] = (),
) -> Settings:
    """Read the settings of a daemon: flag over environment over file over default.

    Values of flags and environment variables are read as TOML, and as plain text where they are none.

    Args:
        path: config file (TOML).
        sources: the `Settings` model of each source connector by its kind; each has a field ``kind``.
        environment: ``STREAMMOE_<SECTION>__<FIELD>`` is a setting; names without a double underscore are not.
        overrides: flags, ``section.field=value``.

    Raises:
        ConfigError: with one sentence for each thing that is wrong.
    """
    reader = _Reader(str(path))
    reader.read_file(Path(path))
    for name, text in sorted(environment.items()):
        reader.read_variable(name, text)
    for flag in overrides:
        reader.read_flag(flag)
    return reader.settings(sources)


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
            self.tables = tomllib.loads(path.read_bytes().decode())
        except OSError as error:
            self._unreadable(f"cannot be read ({error.strerror}); give the path of a config file")
        except UnicodeDecodeError as error:
            self._unreadable(f"is not UTF-8 text (byte {error.start}); save it in that encoding")
        except tomllib.TOMLDecodeError as error:
            self._unreadable(f"is not TOML: {error}")

    def _unreadable(self, sentence: str) -> NoReturn:
        # Without the file every required setting would be reported as missing, which would bury the cause.
        raise ConfigError(f"{self.file}: {sentence}")

    def read_variable(self, name: str, text: str) -> None:
        place = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(ENVIRONMENT_SEPARATOR))
        if name.startswith(ENVIRONMENT_PREFIX) and len(place) > 1:
            self._put(place, text, f"environment variable {name}")

    def read_flag(self, flag: str) -> None:
        name, equals, text = flag.partition("=")
        place = tuple(name.strip().split("."))
        if equals and len(place) > 1:
            self._put(place, text, f"flag {name.strip()}")
        else:  # the value stays out of the message, it may be a password
            self.problems.append(f"flag {name!r}: must look like section.field=value, such as model.n_experts=4")

    def _put(self, place: Place, text: str, origin: str) -> None:
        table = self.tables
        self.origins = {known: where for known, where in self.origins.items() if known[: len(place)] != place}
        for i, part in enumerate(place[:-1], start=1):
            if not isinstance(table.get(part), dict):
                table[part] = {}
                self.origins[place[:i]] = origin
            table = table[part]
        table[place[-1]] = _parsed(text)
        self.origins[place] = origin

    def settings(self, sources: Mapping[str, type[BaseModel]]) -> Settings:
        sections = get_type_hints(Settings)
        unknown = [name for name in self.tables if name not in sections]
        self.problems += [self._unknown((name,), "section", sections) for name in unknown]
        tables = {name: self.tables.get(name, {}) for name in sections}
        read = {"source": self._chosen(("source",), sources, tables.pop("source"))}
        model = tables["model"]
        if isinstance(model, dict) and "schedule" in model:
            schedule = self._chosen(("model", "schedule"), SCHEDULE_TABLES, model.pop("schedule"), default="power")
            if schedule is not None:
                model["schedule"] = from_settings(schedule.model_dump())
        read |= {name: self._checked((name,), sections[name], table) for name, table in tables.items()}
        if self.problems:
            raise ConfigError(*self.problems)
        return Settings(**cast("dict[str, Any]", read))

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
                self.problems.append(self._sentence(place, model, table, error))
            return None

    def _sentence(self, section: Place, model: type[BaseModel], table: Mapping[str, Any], error: ErrorDetails) -> str:
        place = section + tuple(_within(table, error["loc"]))
        if error["type"] == "extra_forbidden":
            return self._unknown(place, "setting", model.model_fields if len(place) == len(section) + 1 else ())
        if error["type"] == "missing":
            return self._missing(place, f"add it to [{'.'.join(section)}] in {self.file}")
        raised = error.get("ctx", {}).get("error")
        # Pydantic says "Input should be ...", "String should have ...".
        return self._broken(place, str(raised or re.sub(r"^\w+ should", "must", error["msg"])), error["input"])

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
        return f"{'.'.join(place)}: {rule}, got {shown} ({self._origin(place)})"

    def _origin(self, place: Place) -> str:
        lengths = range(len(place), 0, -1)
        return "from " + next((self.origins[place[:n]] for n in lengths if place[:n] in self.origins), self.file)


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
    except tomllib.TOMLDecodeError:
        return text  # plain text needs no quotes in a shell
    return table["value"] if len(table) == 1 else text


_SECRET = re.compile("password|secret|token", re.IGNORECASE)
_MASK = "***"
_LONGEST_SHOWN = 60


def _shown(value: object) -> str:
    """A value as its user may have written it, short, and without what may be secret inside a table."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
