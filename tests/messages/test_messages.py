import re

import pytest

from tests.messages import approved, areas, section

PYTHONS = re.compile(
    r"Traceback|\b\w*(Error|Exception|Warning)\(|\bErrno\b|\bNone(Type)?\b|(?<!')\b(True|False)\b|_ssl\.c|datetime\."
    r"|<class|<function| object at 0x|\bvalid (integer|string|boolean|tuple|number)\b"
    r"|\b(dict|tuple|str|bool|int|float) object\b"
)


@pytest.mark.parametrize("area", sorted(areas()))
def test_messages_are_as_approved(area):
    """If a message changed on purpose: `make messages`, and read the difference."""
    assert section(area).rstrip("\n") == approved().get(area)


def test_no_section_outlives_its_cases():
    assert set(approved()) == set(areas())


@pytest.mark.parametrize("area", ["cli", "settings"])
def test_no_message_speaks_of_python(area):
    """Names of types before a colon are those that `message_of` writes; headings repeat what a user wrote."""
    said = [re.sub(r"^\w+: ", "", line) for line in approved()[area].splitlines() if not line.startswith("### ")]
    assert len(said) > 50
    assert not [line for line in said if PYTHONS.search(line)]
