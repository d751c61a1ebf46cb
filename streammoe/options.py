"""Hyper-parameters: type, range, default, documentation and change policy of each, in one place.

The table ``[model]`` of a configuration is one of `MODELS`, and the estimators check their arguments by the same
classes. Docstrings, the options of commands, config/default.toml, the reference pages and what may change over a
checkpoint are all derived from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from datetime import time as clock
from inspect import signature
from textwrap import indent, wrap
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_serializer,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from streammoe import text
from streammoe.errors import ConfigError
from streammoe.schedules import Power, Schedule, power, to_settings
from streammoe.secrets import masked

LONGEST_SHOWN = 60
WIDTH = 120
"""Of lines in docstrings."""

Change: TypeAlias = Literal["reload", "restart", "rise", "never"]
"""When an option may change over a checkpoint: while the daemon runs (SIGHUP) and at a restart; at a restart only; at a
restart, upwards only; or not at all."""


AnyOptions = TypeVar("AnyOptions", bound="Options")
AnyClass = TypeVar("AnyClass", bound=type)


class Facts(NamedTuple):
    """What is said of an option besides its type, range, default and first sentence."""

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
    """Return what `option` was told of a field; of other fields nothing."""
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
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""What pydantic says in Python's words, as those who write a config file say it, by the type of its error."""


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


# -- Types of options --------------------------------------------------------------------------------------------------

Number = Annotated[int, Field(ge=1, le=1_000)]
NUMBER_OF_EXPERTS: TypeAdapter[int] = TypeAdapter(Number, config=ConfigDict(strict=True))


