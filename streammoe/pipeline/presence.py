"""Features that came with every event, and then come no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streammoe.ports import Location
from streammoe.text import some_of
from streammoe.types import FloatArray

ENOUGH = 100
"""Number of events with a feature, and then without it, after which it has vanished."""


@dataclass(slots=True)
class _Course:
    """The events with a feature up to the first one without it, and those in succession that lack it from there on."""

    seen: int = 0
    lacking: int = 0
    since: Location | None = None
    is_over: bool = False
    """Whether there is no more to find out, since the feature came again or was never a regular one."""


class Presence:
    """Notices features of a stream that vanish, wherever it is cut into batches."""

    def __init__(self) -> None:
        self.vanished: dict[str, int] = {}
        """Features that have vanished, each with the number of events in succession that came without it."""
        self._courses: dict[str, _Course] = {}

    def update(
        self,
        fields: Sequence[str],
        X: FloatArray,
        texts: Mapping[int, Sequence[str | None]],
        place: Callable[[int], Location],
    ) -> list[str]:
        """Take the next events, and say which features have vanished by now.

        Args:
            fields: the names of the features; later ones are appended.
            X: (n, F), NaN where a number is missing.
            texts: the n values of each column of texts, None where missing.
            place: returns where the i-th event came from.
        """
        missing = np.isnan(X.sum(axis=0)).tolist()
        found: dict[tuple[int, str], list[str]] = defaultdict(list)
        for j, name in enumerate(fields):
            course = self._courses.setdefault(name, _Course())
            if course.since is None and not (None in texts[j] if j in texts else missing[j]):
                course.seen += len(X)
                continue
            if course.is_over:
                continue
            present = np.array([text is not None for text in texts[j]]) if j in texts else ~np.isnan(X[:, j])
            if course.since is None:
                first = int(present.argmin())
                course.seen += first
                course.since, course.is_over = place(first), course.seen < ENOUGH
                present = present[first:]
            back = np.flatnonzero(present)
            course.lacking += int(back[0]) if back.size else len(present)
            if course.lacking >= ENOUGH and not course.is_over:
                if name not in self.vanished:
                    where = ", ".join(f"{key} {value}" for key, value in course.since.items())
                    found[course.seen, where].append(name)
                self.vanished[name] = course.lacking
            course.is_over |= back.size > 0
        return [
            f"each of {seen:,} events had {some_of(names)}, and none has since {where}: it counts as missing; look at "
            "what writes the records"
            for (seen, where), names in found.items()
        ]
