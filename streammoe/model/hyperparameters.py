"""The hyper-parameters of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streammoe.schedules import Schedule

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The arguments of an estimator that every model has, under the same names; they are valid."""

    n_experts: int | str
    max_experts: int
    top_k: int | None
    batch_size: int
    reseed: str
    degree: int
    gate_degree: int
    schedule: Schedule
    """The one that is in force, which may be the default."""
    default_schedule: Schedule
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

    @property
    def is_choosing(self) -> bool:
        """Whether the number of experts is for the model to choose."""
        return self.n_experts == AUTO

    @property
    def most_experts(self) -> int:
        """How many experts there may be."""
        return self.max_experts if isinstance(self.n_experts, str) else self.n_experts
