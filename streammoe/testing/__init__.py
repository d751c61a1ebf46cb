"""For tests of what is built on streammoe: a scripted source, and the contract suites that every source passes."""

from streammoe.testing.contracts import EndlessSourceContract, SourceContract
from streammoe.testing.source import ListSource

__all__ = ["EndlessSourceContract", "ListSource", "SourceContract"]
