"""Docstrings as Markdown for the site: examples in fences, and headings of the kind that River uses as text."""

import re
from typing import Any

from griffe import Extension, Object


class Markdown(Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Put examples, which end at a blank line, into fences."""
        if obj.docstring:
            text = re.sub(r"(?m)^(\w+:)\n-+$", r"**\1**\n", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^( *)>>> .*(?:\n\1.*\S.*)*", r"\1```python\n\g<0>\n\1```", text)
