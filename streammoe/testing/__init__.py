"""For tests of what is built on streammoe: a scripted source, and the contract suite that every source passes."""

from streammoe.testing.contracts import SourceContract
from streammoe.testing.source import ListSource

__all__ = ["ListSource", "SourceContract"]
