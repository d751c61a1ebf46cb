"""Hyper-parameters: type, range, default, documentation and change policy of each, in one place.

The table ``[model]`` of a configuration is one of `MODELS`, and the estimators check their arguments by the same
classes. Docstrings, the options of commands, config/default.toml, the reference pages and what may change over a
checkpoint are all derived from here.

One long file, so that everything about an option is read in one place: its field, the objects that it may be, and the
rules that tie options together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from datetime import time as clock
from functools import cache, wraps
from inspect import signature
from textwrap import indent, wrap
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, dataclass_transform

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from streammoe import text
from streammoe.errors import ConfigError
from streammoe.schedules import SCHEDULES, Power, Schedule, power
from streammoe.secrets import masked

LONGEST_SHOWN = 60
WIDTH = 120
"""Of lines in docstrings."""

Change: TypeAlias = Literal["reload", "restart", "rise", "never"]
"""When an option may change over a checkpoint: while the daemon runs (SIGHUP) and at a restart; at a restart only; at a
restart, upwards only; or not at all."""


AnyOptions = TypeVar("AnyOptions", bound="Options")
AnyClass = TypeVar("AnyClass", bound=type)
Part = TypeVar("Part")


class Facts(NamedTuple):
    """Properties of an option in addition to its type, range, default and description."""

    change: Change | None = None
    """None: as is usual in its section."""
    more: str = ""
    """Further sentences, for docstrings and the reference."""
    in_python: Any = ...
    """The default of the estimators' argument, where it is not that of the setting."""
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
    if error["type"] in _RULES:
        bounds = {name: text.amount(value) for name, value in details.items()}
        return _RULES[error["type"]].format(**bounds)
    if error["type"] == "literal_error":
        return f"must be {details['expected']}"
    # A validator's own words.
    return str(details.get("error") or error["msg"])


def errors_of(invalid: ValidationError) -> Iterator[ErrorDetails]:
    """Yield what is wrong, without the defaults that wait for what is wrong elsewhere."""
    yield from (error for error in invalid.errors(include_url=False) if error["type"] != "default_factory_not_called")


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
    return text.cut(masked(text.shown(value)), LONGEST_SHOWN)


def written(value: object) -> str:
    """Return a value as settings hold it, for messages.

    >>> written({"kind": "student_t", "df": 5.0})
    "{ kind = 'student_t', df = 5.0 }"
    """
    if isinstance(value, dict):
        return text.cut(f"{{ {', '.join(f'{name} = {text.shown(each)}' for name, each in value.items())} }}")
    return text.shown(value)


