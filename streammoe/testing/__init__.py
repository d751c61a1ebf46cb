"""For tests of what is built on streammoe: a scripted source, and the suites that sources and expert families pass."""

from streammoe.testing.contracts import EndlessSourceContract, SourceContract
from streammoe.testing.families import FamilyContract
from streammoe.testing.source import ListSource

__all__ = ["EndlessSourceContract", "FamilyContract", "ListSource", "SourceContract"]
