"""What became of the records of a source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import DeadLetter
from streammoe.printing import printable
from streammoe.runtime.pipeline import Processed


@dataclass(kw_only=True)
class Tally:
    """Sums over batches."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_of: dict[str, DeadLetter] = field(default_factory=dict)
    """Of each reason the first record that was refused."""

    def count(self, processed: Processed) -> None:
        """Add a batch."""
        self.outcomes.update(processed.outcomes)
        self.reasons.update(processed.reasons)
        for letter in processed.letters:
            self.first_of.setdefault(letter.reason, letter)

    def require_learned(self, source: str, target: str) -> None:
        """See that there was anything to learn.

        Raises:
            SourceError: there was not; with the reason.
        """
        if self.outcomes["learned"]:
            return
        if self.first_of:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.reasons.items())
            first = next(iter(self.first_of.values())).detail
            message = (
                f"{source}: no event could be learned; records were refused ({counts}). The first: {first}. "
                "Columns that hold no numbers belong into --categorical, --timestamps or --ignore"
            )
            raise SourceError(message)
        if self.outcomes["predicted_only"]:
            raise SourceError(f"{source}: no record holds the target {target!r}; name it by --target")
        raise SourceError(f"{source}: there are no records in it; give a file that holds some")

    def notes(self) -> list[str]:
        """Lines on what was not learned."""
        lines = []
        if self.outcomes["predicted_only"]:
            lines += [f"{self.outcomes['predicted_only']:,} events hold no target (or weigh nothing) and count nowhere"]
        for reason, letter in self.first_of.items():
            place = ", ".join(f"{name} {value}" for name, value in letter.place.items())
            said = printable(f"the first, at {place}: {letter.detail}")
            lines += [f"refused {self.reasons[reason]:,} ({reason}); {said}"]
        return lines

    def counts(self) -> dict[str, int]:
        """Records in all, and by outcome."""
        names = ("learned", "predicted_only", "rejected", "skipped")
        return {"events": sum(self.outcomes.values()), **{name: self.outcomes[name] for name in names}}

    def refused(self) -> list[dict[str, Any]]:
        """Of each reason how many records, and the first one, as JSON holds it."""
        return [
            {"reason": reason, "records": self.reasons[reason], "place": letter.place, "detail": letter.detail}
            for reason, letter in self.first_of.items()
        ]
