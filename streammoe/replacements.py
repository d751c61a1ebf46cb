"""Notice that an attribute of some object was replaced, without a look at each of them."""

from __future__ import annotations


class Replacements:
    """When the latest attribute of any `Noticed` object was set, in this process."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = object()
        """Another object after each time. Not a number, of which two threads could write the same."""


REPLACEMENTS = Replacements()


class Noticed:
    """An object of which each attribute that is set is noticed.

    As long as `REPLACEMENTS.latest` stays the same, so do the attributes of all these objects.
    """

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        # Afterwards, so that who looks in between looks again.
        REPLACEMENTS.latest = object()
