import pytest

from tests.messages import approved, areas, sections


@pytest.mark.parametrize("area", sorted(areas()))
def test_messages_are_as_approved(area):
    """If a message changed on purpose: `make messages`, and read the difference."""
    assert dict(sections([area]))[area].rstrip("\n") == approved().get(area)


def test_no_section_outlives_its_cases():
    assert set(approved()) == set(areas())
