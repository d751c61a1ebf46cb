"""Features that are missing from events, above all those that came with every event and then come no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import countOf

import numpy as np

from streammoe.ports import Location
from streammoe.text import some_of
from streammoe.types import BoolArray, FloatArray

ENOUGH = 100
"""Number of events with a feature, and then without it, after which it has vanished."""
MOST_COUNTED = 100
"""Number of features, the first ones, whose values are counted."""


@dataclass(slots=True)
class _Course:
    """The events with a feature up to the first one without it, and those in succession that lack it from there on."""

    seen: int = 0
    lacking: int = 0
    since: Location | None = None
    is_over: bool = False
    """Whether there is no more to find out, since the feature came again soon or was never a regular one."""

    def follow(self, present: BoolArray, place: Callable[[int], Location]) -> Iterator[bool]:
        """Take the next events, and yield whether it is new whenever enough of them in succession lack the feature."""
        at = 0
        while at < len(present) and not self.is_over:
            is_sought = self.since is not None
            ends = np.flatnonzero(present[at:] == is_sought)
            run = int(ends[0]) if ends.size else len(present) - at
            at += run
            if not is_sought:
                self.seen += run
                if ends.size:
                    self.since, self.is_over = place(at), self.seen < ENOUGH
                continue
            before, self.lacking = self.lacking, self.lacking + run
            if self.lacking >= ENOUGH:
                yield before < ENOUGH
                if ends.size:  # it came again, and may vanish again
                    self.seen, self.lacking, self.since = 0, 0, None
            else:
                self.is_over = ends.size > 0


class Presence:
    """Notices features of a stream that vanish, wherever it is cut into batches."""

    def __init__(self) -> None:
        self.vanished: dict[str, int] = {}
        """Features that have vanished, each with the number of events in succession that came without it."""
        self.missing: Counter[str] = Counter()
        """Events without a value of a feature."""
        self.unknown: Counter[str] = Counter()
        """Events with a level of a feature that has no room for it."""
        self._courses: dict[str, _Course] = {}

    @property
    def lacking(self) -> list[str]:
        """Features that have vanished and have not come again; other threads may ask, too."""
        return [
            name for name, course in self._courses.copy().items() if course.lacking >= ENOUGH and not course.is_over
        ]

    def update(
        self,
        fields: Sequence[str],
        X: FloatArray,
        texts: Mapping[int, Sequence[str | None]],
        full: Mapping[str, Collection[str]],
        place: Callable[[int], Location],
    ) -> list[str]:
        """Take the next events, and say which features have vanished by now.

        Args:
            fields: the names of the features; later ones are appended.
            X: (n, F), NaN where a number is missing.
            texts: the n values of each column of texts, None where missing.
            full: the levels of columns that have no room for others.
            place: returns where the i-th event came from.
        """
        missing = np.isnan(X.sum(axis=0)).tolist()
        found: dict[tuple[int, str], list[str]] = defaultdict(list)
        for j, name in enumerate(fields):
            course = self._courses.setdefault(name, _Course())
            n_missing = countOf(texts[j], None) if j in texts else missing[j] and int(np.isnan(X[:, j]).sum())
            if j < MOST_COUNTED:
                self.missing[name] += n_missing
                if name in full:
                    self.unknown[name] += sum(text is not None and text not in full[name] for text in texts[j])
            if course.since is None and not n_missing:
                course.seen += len(X)
                continue
            present = np.array([text is not None for text in texts[j]]) if j in texts else ~np.isnan(X[:, j])
            for is_new in course.follow(present, place):
                self.vanished[name] = course.lacking
                if is_new and course.since is not None:
                    where = ", ".join(f"{key} {value}" for key, value in course.since.items())
                    found[course.seen, where].append(name)
        return [
            f"each of {seen:,} events had {some_of(names)}, and none has since {where}: it counts as missing; look at "
            "what writes the records"
            for (seen, where), names in found.items()
        ]
