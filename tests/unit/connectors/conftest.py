import pytest

from streammoe_connectors.formats import registry as formats_registry
from tests.unit.connectors.registry import Registry


@pytest.fixture
def write(tmp_path):
    """Puts content under a name."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def registries(monkeypatch):
    """Makes registries, which are closed at the end; clients do not pause between attempts."""
    monkeypatch.setitem(formats_registry._OPTIONS, "retries.wait.ms", 0)
    made = []

    def make(*arguments):
        made.append(Registry(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def registry(registries):
    """An empty registry."""
    return registries()
