"""Features that came with every event, and then come no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streammoe.ports import Location
from streammoe.text import some_of
from streammoe.types import FloatArray, IntArray

ENOUGH = 100
"""Number of events with a feature, and then without it, after which it has vanished."""
MOST_NAMED = 100
"""Maximum number of features that are said to have vanished."""


class _Gap(NamedTuple):
    """The first events in succession that lack a feature."""

    events: int
    since: Location
    is_over: bool
    """Whether there is no more to find out, since the feature came again or was never a regular one."""


class Presence:
    """Notices features of a stream that vanish, wherever it is cut into batches."""

    def __init__(self) -> None:
        self.vanished: dict[str, int] = {}
        """Features that have vanished, each with the number of events in succession that came without it."""
        self._seen: IntArray = np.zeros(0, np.int64)
        """Events with each feature, before the first one without it."""
        self._gaps: dict[str, _Gap] = {}

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
        n = len(X)
        self._seen = np.append(self._seen, np.zeros(len(fields) - len(self._seen), np.int64))
        if not texts and not self._gaps and not np.isnan(X.sum()):
            self._seen += n
            return []
        missing = np.isnan(X.sum(axis=0))
        found: dict[tuple[int, str], list[str]] = defaultdict(list)
        for j, name in enumerate(fields):
            gap = self._gaps.get(name)
            lacks = None in texts[j] if j in texts else missing[j]
            if (gap is None and not lacks) or (gap is not None and gap.is_over):
                self._seen[j] += n
                continue
            present = np.array([text is not None for text in texts[j]]) if j in texts else ~np.isnan(X[:, j])
            first = int(present.argmin()) if gap is None else 0
            if gap is None:
                self._seen[j] += first
                gap = _Gap(0, place(first), self._seen[j] < ENOUGH)
            back = np.flatnonzero(present[first:])
            events = gap.events + (int(back[0]) if back.size else n - first)
            if not gap.is_over and events >= ENOUGH:
                if name not in self.vanished and len(self.vanished) < MOST_NAMED:
                    where = ", ".join(f"{key} {value}" for key, value in gap.since.items())
                    found[int(self._seen[j]), where].append(name)
                    self.vanished[name] = 0
                if name in self.vanished:
                    self.vanished[name] = events
            self._gaps[name] = _Gap(events, gap.since, gap.is_over or back.size > 0)
        return [
            f"each of {seen:,} events had {some_of(names)}, and none has since {where}: it counts as missing; look at "
            "what writes the records"
            for (seen, where), names in found.items()
        ]
