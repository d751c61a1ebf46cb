"""Text that others have written, made fit for a terminal and a log."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text in one line, which says nothing to a terminal: control characters and the like are escaped.

    >>> printable("a\x1b[2J\tb ü")
    'a\\x1b[2J\\tb ü'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
