"""What a model is told when it is made: its arguments, and the rules that they keep."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from river import base

from streammoe import schedules
from streammoe.bounds import BOUNDS
from streammoe.engine import mm
from streammoe.engine.drift import DETECTORS
from streammoe.errors import ConfigError
from streammoe.model.checks import is_whole
from streammoe.schedules import Schedule
from streammoe.text import shown

AUTO = "auto"
RESEED = ("off", AUTO)
MAY_BE_NONE = {"warmup", "top_k"}
WHOLE = (
    "n_experts",
    "max_experts",
    "top_k",
    "batch_size",
    "degree",
    "gate_degree",
    "seed",
    "drift_restart",
    "warmup",
    "warmup_restarts",
    "max_levels",
)
"""Arguments that are whole numbers, of all estimators."""


class Arguments(base.Estimator):
    """The arguments that all estimators have; each adds its own, and rules for them."""

    n_experts: int | str
    max_experts: int
    top_k: int | None
    batch_size: int
    reseed: str
    degree: int
    gate_degree: int
    schedule: Schedule | None
    bound: str
    prior_strength: float
    warmup: int | None
    warmup_restarts: int
    averaging: str | None
    averaging_rate: float
    drift: str
    drift_restart: int
    seed: int
    standardize: bool
    range_factor: float
    categorical: Sequence[Any] | None
    timestamps: Sequence[Any] | None
    max_levels: int

    default_schedule: ClassVar[Schedule] = schedules.power(0.6)

    def __init__(self, **arguments: Any) -> None:
        # River clones by the signatures of the estimators, which therefore spell out every argument.
        for name, value in arguments.items():
            # River's clone looks at the first entry of any tuple.
            empty = name in {"categorical", "timestamps"} and isinstance(value, tuple) and not value
            setattr(self, name, None if empty else value)
        self._check()

    def _check(self) -> None:
        problems = [problem for holds, problem in self._rules() if not holds]
        if problems:
            raise ConfigError(*problems)

    def _change(self, name: str, value: Any) -> None:
        """Give one argument another value.

        Raises:
            ConfigError: the constructor would not take it; the argument keeps the value that it had.
        """
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            self._check()
        except ConfigError:
            setattr(self, name, before)
            raise

    def _rules(self) -> list[tuple[bool, str]]:
        """Rules for the arguments: whether each holds, and what to say if it does not."""
        starts_at_once = is_whole(self.warmup, 0) and self.warmup == 0
        named = are_names(self.categorical) and are_names(self.timestamps)
        both = [name for name in self.categorical or () if name in (self.timestamps or ())] if named else []
        return [
            *(
                (
                    are_names(getattr(self, name)),
                    f"{name}: got {getattr(self, name)!r}; it must be a tuple of feature names",
                )
                for name in ("categorical", "timestamps")
            ),
            (not both, f"timestamps: {both!r} stands in categorical too; a feature can be one of them"),
            *(
                rule
                for name in WHOLE
                if not (name in MAY_BE_NONE and getattr(self, name) is None)
                and not (name == "n_experts" and self.is_choosing)
                for rule in whole_number_rules(name, getattr(self, name))
            ),
            (
                not (starts_at_once and self.is_choosing),
                "n_experts: 'auto' needs a warm-up to judge candidates by; set warmup above 0, or a number",
            ),
            (is_one_of(self.reseed, RESEED), f"reseed: {self.reseed!r} is not known; choose one of 'off', 'auto'"),
            *(
                (is_amount(getattr(self, name)), f"{name}: got {getattr(self, name)!r}; it must be a finite number ≥ 0")
                for name in ("prior_strength", "range_factor")
            ),
            _at_most("prior_strength", self.prior_strength, is_valid=is_amount(self.prior_strength)),
            (
                self.schedule is None or isinstance(self.schedule, Schedule),
                f"schedule: got {self.schedule!r}; make one with streammoe.schedules.power or .constant",
            ),
            (
                not (starts_at_once and self.standardize),
                "standardize: needs a warm-up to take means and scales from; set warmup above 0",
            ),
            (
                not (starts_at_once and is_amount(self.prior_strength) and self.prior_strength == 0.0),
                "prior_strength: 0 needs a warm-up or given Gram matrices to start from; set warmup or a prior above 0",
            ),
            (
                is_one_of(self.averaging, mm.AVERAGING),
                f"averaging: {self.averaging!r} is not known; choose one of 'polyak', 'decay', 'exponential', None",
            ),
            (
                is_amount(self.averaging_rate) and 0.0 < self.averaging_rate < 1.0,
                f"averaging_rate: got {self.averaging_rate!r}; it must be a number above 0 and below 1",
            ),
            (
                is_one_of(self.drift, DETECTORS),
                f"drift: {self.drift!r} is not known; choose one of {', '.join(map(repr, DETECTORS))}",
            ),
            (
                is_one_of(self.bound, mm.BOUNDS),
                f"bound: {self.bound!r} is not known; choose one of {', '.join(mm.BOUNDS)}",
            ),
        ]

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return isinstance(self.n_experts, str) and self.n_experts == AUTO

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.max_experts if isinstance(self.n_experts, str) else self.n_experts

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, as a checkpoint holds them."""
        given = {**self._get_params(), "schedule": self.schedule and schedules.to_settings(self.schedule)}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}


def restored_arguments(said: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `Arguments.arguments`."""
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
    }
    if arguments["schedule"] is not None:
        arguments["schedule"] = schedules.from_settings(arguments["schedule"])
    return arguments


def whole_number_rules(name: str, value: object) -> list[tuple[bool, str]]:
    """Rules for an argument that is a whole number within its bounds, as `Arguments` wants them."""
    least = int(BOUNDS[name].least)
    choice = " or 'auto'" if name == "n_experts" else ""
    is_valid = is_whole(value, least)
    return [
        (is_valid, f"{name}: got {shown(value)}; it must be a whole number ≥ {least}{choice}"),
        _at_most(name, value, is_valid=is_valid),
    ]


def _at_most(name: str, value: Any, *, is_valid: bool) -> tuple[bool, str]:
    """The rule that a value is not above its bound; one that is no such number has a rule of its own."""
    most = BOUNDS[name].most
    return not is_valid or bool(value <= most), f"{name}: got {shown(value)}; it must be at most {most:,}"


def is_one_of(value: object, known: Container[Any]) -> bool:
    """Whether it is one of these texts, or None where that is one of them."""
    return (value is None or isinstance(value, str)) and value in known


def is_amount(value: object) -> bool:
    """Whether it is a finite number, at least 0."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)


def are_names(value: object) -> bool:
    """Whether it is a list of names of features, or None."""
    return value is None or (isinstance(value, tuple | list) and all(map(_is_name, value)))


def _is_name(value: object) -> bool:
    return isinstance(value, str) or type(value) is int
