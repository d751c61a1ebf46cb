"""Read settings from a file, the environment and flags, and report all errors at once."""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import ErrorDetails

from streammoe.errors import ConfigError
from streammoe.fields import Section, errors_of, rule_of, shown
from streammoe.notation import EVERY, ISO
from streammoe.options import CHOICES, SEVERAL, Lags
from streammoe.secrets import HIDDEN, is_secret, masked
from streammoe.settings import (
    LEARNING,
    MODELS,
    DeadLetterFileSettings,
    DeadLetters,
    Global,
    Labels,
    Model,
    PredictionFileSettings,
    PredictionSettings,
    SchemaSettings,
    Settings,
    section_name,
)

ENVIRONMENT_PREFIX = "STREAMMOE_"
ENVIRONMENT_SEPARATOR = "__"


class Kinds(NamedTuple):
    """Models of connectors' settings, by the ``kind`` that selects them; each has a field ``kind``."""

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

    Values of flags and environment variables are parsed as TOML, or as plain text if they are not valid TOML.

    Args:
        path: config file (TOML).
        kinds: models of connectors' settings.
        environment: ``STREAMMOE_<SECTION>__<FIELD>`` is a setting; names without a double underscore are ignored.
        overrides: flags, ``section.field=value``.

    Raises:
        ConfigError: settings are invalid; it has one sentence for each error.
    """
    return from_tables(_tables_of(Path(path)), str(path), kinds=kinds, environment=environment, overrides=overrides)


def from_tables(
    tables: Mapping[str, Any],
    name: str,
    *,
    kinds: Kinds,
    environment: Mapping[str, str] = MappingProxyType({}),
    overrides: Sequence[str] = (),
) -> Settings:
    """Like `load`, from in-memory tables; `name` stands for the file in error messages.

    Raises:
        ConfigError: settings are invalid; it has one sentence for each error.
    """
    reader = _Reader(name, deepcopy(dict(tables)))
    for variable, text in sorted(environment.items()):
        reader.read_variable(variable, text)
    for flag in overrides:
        reader.read_flag(flag)
    return reader.settings(kinds)


def _tables_of(path: Path) -> dict[str, Any]:
    """Read a file; what is wrong is raised at once, since each required setting would be reported as missing."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # Windows editors may write a BOM
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); give the path of a config file"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start}); save it in that encoding"
    except tomllib.TOMLDecodeError as error:
        problem = f"is not TOML: {error}"
    except ValueError:
        problem = "contains a number with too many digits"
    except RecursionError:
        problem = "nests lists or tables too deeply"
    raise ConfigError(f"{path}: {problem}")


