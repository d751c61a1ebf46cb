"""Declaration of options: their fields, the objects that they may be, and messages about values that break a rule.

`streammoe.options` declares the options of models by these means, `streammoe.settings` the other tables of a
configuration, and `streammoe.distributions` the objects that describe the noise of experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from datetime import date
from datetime import time as clock
from functools import wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from streammoe import text
from streammoe.errors import ConfigError
from streammoe.secrets import masked
from streammoe.types import as_python

Change: TypeAlias = Literal["reload", "restart", "rise", "never"]
"""When an option may change over a checkpoint: while the daemon runs (SIGHUP) and at a restart; at a restart only; at a
restart, upwards only; or not at all."""


Part = TypeVar("Part")


class Facts(NamedTuple):
    """Properties of an option in addition to its type, range, default and description."""

    change: Change | None = None
    """None: as is usual in its section."""
    more: str = ""
    """Further sentences, for docstrings and the reference."""
    warm_up_only: bool = False
    """Whether the option has no meaning any more once the warm-up is over."""
    sample: Any = None
    """A value for config/default.toml, where the option is left out unless it is set."""


def option(default: Any, doc: str, **given: Any) -> Any:
    """Return the field of an option.

    Args:
        default: the value where none is given.
        doc: one sentence.
        **given: `Facts`, and constraints as `pydantic.Field` takes them.
    """
    facts = Facts(**{name: given.pop(name) for name in Facts._fields if name in given})
    return Field(default, description=doc, json_schema_extra={"facts": facts}, **given)  # type: ignore[dict-item]


def facts_of(field: FieldInfo) -> Facts:
    """Return the properties that `option` recorded for a field; none for other fields."""
    extra = field.json_schema_extra
    facts: Any = extra.get("facts") if isinstance(extra, dict) else None
    return facts or Facts()


class Section(BaseModel):
    """Base of all tables: frozen, without type conversions, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


# -- Problems ----------------------------------------------------------------------------------------------------------

_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "extra_forbidden": "unknown",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "missing": "required, but not set",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "unexpected_keyword_argument": "unknown",
}
"""Rules in the words of config files for those that pydantic states in Python's, by type of error."""


def rule_of(error: ErrorDetails) -> str:
    """Return which rule a value breaks."""
    details = error.get("ctx", {})
    if error["type"] == "string_too_short" and details["min_length"] == 1:
        return "must not be empty"
    if error["type"] == "float_type" and isinstance(error["input"], int) and not isinstance(error["input"], bool):
        return "must fit into a 64-bit float"
    if error["type"] in _RULES:
        bounds = {name: text.amount(value) for name, value in details.items() if isinstance(value, int | float)}
        return _RULES[error["type"]].format(**bounds)
    if error["type"] == "literal_error":
        return f"must be {details['expected']}"
    # A validator's own words.
    return str(details.get("error") or error["msg"])


def errors_of(invalid: ValidationError) -> Iterator[ErrorDetails]:
    """Yield what is wrong, without the defaults that wait for what is wrong elsewhere."""
    yield from (error for error in invalid.errors(include_url=False) if error["type"] != "default_factory_not_called")


def sentence(error: ErrorDetails, given: Mapping[str, Any], before: str = "") -> str:
    """Return what is wrong with one of the given values; `before` precedes its name."""
    first, *inner = map(str, error["loc"])
    is_within = isinstance(given.get(first), dict) or error["type"] == "missing"
    place = ".".join([first, *inner]) if is_within else first
    got = "" if error["type"] == "missing" else f", got {text.shown(error['input'])}"
    return f"{before}{place}: {rule_of(error)}{got}"


def shown(value: object) -> str:
    """Return a value as its user may have written it, short, and without what may be secret inside a table."""
    match value:
        case None | bool() | int():
            return text.shown(value)
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case date() | clock():  # TOML knows dates and times of day
            return value.isoformat()
    return text.cut(masked(text.shown(value)), 60)


def written(value: object) -> str:
    """Return a value as settings hold it, for messages.

    >>> written({"kind": "student_t", "df": 5.0})
    "{ kind = 'student_t', df = 5.0 }"
    """
    if isinstance(value, dict):
        return text.cut(f"{{ {', '.join(f'{name} = {text.shown(each)}' for name, each in value.items())} }}")
    return text.shown(value)


