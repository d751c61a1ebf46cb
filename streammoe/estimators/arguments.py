"""Arguments of estimators, validated by `streammoe.options`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from river import base

from streammoe.errors import ConfigError
from streammoe.options import CHOICES, Auto, Averaging, Options, PageHinkley, WarmUp, checked
from streammoe.schedules import Schedule


class Arguments(base.Estimator):
    """Base class for the arguments that all estimators have; each adds its own."""

    options_type: ClassVar[type[Options]]
    several_outputs: ClassVar[bool | None] = None
    """Whether there may be more than one output; None if that does not matter."""

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
            # River's clone inspects the first entry of any tuple.
            empty = name in {"categorical", "timestamps"} and isinstance(value, tuple) and not value
            setattr(self, name, None if empty else value)
        self._check()

    def _check(self) -> None:
        self.options = checked(self.options_type, self._get_params(), several=self.several_outputs)

    def _change(self, name: str, value: Any) -> None:
        """Change the value of one argument.

        Raises:
            ConfigError: the constructor would reject it; the argument keeps its value.
        """
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            self._check()
        except ConfigError:
            setattr(self, name, before)
            raise

    @property
    def is_choosing(self) -> bool:
        """Whether the model selects the number of experts."""
        return self.options.is_choosing

    @property
    def most_experts(self) -> int:
        """Maximum number of experts."""
        return self.options.most_experts

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor in the form that checkpoints use."""
        given = {
            name: CHOICES[name].table(value) if name in CHOICES else value for name, value in self._get_params().items()
        }
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}


def given_in(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor, given its `locals()` on entry."""
    return {name: value for name, value in scope.items() if name not in {"self", "__class__"}}
