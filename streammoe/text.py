"""Format values for messages: escape foreign text, truncate long values, and write counts and lists in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, TypeVar

Item = TypeVar("Item")

MAX_SHOWN_CHARS = 120
MOST_LISTED = 10
"""Maximum number of items that a message lists."""
ONE_A_LINE = {
    "[": "; write each object on a line of its own, such as with jq -c '.[]'",
    "{": "; write each object on a line of its own, such as with jq -c .",
}
"""What to do about JSON over several lines, by its first line."""
LONG_NUMBER = 10**40
"""Whole numbers of at least this size are shown as their number of digits; options only allow smaller ones."""


def printable(text: str) -> str:
    r"""Escape unprintable characters, so that a text stays on one line and cannot control a terminal.

    >>> printable("a\x1b[2J\tb ü")
    'a\\x1b[2J\\tb ü'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def time_of_day() -> str:
    """Return the present time in UTC as ISO 8601, to the second, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")  # noqa: TID251 - for people


def counted(number: int, what: str) -> str:
    """Return a count with its noun, in the plural where needed.

    >>> counted(1, "record"), counted(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def share_learned(learned: int, rejected: int, events: int) -> str:
    """Say how many of all events were learned, and how many rejected.

    >>> share_learned(2_031, 1_623, 3_654)
    '2,031 of 3,654 events learned; 1,623 (44.4%) rejected'
    """
    return f"{learned:,} of {counted(events, 'event')} learned; {rejected:,} ({rejected / events:.1%}) rejected"


def listed(words: Sequence[str], conjunction: Literal["and", "or"]) -> str:
    """Join words to a list in prose.

    >>> listed(["a", "b", "c"], "or"), listed(["a", "b"], "and"), listed(["a"], "and")
    ('a, b or c', 'a and b', 'a')
    """
    return f" {conjunction} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def amount(number: float) -> str:
    """Format a number with thousands separators and without an exponent or a trailing ".0" where possible.

    >>> amount(100_000), amount(0.5), amount(1e6)
    ('100,000', '0.5', '1,000,000')
    """
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if number.is_integer() else f"{number:g}"


def cut(text: str, longest: int = MAX_SHOWN_CHARS) -> str:
    """Truncate a text that is too long for a message."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def shown(value: object) -> str:
    """Format a value for a message: short, without Python's type names, and without control characters.

    >>> shown(True), shown(10**400)
    ('true', 'a whole number of 401 digits')
    """
    if isinstance(value, int) and abs(value) >= LONG_NUMBER:
        try:
            return f"a whole number of {len(str(abs(value)))} digits"
        except ValueError:  # Python limits the number of digits that it converts
            return "a whole number of thousands of digits"
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        text = str(value)  # the `repr` of NumPy's scalars names their type
    elif isinstance(value, Decimal):
        text = str(value)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        if type(value) in {str, bytes}:
            value = value[: MAX_SHOWN_CHARS + 1]  # type: ignore[index] # may be megabytes
        try:
            text = repr(value)
        except RecursionError:
            text = f"a deeply nested {type(value).__name__}"
        except ValueError:
            text = "a whole number of thousands of digits"
    return cut(" ".join(line.strip() for line in text.split("\n")))


def some_of(items: Iterable[Item], word: Callable[[Item], str] = shown) -> str:
    """Join items to a list in prose; of many, list the first ones and count the others.

    Args:
        items: the items.
        word: the word for an item.

    >>> some_of(["a", "b"]), some_of(range(12), str)
    ("'a' and 'b'", '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 others')
    """
    items = list(items)
    others = [counted(len(items) - MOST_LISTED, "other")] if len(items) > MOST_LISTED else []
    return listed([*map(word, items[:MOST_LISTED]), *others], "and")
