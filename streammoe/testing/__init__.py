"""Contract suites for tests of sources."""

from streammoe.testing.contracts import EndlessSourceContract, SourceContract

__all__ = ["EndlessSourceContract", "SourceContract"]
