"""Support for tests of extensions: a scripted source, and contract suites for sources and expert families."""

from streammoe.testing.contracts import EndlessSourceContract, SourceContract
from streammoe.testing.families import FamilyContract
from streammoe.testing.source import ListSource

__all__ = ["EndlessSourceContract", "FamilyContract", "ListSource", "SourceContract"]
