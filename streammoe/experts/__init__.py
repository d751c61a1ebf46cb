"""Families of experts, one per file: each module here that defines a `FAMILY` is discovered automatically."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from streammoe.experts.contract import Family, Parameters

__all__ = ["Family", "Parameters", "families"]


@cache
def families() -> Mapping[str, Family]:
    """Return every family by its name.

    >>> sorted(families())
    ['categorical', 'gaussian', 'gaussian_full', 'laplace', 'student_t']
    """
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in found}
