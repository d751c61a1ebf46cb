from contextlib import ExitStack
from functools import partial

import pytest

from tests.unit.daemon import scripted


@pytest.fixture
def build(tmp_path):
    """See `scripted.build`; what it opens is closed at the end."""
    with ExitStack() as opened:
        yield partial(scripted.build, tmp_path, opened)
