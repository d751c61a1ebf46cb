"""Error measures of [MM]'s tables, of predictions and of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

MAPE_NOTE = "MAPE leaves out rows whose target is 0; its mean over runs has no limit where targets cross 0."
SUMMARY_NOTE = "MSE: mean and median over runs; MAPE and NRMSE: median."


class Errors(NamedTuple):
    """The three measures, in the order of the paper's columns."""

    mse: float
    """Mean squared error."""
    mape: float
    """Mean of |error / target| over the rows whose target is not 0."""
    nrmse: float
    """Root of the mean squared error over the range of the targets."""


NAMES = {"mse": "MSE", "mape": "MAPE", "nrmse": "NRMSE"}


def errors_of(targets: np.ndarray, found: np.ndarray) -> Errors:
    """Compare what was found with the targets, of any shape."""
    y, errors = targets.ravel(), (found - targets).ravel()
    mse = float(np.mean(errors**2))
    nonzero = y != 0.0
    return Errors(mse, float(np.mean(np.abs(errors[nonzero] / y[nonzero]))), mse**0.5 / float(np.ptp(y)))


class Summary(NamedTuple):
    """The measures over seeds."""

    mse: float
    """Mean."""
    median: float
    """Of the MSE."""
    mape: float
    """Median."""
    nrmse: float
    """Median."""

    @classmethod
    def of(cls, each: Iterable[Errors]) -> Summary:
        """Summarize the errors of several seeds."""
        mse, mape, nrmse = np.array(list(each)).T
        return cls(float(mse.mean()), float(np.median(mse)), float(np.median(mape)), float(np.median(nrmse)))


def cells(kind: type[Errors | Summary], errors: Errors | Summary | None) -> list[str]:
    """Format as one cell for each field; empty ones without errors."""
    return [""] * len(kind._fields) if errors is None else [f"{value:.4f}" for value in errors]


def headers(kind: type[Errors | Summary], whose: str) -> list[str]:
    """Head the columns of `cells`."""
    first, *others = (NAMES.get(field, field) for field in kind._fields)
    return [f"{whose}: {first}", *others]