# -- Objects -----------------------------------------------------------------------------------------------------------

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def part(kind: type[Part]) -> type[Part]:
    """Make a class one of the objects that an option may be; its constructor raises `ConfigError`."""
    made: Any = dataclass(frozen=True, config=STRICT)(kind)
    construct, names = made.__init__, list(signature(made).parameters)

    @wraps(construct)
    def init(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(names):
            most = text.counted(len(names), "argument") if names else "no arguments"
            raise TypeError(f"{kind.__name__} takes {'at most ' if names else ''}{most}, got {len(values)}")
        given = dict(zip(names, values, strict=False))
        if twice := given.keys() & named.keys():
            raise TypeError(f"{kind.__name__} got more than one value of {text.listed(sorted(twice), 'and')}")
        given |= named
        try:
            construct(self, **{name: as_python(value) for name, value in given.items()})
        except ValidationError as invalid:
            raise ConfigError(*(sentence(error, given, f"{kind.__name__}.") for error in errors_of(invalid))) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def summary_of(kind: type) -> str:
    """Return the first line of an object's docstring."""
    return str(kind.__doc__).partition("\n")[0]


class Choice(NamedTuple):
    """The forms of an option that is an object: the object itself, its short form, or its table in settings."""

    kinds: Mapping[str, Any]
    """Its classes, by the name that is short for each with its defaults; no name if there is only one."""
    none: str = ""
    """The word for none of them."""
    number: Callable[[Any], object] | None = None
    """The object for which a number is short."""
    defaults_to_none: bool = False
    """Whether None stands for the default, which depends on the model."""

    def read(self, value: object, default: object) -> object:
        """Return the object for which a value is short, of an option with this default.

        Raises:
            ValueError: it is not a valid short form.
        """
        value = as_python(value)
        if value is None and (self.none or self.defaults_to_none):
            return None if self.none else default
        if type(value) in self.kinds.values():
            return value
        if self.number is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(value)
        if isinstance(value, str) and value and (value in self.kinds or value == self.none):
            return None if value == self.none else self._made({"kind": value}, default)
        if isinstance(value, dict):
            return self._made(value, default)
        own = text.listed([kind.__name__ for kind in self.kinds.values()], "or")
        or_own = f", or streammoe's {own}" if hasattr(value, "__dict__") else ""  # one of another library
        raise ValueError(f"must be {self.words}{or_own}")

    def _made(self, table: Mapping[str, Any], default: object) -> object:
        if not all(isinstance(name, str) for name in table):
            raise ValueError("must be a table with names")
        given = {name: as_python(entry) for name, entry in table.items()}
        # Where a kind has no name, a table is of that one unless it says another.
        says_kind = "" not in self.kinds or given.get("kind") in self.kinds
        kind = given.pop("kind", self._kind(given, default)) if says_kind else ""
        if not isinstance(kind, str) or kind not in self.kinds:
            rule = PydanticCustomError("kind", "must be one of {known}", {"known": ", ".join(self.kinds)})
            raise ValidationError.from_exception_data("", [{"type": rule, "loc": ("kind",), "input": kind}])
        if type(default) is self.kinds[kind]:
            given = {name: getattr(default, name) for name in signature(self.kinds[kind]).parameters} | given
        return read_object(self.kinds[kind], given)

    def _kind(self, given: Mapping[str, Any], default: object) -> str:
        """Return the kind of a table that does not say it: the default's if that has what is given, or another."""
        kinds = sorted(self.kinds, key=lambda kind: type(default) is not self.kinds[kind])
        fitting = (kind for kind in kinds if given.keys() <= signature(self.kinds[kind]).parameters.keys())
        return next(fitting, kinds[0])

    @property
    def words(self) -> str:
        """The rule that values must satisfy."""
        said = ["a whole number"] if self.number else []
        said += [repr(word) for word in (*self.kinds, self.none) if word]
        return text.listed(said, "or")

    def opened(self, value: object) -> dict[str, Any]:
        """Return the table for which a plain word or number is short, to be changed in part.

        >>> from streammoe.options import CHOICES
        >>> CHOICES["lags"].opened(2), CHOICES["expert"].opened("student_t"), CHOICES["drift"].opened("off")
        ({'size': 2}, {'kind': 'student_t'}, {})
        """
        if isinstance(value, str) and value in self.kinds:
            return {"kind": value}
        return {self.names()[0]: value} if isinstance(value, int) and "" in self.kinds else {}

    def names(self, table: object = None) -> list[str]:
        """Return what a table may hold: of its kind if it says that, else of any."""
        kind = table.get("kind") if isinstance(table, dict) else None
        kinds = [self.kinds[kind]] if isinstance(kind, str) and kind in self.kinds else self.kinds.values()
        fields = dict.fromkeys(name for each in kinds for name in signature(each).parameters)
        return [*fields] if "" in self.kinds else ["kind", *fields]

    def table(self, value: object) -> Any:
        """Return the table of an object, in plain words and numbers, for settings and checkpoints; others as they are.

        A number without limit is left out, since JSON has none. Where that is not the default, a checkpoint is read
        with it (`streammoe.options.as_arguments`).
        """
        kind = next((kind for kind, known in self.kinds.items() if type(value) is known), None)
        if kind is None:
            if isinstance(value, dict):
                return {name: as_python(entry) for name, entry in value.items()}
            return as_python(value)
        fields = {name: as_python(getattr(value, name)) for name in signature(type(value)).parameters}
        fields = {name: each for name, each in fields.items() if each != math.inf}
        return {**({"kind": kind} if kind else {}), **fields}


def read_object(kind: Any, table: Mapping[str, Any]) -> object:
    """Return the object that a table describes; `ValidationError` says where it does not."""
    made = object.__new__(kind)
    kind.__init__.__wrapped__(made, **table)
    return made
