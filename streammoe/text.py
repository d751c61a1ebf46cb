"""Text for people: others' words made harmless, values and counts in words."""

from __future__ import annotations

_LONGEST_SHOWN = 120


def printable(text: str) -> str:
    r"""Text in one line, which says nothing to a terminal: control characters and the like are escaped.

    >>> printable("a\x1b[2J\tb ü")
    'a\\x1b[2J\\tb ü'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "record"), counted(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def shown(value: object) -> str:
    """Return a value for a message: short, without anything that a terminal would obey."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # whole numbers of thousands of digits; deep nesting
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
