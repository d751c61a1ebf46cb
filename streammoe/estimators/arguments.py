"""What a model is told when it is made: its arguments, and the rules that they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from river import base

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.drift import DETECTORS
from streammoe.errors import ConfigError
from streammoe.schedules import Schedule

AUTO = "auto"
RESEED = ("off", AUTO)
LARGEST_BATCH = 100_000
MAY_BE_NONE = {"warmup", "top_k"}


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
        whole = {"n_experts": 1, "degree": 1, "gate_degree": 1, "warmup_restarts": 1, "seed": 0, "warmup": 0}
        whole |= {"max_levels": 1, "max_experts": 2, "drift_restart": 1, "top_k": 1, "batch_size": 1}
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
                (
                    is_whole(getattr(self, name), least),
                    f"{name}: got {getattr(self, name)!r}; it must be a whole number ≥ {least}"
                    + (" or 'auto'" if name == "n_experts" else ""),
                )
                for name, least in whole.items()
                if not (name in MAY_BE_NONE and getattr(self, name) is None)
                and not (name == "n_experts" and self.is_choosing)
            ),
            (
                not (self.warmup == 0 and self.is_choosing),
                "n_experts: 'auto' needs a warm-up to judge candidates by; set warmup above 0, or a number",
            ),
            (
                not is_whole(self.batch_size, 1) or self.batch_size <= LARGEST_BATCH,
                f"batch_size: got {self.batch_size!r}; it may be {LARGEST_BATCH} at most, since all that wait are kept",
            ),
            (self.reseed in RESEED, f"reseed: {self.reseed!r} is not known; choose one of 'off', 'auto'"),
            *(
                (is_amount(getattr(self, name)), f"{name}: got {getattr(self, name)!r}; it must be a finite number ≥ 0")
                for name in ("prior_strength", "range_factor")
            ),
            (
                self.schedule is None or isinstance(self.schedule, Schedule),
                f"schedule: got {self.schedule!r}; make one with streammoe.schedules.power or .constant",
            ),
            (
                not (self.warmup == 0 and self.standardize),
                "standardize: needs a warm-up to take means and scales from; set warmup above 0",
            ),
            (
                not (self.warmup == 0 and self.prior_strength == 0.0),
                "prior_strength: 0 needs a warm-up or given Gram matrices to start from; set warmup or a prior above 0",
            ),
            (
                self.averaging in mm.AVERAGING,
                f"averaging: {self.averaging!r} is not known; choose one of 'polyak', 'decay', 'exponential', None",
            ),
            (
                is_amount(self.averaging_rate) and 0.0 < self.averaging_rate < 1.0,
                f"averaging_rate: got {self.averaging_rate!r}; it must be a number above 0 and below 1",
            ),
            (
                self.drift in DETECTORS,
                f"drift: {self.drift!r} is not known; choose one of {', '.join(map(repr, DETECTORS))}",
            ),
            (self.bound in mm.BOUNDS, f"bound: {self.bound!r} is not known; choose one of {', '.join(mm.BOUNDS)}"),
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


def is_whole(value: object, least: int) -> bool:
    """Whether it is an integer, at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_amount(value: object) -> bool:
    """Whether it is a finite number, at least 0."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)


def are_names(value: object) -> bool:
    """Whether it is a list of names of features, or None."""
    return value is None or (isinstance(value, tuple | list) and all(isinstance(name, str | int) for name in value))
