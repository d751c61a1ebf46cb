"""What tests of processes share."""

from pathlib import Path

import pytest

from tests.process.workspace import Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """All of these take their time."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def here(tmp_path):
    """An empty workspace, whose commands end with the test."""
    workspace = Workspace(tmp_path / "here")
    yield workspace
    workspace.close()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The summary of an undisturbed run over all events."""
    workspace = Workspace(tmp_path_factory.mktemp("whole") / "here")
    workspace.write("all.csv")
    workspace.config("all.csv")
    return workspace.run_here()
