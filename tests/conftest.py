"""What all tests share."""

import logging

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture
def logging_as_before():
    """Commands set up logging for their process, which here is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("streammoe")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
