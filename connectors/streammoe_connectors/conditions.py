"""Rules that settings share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

Text = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""


def only_if(other: str, *values: str, required: bool = False) -> AfterValidator:
    """Return the rule that a setting is for some values of another one, or for any, which its model has before it.

    Args:
        other: the other setting.
        *values: of it; by default any that is set.
        required: whether the setting must be set then. Its model must validate defaults.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        if other not in info.data:  # it is not valid itself
            return value
        found = info.data[other]
        is_wanted = found in values if values else found is not None
        is_given = value not in (None, "none", ())
        if is_given and not is_wanted:
            rule = f"if {other} is {' or '.join(values)}, and it is {found}" if values else f"together with {other}"
            raise ValueError(f"must be set only {rule}")
        if required and is_wanted and not is_given:
            raise ValueError("must be set " + (f"if {other} is {found}" if values else f"together with {other}"))
        return value

    return AfterValidator(check)