# -- Types of options --------------------------------------------------------------------------------------------------

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True)
def part(kind: type[Part]) -> type[Part]:
    """Make a class one of the objects that an option may be; its constructor raises `ConfigError`."""
    made: Any = dataclass(frozen=True, config=_STRICT)(kind)
    construct, names = made.__init__, list(signature(made).parameters)

    @wraps(construct)
    def init(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(names):
            raise TypeError(f"{kind.__name__} takes at most {len(names)} values, got {len(values)}")
        given = {**dict(zip(names, values, strict=False)), **named}
        try:
            construct(self, **{name: _plain(value) for name, value in given.items()})
        except ValidationError as invalid:
            raise ConfigError(*(_sentence(error, given, f"{kind.__name__}.") for error in errors_of(invalid))) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


@part
class Auto:
    """A number of experts that the model chooses, from 1 to `max`."""

    max: int = option(6, "Maximum number of experts to try.", ge=2, le=1_000)


@part
class Gaussian:
    """Normal noise; of several outputs it is independent, or correlated."""

    covariance: Literal["diagonal", "full"] = option(
        "diagonal", 'Noise of several outputs: independent; "full": correlated.'
    )


@part
class StudentT:
    """Noise with heavy tails: the smaller `df`, the less an event far out counts."""

    df: float = option(4.0, "Degrees of freedom; predictions have no variance at 2 or below.", gt=2, le=1e6)


@part
class Laplace:
    """Noise with heavier tails than a Gaussian's; experts follow the median of one output."""


@part
class Polyak:
    """The mean of all iterates since the warm-up."""


@part
class Decay:
    """A mean in which recent iterates count more."""


@part
class Exponential:
    """A mean in which the latest iterate counts `rate`, or more at first: about the last 1/rate of them count."""

    rate: float = option(0.01, "Least weight of the latest iterate.", gt=0, lt=1)


@part
class PageHinkley:
    """A test on the prequential loss; where it has risen for good, steps and average restart."""

    restart: int = option(
        200, "Restart as after this many events; fewer follow faster and are noisier.", ge=1, le=10**12
    )


@part
class WarmUp:
    """The first events, gathered for a batch fit from several starts."""

    size: int | None = option(
        None, "Events; by default they grow with the number of parameters, 0 starts at once.", ge=0, le=10_000_000
    )
    restarts: int = option(5, "Number of starts of the fit, of which the best wins.", ge=1, le=1_000)


Expert: TypeAlias = Gaussian | StudentT | Laplace
Averaging: TypeAlias = Polyak | Decay | Exponential


class Choice(NamedTuple):
    """The forms of an option that is an object: the object itself, its short form, or its table in settings."""

    kinds: Mapping[str, Any]
    """Its classes, by the name that is short for each with its defaults; no name if there is only one."""
    none: str = ""
    """The word for none of them."""
    number: Callable[[Any], object] | None = None
    """The object for which a number is short."""

    def read(self, value: object, default: object) -> object:
        """Return the object for which a value is short, of an option with this default.

        Raises:
            ValueError: it is not a valid short form.
        """
        value = _plain(value)
        if value is None:
            return None if self.none else default
        if isinstance(value, Schedule):  # a named tuple, whose constructor checks nothing
            return self._made(self.table(value), default)
        if type(value) in self.kinds.values():
            return value
        if self.number is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(value)
        if isinstance(value, str) and value and (value in self.kinds or value == self.none):
            return None if value == self.none else self._made({"kind": value}, default)
        if isinstance(value, dict):
            return self._made(value, default)
        raise ValueError(f"must be {self.words}")

    def _made(self, table: Mapping[str, Any], default: object) -> object:
        given = dict(table)
        kind = given.pop("kind", self._kind(given, default)) if "" not in self.kinds else ""
        if not isinstance(kind, str) or kind not in self.kinds:
            rule = PydanticCustomError("kind", "must be one of {known}", {"known": ", ".join(self.kinds)})
            raise ValidationError.from_exception_data("", [{"type": rule, "loc": ("kind",), "input": kind}])
        if isinstance(default, Power) and kind == "power":
            given = {"alpha": default.alpha, **given}
        return _read(self.kinds[kind], given)

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
        return " or ".join(filter(None, [", ".join(said[:-1]), said[-1]]))

    def opened(self, value: object) -> dict[str, Any]:
        """Return the table for which a plain word or number is short, to be changed in part.

        >>> CHOICES["warmup"].opened(200), CHOICES["expert"].opened("student_t"), CHOICES["drift"].opened("off")
        ({'size': 200}, {'kind': 'student_t'}, {})
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
        """Return the table of an object, in plain words and numbers, which `read` makes it of; others as they are."""
        kind = next((kind for kind, known in self.kinds.items() if type(value) is known), None)
        if kind is None:
            return value
        fields = value._asdict() if isinstance(value, Schedule) else vars(value)
        return {**({"kind": kind} if kind else {}), **fields}


def _read(kind: Any, table: Mapping[str, Any]) -> object:
    """Return the object that a table describes; `ValidationError` says where it does not."""
    if kind in SCHEDULES.values():
        return _adapter(kind).validate_python(dict(table))
    made = object.__new__(kind)
    kind.__init__.__wrapped__(made, **table)
    return made


@cache
def _adapter(schedule: type[Schedule]) -> TypeAdapter[Schedule]:
    return TypeAdapter(schedule, config=_STRICT)


def _plain(value: object) -> object:
    """Return a number of numpy's as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value


NUMBER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=1, le=1_000)], config=ConfigDict(strict=True))
CHOICES: Mapping[str, Choice] = {
    "n_experts": Choice({"auto": Auto}, number=NUMBER.validate_python),
    "expert": Choice({"gaussian": Gaussian, "student_t": StudentT, "laplace": Laplace}),
    "averaging": Choice({"polyak": Polyak, "decay": Decay, "exponential": Exponential}, none="none"),
    "drift": Choice({"page_hinkley": PageHinkley}, none="off"),
    "warmup": Choice({"": WarmUp}, number=lambda size: _read(WarmUp, {"size": size})),
    "schedule": Choice(SCHEDULES),
}
"""By the name of the option."""


def _labels(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(map(is_label, value)):
        raise ValueError("must be a list of labels: texts, finite numbers or booleans")
    if repeated := sorted({label for label in value if value.count(label) > 1}, key=str):
        raise ValueError(f"must name each label once, but repeats {', '.join(map(str, repeated))}")
    if len(value) < 2:
        raise ValueError("must name at least two labels; left out, labels are taken as they come")
    return tuple(value)


def is_label(value: object) -> bool:
    """Return whether a value can be a class."""
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _names(value: object) -> object:
    if value is None:
        return ()
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) or type(name) is int for name in value):
        raise ValueError("must be a list of feature names")
    return tuple(value)


