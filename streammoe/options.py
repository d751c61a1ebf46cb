"""Hyper-parameters: type, range, default, documentation and change policy of each, in one place.

The table ``[model]`` of a configuration is one of `MODELS`, and the estimators check their arguments by the same
classes. Docstrings, the options of commands, config/default.toml, the reference pages and what may change over a
checkpoint are all derived from here.

Everything about an option is read in one place: its field, the objects that it may be, and the rules that tie options
together. Only the noise of experts, which comes with its mathematics, is in `streammoe.distributions`. The means to
declare options are in `streammoe.fields`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from inspect import cleandoc, signature
from textwrap import indent, wrap
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from pydantic import (
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
from pydantic.fields import FieldInfo

from streammoe import text
from streammoe.bounds import MAX_PRIOR_STRENGTH
from streammoe.distributions import ExpertNoise, Gaussian, noises
from streammoe.errors import ConfigError
from streammoe.fields import (
    Change,
    Choice,
    Section,
    errors_of,
    facts_of,
    option,
    part,
    read_object,
    sentence,
    shown,
    summary_of,
)
from streammoe.schedules import SCHEDULES, Power, Schedule
from streammoe.types import as_python

WIDTH = 120
"""Of lines in docstrings."""

AnyOptions = TypeVar("AnyOptions", bound="Options")
Bound: TypeAlias = Literal["sharp", "adaptive", "tight", "paper"]
Serve: TypeAlias = Literal["portfolio", "polyak"]
Curved: TypeAlias = Literal["auto", "on", "off"]


# -- Objects -----------------------------------------------------------------------------------------------------------


@part
class Auto:
    """A number of experts that the model chooses, from 1 to `max`."""

    max: int = option(6, "Maximum number of experts to try.", ge=2, le=1_000)


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
    """A test for a lasting rise of the prequential loss, at which steps and average restart."""

    restart: int = option(
        200, "Restart as after this many events; fewer follow faster and are noisier.", ge=1, le=10**12
    )


def _listed(value: object, is_one: Callable[[object], bool], things: str, thing: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list) or not all(map(is_one, value)):
        raise ValueError(f"must be a list of {things}")
    if repeated := sorted({each for each in value if value.count(each) > 1}, key=str):
        raise ValueError(f"must name each {thing} once, but repeats {', '.join(map(str, repeated))}")
    return tuple(value)


def _names(value: object) -> object:
    return () if value is None else _listed(value, _is_name, "feature names", "feature")


def _is_name(value: object) -> bool:
    return isinstance(value, str) or (type(value) is int and -(2**63) <= value < 2**63)


@part
class Lags:
    """The targets of the last events, and where wanted their inputs, as features of the next one."""

    size: int = option(1, "Number of events.", ge=1, le=1_000)
    inputs: Annotated[tuple[Any, ...], BeforeValidator(_names)] = option(
        (), "Inputs, numbers, whose values in those events are features, too."
    )


@part
class AutoLags:
    """The last targets as features of one member of the portfolio, which is trusted where they help."""


Averaging: TypeAlias = Polyak | Decay | Exponential

NUMBER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=1, le=1_000)], config=ConfigDict(strict=True))
CHOICES: Mapping[str, Choice] = {
    "n_experts": Choice({"auto": Auto}, number=NUMBER.validate_python),
    "expert": Choice(noises()),
    "averaging": Choice({"polyak": Polyak, "decay": Decay, "exponential": Exponential}, none="none"),
    "drift": Choice({"page_hinkley": PageHinkley}, none="off"),
    "schedule": Choice(SCHEDULES, defaults_to_none=True),
    "lags": Choice(
        {"": Lags, "auto": AutoLags},
        none="off",
        number=lambda size: read_object(Lags, {"size": size}) if size else None,
    ),
}
"""By the name of the option."""


def _labels(value: object) -> object:
    if value is None:
        return None
    labels = _listed(value, is_label, "labels: texts, finite numbers or booleans", "label")
    if len(labels) < 2:
        raise ValueError("must name at least two labels; left out, labels are taken as they come")
    return labels


def is_label(value: object) -> bool:
    """Return whether a value can be a class."""
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def _schedule_option(default: Power) -> Any:
    return option(
        default,
        "Step sizes: Power(0.6) unless set, for a classifier Power(0.5), which converge; Constant(gamma) tracks drift.",
        more="From `streammoe.schedules`.",
    )


def _prior_strength(default: float) -> Any:
    return option(
        default,
        "Weight of the prior in events; by default 0.1, for a classifier 0.04; 0 disables it.",
        more="They count among those that a step size spans; 0 gives the papers' plain algorithm.",
        ge=0,
        le=MAX_PRIOR_STRENGTH,
        sample=0.1,
    )


# -- The options -------------------------------------------------------------------------------------------------------


class Options(Section):
    """Options that all models have."""

    kind: str
    n_experts: int | Auto = option(
        4,
        'Number of experts; 1 is plain online regression, "auto": selected by the loss.',
        more="There may be 1,000. With `Auto(max=6)` one to six are fitted to the events of the warm-up, and the best "
        "by a penalized likelihood is kept.",
    )
    top_k: int | None = option(
        None,
        "Number of experts that learn from an event, the likeliest ones; by default all.",
        more="Fewer make many experts faster; all of them still predict. As many as there are, or more, are all.",
        ge=1,
        le=1_000,
        sample=4,
    )
    reservoir: int = option(
        0,
        "Number of events in a uniform sample of all that were learned, kept in the model; 0: none is kept.",
        more="It changes nothing that is learned. Models that are to be reduced to one need some thousands of events "
        "(docs/learning.md).",
        change="restart",
        ge=0,
        le=100_000,
    )
    degree: int = option(1, "Highest power of each feature that the experts see.", ge=1, le=20)
    gate_degree: int = option(1, "Highest power of each feature that the gate sees.", ge=1, le=20)
    bound: Bound = option(
        "adaptive",
        'Curvature of the surrogates: adapted to each event; "sharp": below the bound; "tight", "paper": looser.',
        more='Of the gate, and of a classifier\'s experts, for which "sharp" is the adaptive bound. The bounds '
        "guarantee that the mean surrogate lies above the loss.",
    )
    events_per_coefficient: float = option(
        0.0,
        "Events of the rarest expert, per coefficient, that a step spans at least; 0: no limit.",
        more="Steps are shortened to that, but not below 5/n, n since the start or the restart after a drift, nor to "
        "less than a quarter. Constant steps are left as they are.",
        ge=0,
        le=1e6,
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
        "Scale features and target by their mean and deviation.",
        more="These are frozen by the first fit to 400 events or more. Labels are not scaled. With `warmup` 0 there is "
        "nothing to take them from, and nothing is scaled.",
    )
    range_factor: float = option(
        1e6,
        "Reject values this many times larger than is usual in their column; 0 disables it.",
        change="reload",
        ge=0,
    )
    hold: bool = option(
        True,
        "Hold inputs and predictions to what was seen, which widens gradually.",
        more="What is new is entered at the pace at which it is learned, and one absurd value has bounded effect.",
    )
    averaging: Averaging | None = option(
        Polyak(),
        'Parameters that predict: mean since the last fit; "decay", "exponential": forgetting; "none": raw.',
        more="`Polyak()`; `Decay()`: recent iterates count more; `Exponential(rate=0.01)`: the latest counts `rate`, "
        "or more at first; `None`: the raw iterate.",
    )
    serve: Serve = option(
        "portfolio",
        'Who predicts: mixture and single experts together; "polyak": the average of the mixture alone.',
        more="They are weighted by how well each has predicted recently, so that predictions follow a stream that "
        'drifts and lose nothing where it does not. With "polyak" the parameters of `averaging` predict alone.',
    )
    curved: Curved = option(
        "auto",
        "One more member that sees squares and products of held inputs: while it helps, always, or never.",
        more="For regions that no gate with flat edges can tell apart. It has all products of two of up to ten inputs, "
        'and the most telling ones of up to 126 features. With "auto" it takes part where there are several experts, '
        "`standardize` and `hold`, rests when its weight has been negligible for a thousand events, and comes back "
        "where the average is no longer trusted.",
    )
    drift: PageHinkley | None = option(
        PageHinkley(),
        '"page_hinkley": restart steps and average when the loss has risen (docs/drift.md).',
        more="`PageHinkley(restart=200)`: after a drift, steps are those after so many events; the fewer, the larger. "
        "`None`: nothing is tested.",
    )
    warmup: int | None = option(
        None,
        "Events before the first fit of the mixture; by default 100, or 4 for each feature; 0: there are no fits.",
        more="The mixture is fitted again whenever events have doubled. Until the first fit it has one expert. With 0 "
        "it starts at once, from random experts.",
        ge=0,
        le=10_000_000,
        sample=400,
        warm_up_only=True,
    )
    max_levels: int = option(
        64,
        "Maximum number of levels of a categorical feature that get a column.",
        more="A feature with more counts by the [targets of its levels](../learning.md#identifiers).",
        change="rise",
        ge=1,
        le=10_000,
    )
    schedule: Schedule = _schedule_option(Power(0.6))
    lags: Lags | AutoLags | None = option(
        AutoLags(),
        'Number of last targets that are features of the next event; "auto": one member sees three, and is trusted '
        "where that helps.",
        more='`Lags(3, inputs=("temp",))`: the last three targets and values of `temp`. Only events that were learned '
        'count. Classifiers have "auto" or "off" (docs/learning.md).',
    )

    @field_validator(*CHOICES, mode="plain", check_fields=False)
    @classmethod
    def _is_choice(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        return CHOICES[name].read(value, cls.model_fields[name].default)

    @field_validator("curved")
    @classmethod
    def _is_bounded(cls, curved: str, info: ValidationInfo) -> str:
        lacking = {"hold": False, "serve": "polyak"}
        found = [f"{name} = {shown(value)}" for name, value in lacking.items() if info.data.get(name) == value]
        if curved == "on" and found:
            raise ValueError(
                f"must not be 'on' with {' and '.join(found)}: squares are those of held inputs in a portfolio"
            )
        return curved

    @field_validator("warmup")
    @classmethod
    def _is_long_enough(cls, warmup: int | None, info: ValidationInfo) -> int | None:
        starts_at_once = warmup == 0
        needing = ["prior_strength = 0.0"] if info.data.get("prior_strength") == 0.0 else []
        needing += ["n_experts = 'auto'"] if isinstance(info.data.get("n_experts"), Auto) else []
        if starts_at_once and needing:
            raise ValueError(f"must be above 0, since {' and '.join(needing)} cannot do without a warm-up")
        return warmup

    @field_serializer(*CHOICES, check_fields=False)
    def _as_table(self, value: object, info: FieldSerializationInfo) -> Any:
        return CHOICES[info.field_name].table(value)

    @property
    def has_portfolio(self) -> bool:
        """Whether average, latest parameters and further members predict together."""
        return self.serve == "portfolio"

    @property
    def given_lags(self) -> Lags | None:
        """The lags that are features of all members, if any."""
        return self.lags if isinstance(self.lags, Lags) else None

    @property
    def has_series(self) -> bool:
        """Whether the portfolio has a member that sees the last targets."""
        return self.has_portfolio and isinstance(self.lags, AutoLags)

    @property
    def has_curved(self) -> bool:
        """Whether the portfolio begins with a member that sees squares and products of inputs."""
        if self.curved == "auto":
            return self.has_portfolio and self.standardize and self.hold and self.most_experts > 1
        return self.has_portfolio and self.curved == "on"

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return isinstance(self.n_experts, Auto)

    @classmethod
    def changeable(cls, *policies: Change) -> list[str]:
        """Return the options that may change over a checkpoint, since they affect only later events.

        Args:
            *policies: policies to include; by default all that allow a change.
        """
        allowed = policies or ("reload", "restart", "rise")
        return sorted(name for name, field in cls.model_fields.items() if facts_of(field).change in allowed)

    @property
    def averaging_kind(self) -> str | None:
        """The name of the average that predicts, if there is one."""
        table = CHOICES["averaging"].table(self.averaging)
        return None if table is None else str(table["kind"])

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.n_experts.max if isinstance(self.n_experts, Auto) else self.n_experts


SEVERAL = "several outputs"
"""Key of the validation context: whether there are, or may be, more outputs than one; if absent, it is unknown."""


def _heavy_tailed() -> str:
    words = [
        f'"{name}"{"" if noise.most_outputs is None else " (one output)"}'
        for name, noise in noises().items()
        if noise is not Gaussian
    ]
    return text.listed(words, "and")


class RegressorOptions(Options):
    """Options of regressors."""

    kind: Literal["regressor"] = option(
        "regressor", 'A mixture of linear experts; "classifier": the target is a label.'
    )
    expert: ExpertNoise = option(
        Gaussian(),
        f"Noise of the experts; {_heavy_tailed()} are for many outliers.",
    )
    calibrate: bool = option(
        True,
        "Move the ends of intervals until they hold as many targets as they say, also where noise grows.",
        more='Only with `serve="portfolio"`; the distribution that is predicted stays as it is.',
    )

    @field_validator("expert")
    @classmethod
    def _fits_outputs(cls, expert: ExpertNoise, info: ValidationInfo) -> ExpertNoise:
        several = (info.context or {}).get(SEVERAL)
        if several and expert.most_outputs is not None:
            fitting = [repr(name) for name, noise in noises().items() if noise.most_outputs is None]
            rule = f"must be {text.listed(fitting, 'or')} with several outputs, or make a model for each output"
            raise ValueError(rule)
        if isinstance(expert, Gaussian) and expert.covariance == "full" and several is False:
            raise ValueError("must have the covariance 'diagonal' with one output, which is correlated with nothing")
        return expert


class ClassifierOptions(Options):
    """Options of classifiers."""

    kind: Literal["classifier"] = option("classifier", RegressorOptions.model_fields["kind"].description or "")
    prior_strength: float = _prior_strength(0.04)
    schedule: Schedule = _schedule_option(Power(0.5))
    classes: Annotated[tuple[Any, ...] | None, BeforeValidator(_labels)] = option(
        None,
        "A classifier's labels; by default they are discovered in the stream.",
        more="Where they are given, any other label is an error.",
        sample=["no", "yes"],
    )
    max_classes: int = option(
        100,
        "Most labels that a classifier discovers; further ones are errors.",
        more="Where `classes` are given, it has no effect, and must not be less than their number.",
        change="rise",
        ge=2,
        le=10_000,
    )

    @field_validator("lags")
    @classmethod
    def _are_no_features(cls, lags: Lags | AutoLags | None) -> AutoLags | None:
        if isinstance(lags, Lags):
            rule = "must be 'auto' or 'off'; put earlier labels or inputs into x, as features of their own"
            raise ValueError(rule)  # noqa: TRY004 - pydantic reports these
        return lags

    @field_validator("max_classes")
    @classmethod
    def _has_room(cls, max_classes: int, info: ValidationInfo) -> int:
        classes = info.data.get("classes") or ()
        # The default limits only labels that are discovered.
        if max_classes != cls.model_fields["max_classes"].default and max_classes < len(classes):
            raise ValueError(f"must be at least {len(classes)}, the number of classes")
        return max_classes


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
        more="Each level is a column of 0 and 1. Of features in none of these lists the first value decides.",
    )
    timestamps: Annotated[tuple[Any, ...], BeforeValidator(_names)] = option(
        (),
        "Features that are times: seconds since 1970-01-01 UTC, datetimes, or ISO 8601 text.",
        more="Each becomes sin and cos of the time of day, of the week and of the year.",
    )
    numeric: Annotated[tuple[Any, ...], BeforeValidator(_names)] = option(
        (),
        "Features that are numbers, whatever their first value is; truth values are 1 and 0, datetimes seconds.",
        more="Events with other values are rejected.",
    )

    @field_validator("timestamps", "numeric")
    @classmethod
    def _are_other_features(cls, names: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        for other in ("categorical", "timestamps"):
            if both := [name for name in info.data.get(other, ()) if name in names and other != info.field_name]:
                raise ValueError(f"must not hold {both!r}, which {other} names too")
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
    plain = {name: as_python(value) for name, value in arguments.items()}
    found: list[Any] = []
    problems: list[str] = []
    for table in (options, FeatureOptions):
        given = {name: value for name, value in plain.items() if name in table.model_fields}
        try:
            found.append(table.model_validate(given, context={SEVERAL: several}))
        except ValidationError as invalid:
            problems += [sentence(error, given) for error in errors_of(invalid)]
    if problems:
        raise ConfigError(*problems)
    return cast("AnyOptions", found[0])


def as_arguments(options: type[Options], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a checkpoint holds, with objects in place of tables.

    Raises:
        ConfigError: a table describes no object.
    """
    now = dict(said)
    for name, value in now.items():
        if isinstance(value, list):
            now[name] = tuple(value)
        elif name == "expert" and isinstance(value, dict) and value.get("kind") == Gaussian.name:
            made = _read(options, name, {"tail": math.inf, **value})  # which JSON does not know
            now[name] = Gaussian.name if made == Gaussian() else made
        elif isinstance(value, dict) and name in CHOICES:
            now[name] = _read(options, name, value)
    return now


