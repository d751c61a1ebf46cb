import pytest


@pytest.fixture
def write(tmp_path):
    """Puts content under a name."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write