def _n_experts(value: object, _: object) -> object:
    """Check a number of experts, or the word that leaves it to the model."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError("must be a whole number, or 'auto'")
        return value
    return NUMBER_OF_EXPERTS.validate_python(value)


def _labels(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(map(is_label, value)) or "" in value:
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
        "Events that the prior is worth; left out, 0.1, of a classifier 0.04; 0 turns it off.",
        more="They count among those that a step size spans; 0 gives the papers' plain algorithm.",
        ge=0,
        le=10**9,
        sample=0.1,
    )


# -- The options -------------------------------------------------------------------------------------------------------


class Options(Section):
    """Options that all models have."""

    kind: str
    n_experts: Annotated[Number | Literal["auto"], WrapValidator(_n_experts)] = option(
        4,
        'Number of experts; 1 is plain online regression, "auto": as many as the stream asks for.',
        more="For that several are fitted in the warm-up, and the best three learn side by side until their losses "
        "decide.",
    )
    max_experts: int = option(6, 'Most experts that n_experts = "auto" tries.', ge=2, le=1_000)
    top_k: int | None = option(
        None,
        "How many experts learn from an event, the likeliest ones; left out, all.",
        more="Fewer make many experts faster; all of them still predict.",
        ge=1,
        le=1_000,
        sample=4,
    )
    batch_size: int = option(
        1,
        "Events of a step; more are faster with many features.",
        more="A group moves the model when it is full, by the mean of what its events say. Those that wait are part of "
        "the model.",
        ge=1,
        le=100_000,
    )
    reseed: Literal["off", "auto"] = option(
        "off",
        'What becomes of idle experts: nothing; "auto": they are tried as half of another.',
        more="An expert that is starved, or a duplicate, then becomes half of the one whose loss is worst, next to the "
        "model as it is, and replaces it where that predicts better. A single expert is never idle.",
        change="restart",
    )
    degree: int = option(1, "Highest power of each feature that the experts see.", ge=1, le=20)
    gate_degree: int = option(1, "Highest power of each feature that the gate sees.", ge=1, le=20)
    bound: Literal["adaptive", "tight", "paper"] = option(
        "adaptive",
        'Curvature of the surrogates: each event\'s own; "tight": the same for all; "paper": looser.',
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
        "Reject values this many times larger than any before in their column; 0 turns it off.",
        change="reload",
        ge=0,
    )
    averaging: Annotated[
        Literal["polyak", "decay", "exponential", "none"],
        BeforeValidator(lambda value: "none" if value is None else value),
    ] = option(
        "polyak",
        'What predicts: the mean since warm-up; "decay", "exponential": it forgets; "none": raw.',
        more="With `decay` recent iterates count more, with `exponential` each counts `averaging_rate`, or more at "
        "first; without averaging the raw iterate predicts.",
    )
    averaging_rate: float = option(
        0.01,
        "Least weight of the latest parameters in an exponential average.",
        more="About the last 1/rate of them count. No other `averaging` uses it.",
        gt=0,
        lt=1,
    )
    drift: Literal["off", "page_hinkley"] = option(
        "off",
        '"page_hinkley": where the loss rises for good, steps and average restart (docs/drift.md).',
    )
    drift_restart: int = option(
        200,
        "Events that steps take for seen after a drift; fewer follow faster, and are noisier.",
        more="Without `drift` it has no effect.",
        ge=1,
        le=10**12,
    )
    warmup: int | None = option(
        None,
        "Events gathered for the first fit; left out, it grows with the number of parameters.",
        more="Then they are at least 400; with 0 a model starts at once, from random experts.",
        ge=0,
        le=10_000_000,
        sample=400,
        warm_up_only=True,
    )
    warmup_restarts: int = option(5, "Starts of the first fit, the best one wins.", ge=1, le=1_000, warm_up_only=True)
    max_levels: int = option(
        64,
        "Most levels of a categorical feature that get a column.",
        more="Events with other levels are learned without them.",
        change="rise",
        ge=1,
        le=10_000,
    )
    schedule: SkipValidation[Schedule] = _schedule_option(power(0.6))

    @field_validator("warmup")
    @classmethod
    def _is_long_enough(cls, warmup: int | None, info: ValidationInfo) -> int | None:
        needs = {"standardize": True, "prior_strength": 0.0, "n_experts": "auto"}
        needing = [name for name, value in needs.items() if warmup == 0 and info.data.get(name) == value]
        if needing:
            said = " and ".join(f"{name} = {shown(needs[name])}" for name in needing)
            raise ValueError(f"must be above 0, since {said} cannot do without a warm-up")
        return warmup

    @field_validator("schedule")
    @classmethod
    def _is_schedule(cls, schedule: object) -> object:
        if schedule is None:
            return cls.model_fields["schedule"].default
        if isinstance(schedule, Schedule):
            return schedule
        raise ValueError("must be made by streammoe.schedules.power or .constant")

    @field_serializer("schedule")
    def _schedule_table(self, schedule: Schedule) -> dict[str, str | float]:
        return to_settings(schedule)

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return self.n_experts == "auto"

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.max_experts if isinstance(self.n_experts, str) else self.n_experts


SEVERAL = "several outputs"
"""Key of the validation context: whether there are, or may be, more outputs than one; left out, nobody knows."""


class RegressorOptions(Options):
    """Options of regressors."""

    kind: Literal["regressor"] = option(
        "regressor", 'A mixture of linear experts; "classifier": the target is a label.'
    )
    expert: Literal["gaussian", "student_t", "laplace"] = option(
        "gaussian",
        'Noise of the experts; outliers do not pull "student_t" and "laplace" (one output) away.',
        more="`laplace` follows the median.",
    )
    degrees_of_freedom: float = option(
        4.0, 'Of "student_t", above 2: the smaller, the less an event far out counts.', gt=2, le=1e6
    )
    covariance: Literal["diagonal", "full"] = option(
        "diagonal", 'Noise of several outputs is independent; "full": it is correlated.'
    )

    @field_validator("expert")
    @classmethod
    def _fits_outputs(cls, expert: str, info: ValidationInfo) -> str:
        if expert == "laplace" and (info.context or {}).get(SEVERAL):
            raise ValueError("must be 'gaussian' or 'student_t' with several outputs, or make a model for each output")
        return expert

    @field_validator("covariance")
    @classmethod
    def _can_be_full(cls, covariance: str, info: ValidationInfo) -> str:
        expert = info.data.get("expert", "gaussian")
        if covariance == "full" and (info.context or {}).get(SEVERAL) is False:
            raise ValueError("must be 'diagonal' with one output, which has nothing to be correlated with")
        if covariance == "full" and expert != "gaussian":
            raise ValueError(f"must be 'diagonal' where expert = {expert!r}; only 'gaussian' has it in full")
        return covariance


class ClassifierOptions(Options):
    """Options of classifiers."""

    kind: Literal["classifier"] = option("classifier", RegressorOptions.model_fields["kind"].description or "")
    prior_strength: float = _prior_strength(0.04)
    schedule: SkipValidation[Schedule] = _schedule_option(power(0.5))
    classes: Annotated[tuple[Any, ...] | None, BeforeValidator(_labels)] = option(
        None,
        "A classifier's labels; left out, they are taken as they come.",
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
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    found: list[Any] = []
    problems: list[str] = []
    for table in (options, FeatureOptions):
        given = {name: value for name, value in plain.items() if name in table.model_fields}
        try:
            found.append(table.model_validate(given, context={SEVERAL: several}))
        except ValidationError as invalid:
            problems += [
                f"{error['loc'][0]}: {rule_of(error)}, got {text.shown(error['input'])}" for error in errors_of(invalid)
            ]
    if problems:
        raise ConfigError(*problems)
    return cast("AnyOptions", found[0])


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