def _schedule_option(default: Power) -> Any:
    return option(
        default,
        f"Step sizes: power({default.alpha}) unless set, which converges; constant(gamma) tracks drift.",
        more="Made by `streammoe.schedules`.",
        in_python=None,
    )


def _prior_strength(default: float) -> Any:
    return option(
        default,
        "Weight of the prior in events; by default 0.1, for a classifier 0.04; 0 disables it.",
        more="They count among those that a step size spans; 0 gives the papers' plain algorithm.",
        ge=0,
        le=10**9,
        sample=0.1,
    )


# -- The options -------------------------------------------------------------------------------------------------------


class Options(Section):
    """Options that all models have."""

    kind: str
    n_experts: int | Auto = option(
        4,
        'Number of experts; 1 is plain online regression, "auto": selected by the loss.',
        more="There may be 1,000. With `Auto(max=6)` several are fitted in the warm-up, and the best three learn side "
        "by side until their losses decide.",
    )
    top_k: int | None = option(
        None,
        "Number of experts that learn from an event, the likeliest ones; by default all.",
        more="Fewer make many experts faster; all of them still predict. As many as there are, or more, are all.",
        ge=1,
        le=1_000,
        sample=4,
    )
    batch_size: int = option(
        1,
        "Number of events per step; more are faster with many features.",
        more="A group moves the model when it is full, by the mean of what its events say. Those that wait are part of "
        "the model.",
        ge=1,
        le=100_000,
    )
    reseed: Literal["off", "auto"] = option(
        "off",
        'Idle experts are left alone; "auto": they are tried as half of another.',
        more="An expert that is starved, or a duplicate, then becomes half of the one whose loss is worst, next to the "
        "model as it is, and replaces it where that predicts better. A single expert is never idle.",
        change="restart",
    )
    degree: int = option(1, "Highest power of each feature that the experts see.", ge=1, le=20)
    gate_degree: int = option(1, "Highest power of each feature that the gate sees.", ge=1, le=20)
    bound: Literal["adaptive", "tight", "paper"] = option(
        "adaptive",
        'Curvature of the surrogates: adapted to each event; "tight": constant; "paper": looser.',
        more="Of the gate, and of a classifier's experts.",
    )
    prior_strength: float = _prior_strength(0.1)
    seed: int = option(
        0,
        "Seed of every random choice.",
        more="Equal seeds and events give equal models, bit for bit.",
        ge=0,
        le=2**128 - 1,
    )
    standardize: bool = option(
        True,
        "Scale features and target by their mean and deviation during warm-up.",
        more="These are then frozen. In a pipeline behind a scaler, leave it off; labels are not scaled.",
        in_python=False,
    )
    range_factor: float = option(
        1e6,
        "Reject values this many times larger than any before in their column; 0 disables it.",
        change="reload",
        ge=0,
    )
    averaging: Averaging | None = option(
        Polyak(),
        'Parameters that predict: mean since warm-up; "decay", "exponential": forgetting; "none": raw.',
        more="`Polyak()`; `Decay()`: recent iterates count more; `Exponential(rate=0.01)`: the latest counts `rate`, "
        "or more at first; `None`: the raw iterate.",
        in_python="polyak",
    )
    drift: PageHinkley | None = option(
        None,
        '"page_hinkley": restart steps and average when the loss has risen (docs/drift.md).',
        more="`PageHinkley(restart=200)`: steps then take so many events for seen; the fewer, the larger the steps. "
        "`None`: nothing is tested.",
    )
    warmup: WarmUp = option(
        WarmUp(),
        "Events buffered for the first fit; by default it grows with the number of parameters.",
        more="Then they are at least 400; with 0 a model starts at once, from random experts. `WarmUp(size, "
        "restarts=5)` says from how many starts they are fitted, too.",
        in_python=None,
        sample=400,
        warm_up_only=True,
    )
    max_levels: int = option(
        64,
        "Maximum number of levels of a categorical feature that get a column.",
        more="Events with other levels are learned without them.",
        change="rise",
        ge=1,
        le=10_000,
    )
    schedule: Schedule = _schedule_option(power(0.6))

    @field_validator(*CHOICES, mode="plain", check_fields=False)
    @classmethod
    def _is_choice(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        return CHOICES[name].read(value, cls.model_fields[name].default)

    @field_validator("warmup")
    @classmethod
    def _is_long_enough(cls, warmup: WarmUp, info: ValidationInfo) -> WarmUp:
        starts_at_once = warmup.size == 0
        needs = {"standardize": True, "prior_strength": 0.0}
        needing = [f"{name} = {shown(value)}" for name, value in needs.items() if info.data.get(name) == value]
        needing += ["n_experts = 'auto'"] if isinstance(info.data.get("n_experts"), Auto) else []
        if starts_at_once and needing:
            raise ValueError(f"must be above 0, since {' and '.join(needing)} cannot do without a warm-up")
        return warmup

    @field_serializer(*CHOICES, check_fields=False)
    def _as_table(self, value: object, info: FieldSerializationInfo) -> Any:
        return CHOICES[info.field_name].table(value)

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return isinstance(self.n_experts, Auto)

    @classmethod
    def changeable(cls, *policies: Change) -> list[str]:
        """Return the options that may change over a checkpoint, since they judge only what comes.

        Args:
            *policies: policies of these options; all that allow a change if left out.
        """
        allowed = policies or ("reload", "restart", "rise")
        return sorted(name for name, field in cls.model_fields.items() if facts_of(field).change in allowed)

    @property
    def default_schedule(self) -> Schedule:
        """The schedule where none is given."""
        default: Schedule = type(self).model_fields["schedule"].default
        return default

    @property
    def averaging_kind(self) -> str | None:
        """The name of the average that predicts, if there is one."""
        table = CHOICES["averaging"].table(self.averaging)
        return None if table is None else str(table["kind"])

    @property
    def averaging_rate(self) -> float:
        """Least weight of an iterate in an exponential average; others do not ask."""
        return self.averaging.rate if isinstance(self.averaging, Exponential) else 0.0

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.n_experts.max if isinstance(self.n_experts, Auto) else self.n_experts


SEVERAL = "several outputs"
"""Key of the validation context: whether there are, or may be, more outputs than one; if absent, it is unknown."""


class RegressorOptions(Options):
    """Options of regressors."""

    kind: Literal["regressor"] = option(
        "regressor", 'A mixture of linear experts; "classifier": the target is a label.'
    )
    expert: Expert = option(
        Gaussian(),
        'Noise of the experts; "student_t" and "laplace" (one output) are robust to outliers.',
        more='`Gaussian()`, whose `covariance` of several outputs may be `"full"`; `StudentT(df=4.0)`: the smaller '
        "`df`, above 2, the less an event far out counts; `Laplace()` follows the median.",
        in_python="gaussian",
    )

    @field_validator("expert")
    @classmethod
    def _fits_outputs(cls, expert: Expert, info: ValidationInfo) -> Expert:
        several = (info.context or {}).get(SEVERAL)
        if isinstance(expert, Laplace) and several:
            raise ValueError("must be 'gaussian' or 'student_t' with several outputs, or make a model for each output")
        if expert == Gaussian("full") and several is False:
            raise ValueError("must have the covariance 'diagonal' with one output, which is correlated with nothing")
        return expert


class ClassifierOptions(Options):
    """Options of classifiers."""

    kind: Literal["classifier"] = option("classifier", RegressorOptions.model_fields["kind"].description or "")
    prior_strength: float = _prior_strength(0.04)
    schedule: Schedule = _schedule_option(power(0.5))
    classes: Annotated[tuple[Any, ...] | None, BeforeValidator(_labels)] = option(
        None,
        "A classifier's labels; by default they are discovered in the stream.",
        more="Where they are given, any other label is an error.",
        sample=["no", "yes"],
    )
    max_classes: int = option(
        100, "Most labels that a classifier takes so; further ones are errors.", change="rise", ge=2, le=10_000
    )


MODELS: Mapping[str, type[RegressorOptions | ClassifierOptions]] = {
    "regressor": RegressorOptions,
    "classifier": ClassifierOptions,
}
"""The options of each kind of model."""


class FeatureOptions(Section):
    """Arguments of all estimators that a configuration has in its section ``schema``."""

    categorical: Annotated[tuple[Any, ...], BeforeValidator(_names)] = option(
        (),
        "Features that are categories: text, truth values or numbers.",
        more="Each level is a column of 0 and 1.",
        in_python=None,
    )
    timestamps: Annotated[tuple[Any, ...], BeforeValidator(_names)] = option(
        (),
        "Features that are times: seconds since 1970-01-01 UTC, datetimes, or ISO 8601 text.",
        more="Each becomes sin and cos of the time of day, of the week and of the year.",
        in_python=None,
    )

    @field_validator("timestamps")
    @classmethod
    def _are_other_features(cls, names: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        if both := [name for name in info.data.get("categorical", ()) if name in names]:
            raise ValueError(f"must not hold {both!r}, which categorical names too")
        return names


# -- Arguments of estimators -------------------------------------------------------------------------------------------


def checked(options: type[AnyOptions], arguments: Mapping[str, Any], *, several: bool | None = None) -> AnyOptions:
    """Check the arguments of an estimator.

    Args:
        options: of the estimator.
        arguments: by name.
        several: whether there are, or may be, more outputs than one.

    Raises:
        ConfigError: with everything that is wrong.
    """
    plain = {name: _plain(value) for name, value in arguments.items()}
    found: list[Any] = []
    problems: list[str] = []
    for table in (options, FeatureOptions):
        given = {name: value for name, value in plain.items() if name in table.model_fields}
        try:
            found.append(table.model_validate(given, context={SEVERAL: several}))
        except ValidationError as invalid:
            problems += [_sentence(error, given) for error in errors_of(invalid)]
    if problems:
        raise ConfigError(*problems)
    return cast("AnyOptions", found[0])


def _sentence(error: ErrorDetails, given: Mapping[str, Any], before: str = "") -> str:
    first, *inner = map(str, error["loc"])
    is_within = isinstance(given.get(first), dict) or error["type"] == "missing"
    place = ".".join([first, *inner]) if is_within else first
    got = "" if error["type"] == "missing" else f", got {text.shown(error['input'])}"
    return f"{before}{place}: {rule_of(error)}{got}"


def as_arguments(options: type[Options], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a checkpoint holds, with objects in place of tables.

    Raises:
        ConfigError: a table describes no object.
    """
    now = current_names(said)
    for name, value in now.items():
        if isinstance(value, list):
            now[name] = tuple(value)
        elif isinstance(value, dict) and name in CHOICES:
            try:
                now[name] = CHOICES[name].read(value, options.model_fields[name].default)
            except ValidationError as invalid:
                raise ConfigError(*(_sentence(error, {}, f"{name}.") for error in errors_of(invalid))) from None
    return now


_OLD = {
    "max_experts": 6,
    "warmup_restarts": 5,
    "averaging_rate": 0.01,
    "drift_restart": 200,
    "degrees_of_freedom": 4.0,
    "covariance": "diagonal",
}
"""Options before there were objects, with their defaults."""


def current_names(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a checkpoint holds under the names that they have now.

    >>> current_names({"n_experts": "auto", "max_experts": 8, "degree": 2})
    {'n_experts': {'kind': 'auto', 'max': 8}, 'degree': 2}
    """
    if _OLD.keys().isdisjoint(said):
        return dict(said)
    old = {**_OLD, **said}
    now = {name: value for name, value in said.items() if name not in _OLD}
    objects: dict[str, dict[str, dict[str, Any] | None]] = {
        "n_experts": {"auto": {"max": old["max_experts"]}},
        "averaging": {"polyak": {}, "decay": {}, "exponential": {"rate": old["averaging_rate"]}, "none": None},
        "drift": {"page_hinkley": {"restart": old["drift_restart"]}, "off": None},
        "expert": {
            "gaussian": {"covariance": old["covariance"]},
            "student_t": {"df": old["degrees_of_freedom"]},
            "laplace": {},
        },
    }
    if "covariance" in said:
        now.setdefault("expert", "gaussian")
    for name, kinds in objects.items():
        kind = now.get(name)
        if name in now and isinstance(kind, str) and kind in kinds:
            table = kinds[kind]
            now[name] = None if table is None else {"kind": kind, **table}
    if "warmup" in now:
        now["warmup"] = {"size": now["warmup"], "restarts": old["warmup_restarts"]}
    return now


def documented(*tables: type[Section]) -> Callable[[AnyClass], AnyClass]:
    """Return a decorator that gives an estimator's docstring its section "Parameters", in the signature's order."""
    fields = {name: field for table in tables for name, field in table.model_fields.items()}

    def decorate(estimator: AnyClass) -> AnyClass:
        before, headline, after = (estimator.__doc__ or "").partition("    Examples:\n")
        names = list(signature(estimator).parameters)
        section = "".join(f"{name}\n{indent(prose(fields[name]), ' ' * 4)}\n" for name in names)
        if headline:  # python -OO drops docstrings
            parameters = indent(f"Parameters\n----------\n{section}\n", " " * 4)
            estimator.__doc__ = before + parameters + headline + after
        return estimator

    return decorate


def prose(field: FieldInfo) -> str:
    """Return all that is said of an option, in lines of docstrings."""
    return "\n".join(wrap(f"{field.description} {facts_of(field).more}".strip(), WIDTH - 8))
