"""Arguments of estimators, checked by `streammoe.options`."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any, ClassVar

import numpy as np
from river import base

from streammoe.errors import ConfigError
from streammoe.options import CHOICES, Auto, Averaging, Options, PageHinkley, WarmUp, checked
from streammoe.schedules import Schedule


class Arguments(base.Estimator):
    """Arguments that all estimators have; each adds its own."""

    options_type: ClassVar[type[Options]]
    several_outputs: ClassVar[bool | None] = None
    """Whether there may be more outputs than one; None where that does not matter."""

    n_experts: int | str | Auto
    top_k: int | None
    batch_size: int
    reseed: str
    degree: int
    gate_degree: int
    schedule: str | Schedule | None
    bound: str
    prior_strength: float
    warmup: int | WarmUp | None
    averaging: str | Averaging | None
    drift: str | PageHinkley | None
    seed: int
    standardize: bool
    range_factor: float
    categorical: Sequence[Any] | None
    timestamps: Sequence[Any] | None
    max_levels: int

    def __init__(self, **arguments: Any) -> None:
        # River clones by the signatures of the estimators, which therefore spell out every argument.
        for name, value in arguments.items():
            # River's clone looks at the first entry of any tuple.
            empty = name in {"categorical", "timestamps"} and isinstance(value, tuple) and not value
            setattr(self, name, None if empty else value)
        self._check()

    def _check(self) -> None:
        self.options = checked(self.options_type, self._get_params(), several=self.several_outputs)

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

    @property
    def default_schedule(self) -> Schedule:
        """The schedule where none is given."""
        default: Schedule = self.options_type.model_fields["schedule"].default
        return default

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return self.options.is_choosing

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.options.most_experts

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, as a checkpoint holds them."""
        given = {
            name: CHOICES[name].table(value) if name in CHOICES else value for name, value in self._get_params().items()
        }
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}


def is_whole(value: object, least: int) -> bool:
    """Whether it is an integer, at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_one_of(value: object, known: Container[Any]) -> bool:
    """Whether it is one of these texts, or None where that is one of them."""
    return (value is None or isinstance(value, str)) and value in known


def is_amount(value: object) -> bool:
    """Whether it is a finite number, at least 0."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)