def _with_nul(value: object, location: str = "") -> Iterator[str]:
    """Find the settings that contain NUL, which no path or name may contain."""
    if isinstance(value, str) and "\0" in value:
        yield location
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _with_nul(inner, f"{location}.{name}" if location else str(name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _with_nul(inner, f"{location}.{i}")


Location = tuple[str, ...]
AnySection = TypeVar("AnySection", bound=BaseModel)


class _Reader:
    """The merged tables, with the origin of each value and the errors found so far."""

    def __init__(self, file: str, tables: dict[str, Any]) -> None:
        self.file = file
        self.tables = tables
        self.origins: dict[Location, str] = {}
        self.problems: list[str] = []

    def read_variable(self, name: str, text: str) -> None:
        location = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(ENVIRONMENT_SEPARATOR))
        if name.startswith(ENVIRONMENT_PREFIX) and len(location) > 1:
            if all(location):
                self._put(location, text, f"environment variable {name}")
            else:
                shape = f"{ENVIRONMENT_PREFIX}SECTION{ENVIRONMENT_SEPARATOR}FIELD"
                self.problems.append(f"environment variable {name}: must look like {shape}")

    def read_flag(self, flag: str) -> None:
        name, equals, text = flag.partition("=")
        location = _location(name.strip())
        if equals and len(location) > 1 and all(location):
            self._put(location, text, f"flag {name.strip()}")
        else:  # the message omits the value, which may be a password
            self.problems.append(f"flag {name!r}: must look like section.field=value, such as model.n_experts=4")

    def _put(self, location: Location, text: str, origin: str) -> None:
        table: dict[str, Any] = self.tables
        self.origins = {known: where for known, where in self.origins.items() if known[: len(location)] != location}
        for i, part in enumerate(location[:-1], start=1):
            if not isinstance(table.get(part), dict):
                table[part] = _opened(location[:i], table.get(part))
                self.origins[location[:i]] = origin
            table = table[part]
        table[location[-1]] = parsed(text)
        self.origins[location] = origin

    def settings(self, kinds: Kinds) -> Settings:
        sections = {section_name(name): model for name, model in get_type_hints(Settings).items() if name != "given"}
        unknown = [name for name in self.tables if name not in sections]
        self.problems += [self._unknown((name,), "section", sections) for name in unknown]
        self.problems += [f"{location}: must not contain the character NUL" for location in _with_nul(self.tables)]
        tables = {name: self.tables.get(name, {}) for name in sections}
        read: dict[str, Any] = {"source": self._chosen(("source",), kinds.sources, tables.pop("source"))}
        predictions: dict[str, type[BaseModel]] = {
            "none": PredictionSettings,
            "file": PredictionFileSettings,
            **{kind: _joined(PredictionSettings, model) for kind, model in kinds.predictions.items()},
        }
        letters: dict[str, type[BaseModel]] = {
            "file": DeadLetterFileSettings,
            **{kind: _joined(DeadLetters, model) for kind, model in kinds.dead_letters.items()},
        }
        table = tables.pop("predictions")
        if isinstance(table, dict) and "path" in table and "kind" not in table:
            self.problems.append(
                'predictions.kind: required if predictions.path is set; "file" writes there, "none" nowhere'
            )
        if isinstance(table, dict) and table.get("kind", "none") == "none":
            # Predictions can be disabled without removing the settings of their destination.
            table = {name: value for name, value in table.items() if name in PredictionSettings.model_fields}
        read["predictions"] = self._chosen(("predictions",), predictions, table, default="none")
        table, saved = tables.pop("dead_letters"), tables["checkpoint"]
        folder = saved.get("dir") if isinstance(saved, dict) else None
        if isinstance(table, dict) and table.get("kind", "file") == "file" and isinstance(folder, str):
            table = {"path": str(Path(folder, "dead-letters.jsonl")), **table}
        read["dead_letters"] = self._chosen(("dead_letters",), letters, table, default="file")
        schema = tables["schema"]
        target = schema.get("target") if isinstance(schema, dict) else None
        model, challenger = tables.pop("model"), tables.pop("challenger")
        read["model"] = self._model("model", model, target)
        if "challenger" in self.tables and read["model"] is not None:
            read["challenger"] = self._challenger(read["model"], model, challenger, target)
        read |= {name: self._checked((name,), sections[name], table) for name, table in tables.items()}
        read["global_"] = read.pop("global")
        self._check_labels(**read)
        models = {section: read.get(section) for section in ("challenger", "model")}
        # What the challenger has from the model is said once.
        lags = {of.given_lags: section for section, of in models.items() if of is not None}
        for given, section in lags.items():
            self._check_lags(section, given, **read)
        if len(lags) > 1 and getattr(read["labels"], "key", None) is not None:
            rule = "must be as model.lags if labels.key is set: events wait with the lags that they were predicted with"
            self.problems.append(self._broken(("challenger", "lags"), rule, challenger.get("lags")))
        self._check_thousands(**read)
        if self.problems:
            raise ConfigError(*self.problems)
        return Settings(**read, given={name: self.tables[name] for name in LEARNING if name in self.tables})

    def _model(self, section: str, table: Any, target: object) -> Model | None:
        """Check the table of a model with as many outputs as there are targets."""
        n = len(target) if isinstance(target, list) else int(isinstance(target, str))
        if isinstance(table, dict) and n > 1 and table.get("kind") == "classifier":
            rule = "must be one column if model.kind = 'classifier'"
            self.problems.append(self._broken(("schema", "target"), rule, target))
        found: Any = self._chosen((section,), MODELS, table, "regressor", {SEVERAL: n > 1} if n else None)
        return found  # type: ignore[no-any-return]

    def _challenger(self, model: Model, given: Any, table: Any, target: object) -> Model | None:
        """Check the table of a challenger, which has each option that is not given from the model."""
        found = self._model("challenger", {**given, **table} if isinstance(table, dict) else table, target)
        if found is None:
            return None
        if found.kind != model.kind:
            rule = f"must be as model.kind, {model.kind!r}, since the two are compared"
            self.problems.append(self._broken(("challenger", "kind"), rule, found.kind))
        elif found == model:
            self.problems.append(self._broken(("challenger",), "must differ from [model], or be left out", table))
        return found

    def _check_labels(self, *, labels: Labels | None, schema: SchemaSettings | None, source: Any, **_: object) -> None:
        """Check that settings which are valid individually are compatible with joined labels."""
        key = None if labels is None else labels.key
        if key is None:
            return
        if schema is not None:
            taken = {"target": schema.targets, "weight": (schema.weight,)}
            if schema.features == "*":  # a list of features may include the key
                taken |= {name: getattr(schema, name) for name in ("categorical", "timestamps", "numeric")}
            self.problems += [
                self._broken(("labels", "key"), f"must not be a column that schema.{name} names", key)
                for name, columns in taken.items()
                if key in columns
            ]
        if (form := getattr(source, "format", None)) in {"csv", "parquet"}:
            rule = f"must be omitted if a source has the format {form!r}; only JSON Lines can be joined"
            self.problems.append(self._broken(("labels", "key"), rule, key))

    def _check_lags(
        self, section: str, lags: Lags | None, *, schema: SchemaSettings | None, global_: Global | None, **_: object
    ) -> None:
        """Check that the inputs with lags are numbers, and that no global model would have to know the lags."""
        if lags is None:
            return
        if global_ is not None and global_.path:
            rule = (
                f"must be empty if {section}.lags is set: a global model does not know the last targets of each shard"
            )
            self.problems.append(self._broken(("global", "path"), rule, global_.path))
        if schema is None:
            return
        inputs = set(lags.inputs)
        for rule, names in (
            ("must leave out {!r}, which is in schema.categorical: only numbers have lags", schema.categorical),
            ("must leave out {!r}, which is in schema.timestamps: only numbers have lags", schema.timestamps),
            ("must be inputs, and {!r} is a target, whose lags are features anyway", schema.targets),
            ("must be inputs, and {!r} is in schema.ignore", schema.ignore),
            ("must be inputs, and {!r} is schema.weight", (schema.weight,)),
            (
                "must be inputs, and {!r} is not in schema.features",
                () if schema.features == "*" else inputs.difference(schema.features),
            ),
        ):
            if both := sorted(inputs.intersection(names)):
                self.problems.append(self._broken((section, "lags", "inputs"), rule.format(both[0]), list(lags.inputs)))

    def _check_thousands(self, *, schema: SchemaSettings | None, source: Any, **_: object) -> None:
        """Check that thousands are not separated by a source's decimal mark."""
        if schema is not None and source is not None and schema.thousands == getattr(source, "decimal", "."):
            rule = "must differ from source.decimal, the decimal mark (which is a point in all formats but csv)"
            self.problems.append(self._broken(("schema", "thousands"), rule, schema.thousands))

    def _chosen(
        self,
        location: Location,
        models: Mapping[str, type[BaseModel]],
        table: Any,
        default: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> BaseModel | None:
        """Check a table whose model depends on its ``kind``."""
        if not isinstance(table, dict):
            return self._checked(location, Section, table)
        kind = table.get("kind", default)
        if isinstance(kind, str) and kind in models:
            others = {name: other for other, model in models.items() for name in model.model_fields}
            return self._checked(location, models[kind], {"kind": kind, **table}, context, others)
        if kind is None:
            self.problems.append(self._missing((*location, "kind"), f"one of {', '.join(models)}"))
        else:
            self.problems.append(self._broken((*location, "kind"), f"must be one of {', '.join(models)}", kind))
        return None

    def _checked(
        self,
        location: Location,
        model: type[AnySection],
        table: Any,
        context: Mapping[str, object] | None = None,
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> AnySection | None:
        """Check a table; `others` maps settings of the section's other kinds to a kind that has them."""
        if not isinstance(table, dict):
            self.problems.append(self._broken(location, "must be a table", table))
            return None
        try:
            return model.model_validate(table, extra="forbid", context=context)
        except ValidationError as invalid:
            self.problems += [self._sentence(location, model, table, error, others) for error in errors_of(invalid)]
            return None

    def _sentence(
        self,
        section: Location,
        model: type[BaseModel],
        table: Mapping[str, Any],
        error: ErrorDetails,
        others: Mapping[str, str],
    ) -> str:
        location = section + tuple(_within(table, error["loc"]))
        choice = CHOICES.get(str(error["loc"][0])) if len(error["loc"]) > 1 else None
        if error["type"] == "extra_forbidden" and len(location) == len(section) + 1 and location[-1] in others:
            owner = others[location[-1]]
            rule = f"must be omitted if {'.'.join(section)}.kind = {table['kind']!r}; it belongs to {owner!r}"
            return self._broken(location, rule, error["input"])
        if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            known = (
                model.model_fields
                if len(location) == len(section) + 1
                else choice.names(table[str(error["loc"][0])])
                if choice
                else ()
            )
            return self._unknown(location, "setting", known)
        if error["type"] == "missing":
            *tables, name = map(str, error["loc"])
            holder = (*section, *tables)
            return self._missing((*holder, name), f"add it to [{'.'.join(holder)}] in {self.file}")
        return self._broken(location, rule_of(error), error["input"])

    def _unknown(self, location: Location, what: str, known: Iterable[str]) -> str:
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}" if known else ""
        return f"{'.'.join(location)}: unknown {what} ({self._origin(location)}){hint}"

    def _missing(self, location: Location, hint: str) -> str:
        return f"{'.'.join(location)}: required, but not set; {hint}"

    def _broken(self, location: Location, rule: str, value: object) -> str:
        text = shown(value)
        if is_secret(".".join(location)):
            rule, text = rule.replace(str(value), HIDDEN), HIDDEN
        got = "but it is not set" if value is None else f"got {text}"
        return f"{'.'.join(location)}: {masked(rule)}, {got} ({self._origin(location)})"

    def _origin(self, location: Location) -> str:
        lengths = range(len(location), 0, -1)
        return "from " + next((self.origins[location[:n]] for n in lengths if location[:n] in self.origins), self.file)


@functools.cache  # pydantic takes longer to build a model than to check a whole configuration
def _joined(common: type[Section], model: type[BaseModel]) -> type[BaseModel]:
    """Combine the settings of one connector with those that its section shares."""
    return create_model(model.__name__, __base__=(model, common))


def _within(table: object, location: tuple[int | str, ...]) -> Iterator[str]:
    """Return the parts of an error's location that are in the user's table: pydantic adds names of union members."""
    for i, part in enumerate(location):
        if isinstance(table, dict) and (part in table or i == len(location) - 1):
            table = table.get(part)
        elif isinstance(table, list) and isinstance(part, int):
            table = table[part]
        else:
            continue
        yield str(part)


def _location(name: str) -> Location:
    """Return the parts of a setting's name, of which one with other characters than letters is in quotes, as in TOML.

    >>> _location('schema.units."%"'), _location("schema.units.°C")
    (('schema', 'units', '%'), ('schema', 'units', '°C'))
    """
    try:
        table: Any = tomllib.loads(f"{name} = 0")
    except (ValueError, RecursionError):
        return tuple(name.split("."))
    parts = []
    while isinstance(table, dict) and len(table) == 1:
        ((part, table),) = table.items()
        parts.append(part)
    return tuple(parts)


def _opened(location: Location, value: Any) -> dict[str, Any]:
    """Return the table for which the value of a setting is short, to be changed in part."""
    match location:
        case ("model" | "challenger", name) if name in CHOICES:
            return CHOICES[name].opened(value)
        case ("schema", "missing") if isinstance(value, list):
            return {EVERY: value}
        case ("schema", "timestamps") if isinstance(value, list):
            return dict.fromkeys(value, ISO)
    return {}


def parsed(text: str) -> object:
    """Parse a value as TOML, or return the text itself if it is not valid TOML."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text  # plain text needs no quotes in a shell
    return table["value"] if len(table) == 1 else text
