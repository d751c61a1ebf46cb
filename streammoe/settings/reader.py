"""Read settings from a file, the environment and flags, and report everything that is wrong in one error."""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import ErrorDetails

from streammoe.errors import ConfigError
from streammoe.options import CHOICES, SEVERAL, Section, errors_of, rule_of, shown
from streammoe.secrets import HIDDEN, is_secret, masked
from streammoe.settings.sections import (
    MODELS,
    DeadLetterFile,
    DeadLetters,
    Labels,
    Model,
    NoPredictions,
    PredictionFile,
    Predictions,
    Schema,
    Settings,
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
                choice = CHOICES.get(part) if place[:i] == ("model", part) else None
                table[part] = choice.opened(table.get(part)) if choice else {}
                self.origins[place[:i]] = origin
            table = table[part]
        table[place[-1]] = parsed(text)
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
        schema = tables["schema"]
        target = schema.get("target") if isinstance(schema, dict) else None
        read["model"] = self._model(tables.pop("model"), target)
        read |= {name: self._checked((name,), sections[name], table) for name, table in tables.items()}
        self._check_labels(**read)
        if self.problems:
            raise ConfigError(*self.problems)
        return Settings(**read)

    def _model(self, table: Any, target: object) -> Model | None:
        """Check the table of a model with as many outputs as there are targets."""
        n = len(target) if isinstance(target, list) else int(isinstance(target, str))
        if isinstance(table, dict) and n > 1 and table.get("kind") == "classifier":
            rule = "must be one column where model.kind = 'classifier'"
            self.problems.append(self._broken(("schema", "target"), rule, target))
        found: Any = self._chosen(("model",), MODELS, table, "regressor", {SEVERAL: n > 1} if n else None)
        return found  # type: ignore[no-any-return]

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
        self,
        place: Place,
        models: Mapping[str, type[BaseModel]],
        table: Any,
        default: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> BaseModel | None:
        """Check a table whose model depends on its ``kind``."""
        if not isinstance(table, dict):
            return self._checked(place, Section, table)
        kind = table.get("kind", default)
        if isinstance(kind, str) and kind in models:
            others = {name: other for other, model in models.items() for name in model.model_fields}
            return self._checked(place, models[kind], {"kind": kind, **table}, context, others)
        if kind is None:
            self.problems.append(self._missing((*place, "kind"), f"one of {', '.join(models)}"))
        else:
            self.problems.append(self._broken((*place, "kind"), f"must be one of {', '.join(models)}", kind))
        return None

    def _checked(
        self,
        place: Place,
        model: type[AnySection],
        table: Any,
        context: Mapping[str, object] | None = None,
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> AnySection | None:
        """Check a table; `others` are settings of other kinds of its section, each with a kind that has it."""
        if not isinstance(table, dict):
            self.problems.append(self._broken(place, "must be a table", table))
            return None
        try:
            return model.model_validate(table, extra="forbid", context=context)
        except ValidationError as invalid:
            self.problems += [self._sentence(place, model, table, error, others) for error in errors_of(invalid)]
            return None

    def _sentence(
        self,
        section: Place,
        model: type[BaseModel],
        table: Mapping[str, Any],
        error: ErrorDetails,
        others: Mapping[str, str],
    ) -> str:
        place = section + tuple(_within(table, error["loc"]))
        choice = CHOICES.get(str(error["loc"][0])) if len(error["loc"]) > 1 else None
        if error["type"] == "extra_forbidden" and len(place) == len(section) + 1 and place[-1] in others:
            rule = f"must be left out where {'.'.join(section)}.kind = {table['kind']!r}; {others[place[-1]]!r} has it"
            return self._broken(place, rule, error["input"])
        if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            known = (
                model.model_fields
                if len(place) == len(section) + 1
                else choice.names(table[str(error["loc"][0])])
                if choice
                else ()
            )
            return self._unknown(place, "setting", known)
        if error["type"] == "missing":
            *tables, name = map(str, error["loc"])
            holder = (*section, *tables)
            return self._missing((*holder, name), f"add it to [{'.'.join(holder)}] in {self.file}")
        return self._broken(place, rule_of(error), error["input"])

    def _unknown(self, place: Place, what: str, known: Iterable[str]) -> str:
        near = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}" if known else ""
        return f"{'.'.join(place)}: unknown {what} ({self._origin(place)}){hint}"

    def _missing(self, place: Place, hint: str) -> str:
        return f"{'.'.join(place)}: required, but not set; {hint}"

    def _broken(self, place: Place, rule: str, value: object) -> str:
        text = shown(value)
        if is_secret(".".join(place)):
            rule, text = rule.replace(str(value), HIDDEN), HIDDEN
        return f"{'.'.join(place)}: {masked(rule)}, got {text} ({self._origin(place)})"

    def _origin(self, place: Place) -> str:
        lengths = range(len(place), 0, -1)
        return "from " + next((self.origins[place[:n]] for n in lengths if place[:n] in self.origins), self.file)


def _joined(common: type[Section], models: Mapping[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """Return models of connectors' settings together with those that are common to all kinds of their section."""
    return {kind: _joined_model(common, model) for kind, model in models.items()}


@functools.cache  # pydantic takes longer to build a model than to check a whole configuration
def _joined_model(common: type[Section], model: type[BaseModel]) -> type[BaseModel]:
    """Return a model of the settings of one connector and of those that are common to its section."""
    return create_model(model.__name__, __base__=(model, common))


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


def parsed(text: str) -> object:
    """Return a value that is written as TOML, or as plain text where it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text  # plain text needs no quotes in a shell
    return table["value"] if len(table) == 1 else text