def _read(options: type[Options], name: str, table: dict[str, Any]) -> object:
    try:
        return CHOICES[name].read(table, options.model_fields[name].default)
    except ValidationError as invalid:
        raise ConfigError(*(sentence(error, {}, f"{name}.") for error in errors_of(invalid))) from None


def document(estimator: Any) -> None:
    """Give the docstring of an estimator its section "Parameters", in the signature's order."""
    fields = {**estimator.options_type.model_fields, **FeatureOptions.model_fields}
    before, headline, after = cleandoc(estimator.__doc__ or "").partition("Examples:\n")  # as Python 3.13 does
    names = list(signature(estimator).parameters)
    section = "".join(f"{name}\n{indent(prose(name, fields[name]), ' ' * 4)}\n" for name in names)
    if headline:  # python -OO drops docstrings
        estimator.__doc__ = (
            f"{before}Parameters\n----------\n{section}\nExamples\n{after}"  # without the colon, as numpydoc reads it
        )


def prose(name: str, field: FieldInfo) -> str:
    """Return all that is said of an option, in lines of docstrings."""
    more = facts_of(field).more
    if name in CHOICES and not more:
        more = " ".join(f"`{kind()!r}`: {summary_of(kind)}" for kind in CHOICES[name].kinds.values())
    return "\n".join(wrap(f"{field.description} {more}".strip(), WIDTH - 8))
