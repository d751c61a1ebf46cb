"""What became of the records of a source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streammoe.errors import SourceError, TooManyBadRecords
from streammoe.pipeline.decoders import Values, decoder
from streammoe.pipeline.decoders.values import some_of
from streammoe.pipeline.pipeline import Processed, Schema
from streammoe.ports import Batch, DeadLetter
from streammoe.text import printable


@dataclass(kw_only=True)
class Tally:
    """Sums over batches."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_of: dict[str, DeadLetter] = field(default_factory=dict)
    """Of each reason the first record that was refused."""
    first_idle: Values | None = None
    """The first record that was predicted only, raw, where nothing had been learned yet."""

    def count(self, processed: Processed, batch: Batch) -> None:
        """Add a batch, and what has become of it."""
        self.outcomes.update(processed.outcomes)
        self.reasons.update(processed.reasons)
        for letter in processed.letters:
            self.first_of.setdefault(letter.reason, letter)
        if self.first_idle is None and processed.outcomes["predicted_only"] and not self.outcomes["learned"]:
            self.first_idle = decoder(batch.format).names(batch, int(np.argmin(processed.bad)))

    def require_learned(self, source: str, schema: Schema) -> None:
        """See that there was anything to learn.

        Raises:
            SourceError: there was not; with the reason.
        """
        if self.outcomes["learned"]:
            return
        if self.first_idle is not None and self.outcomes["predicted_only"] >= self.outcomes["rejected"]:
            raise SourceError(f"{source}: {_want_of(schema, self.first_idle)}")
        if self.first_of:
            raise SourceError(f"{source}: no event could be learned; records were refused {self.by_reason()}")
        raise SourceError(f"{source}: there are no records in it; give a file that holds some")

    def judge(self, source: str, max_ratio: float, *, instead: str, remedy: str) -> None:
        """See that not too many records were refused: a model of the rest is not one of the file.

        Args:
            source: for the message.
            max_ratio: part of the records that may be refused.
            instead: what is not done, or does not count, if there are more.
            remedy: what to do to have it all the same.

        Raises:
            TooManyBadRecords: there are more.
        """
        refused = self.outcomes["rejected"]
        n = refused + self.outcomes["learned"] + self.outcomes["predicted_only"]
        if refused > max_ratio * n:
            raise TooManyBadRecords(
                f"{source}: {instead}, since {refused:,} of {n:,} records were refused, and "
                f"dead_letters.max_ratio allows {max_ratio:g} of them {self.by_reason()}. {remedy}, raise that setting "
                "(--set dead_letters.max_ratio=1)"
            )

    def by_reason(self) -> str:
        """How many records were refused for each reason, in the first one's own words why, and what may help."""
        first = next(iter(self.first_of.values())).detail
        hint = (
            ". Columns that hold no numbers belong into --categorical, --timestamps or --ignore; a target that is a "
            "label asks for --classify"
        )
        return f"({self.counts_in_words()}). The first: {first}{hint if self.reasons['wrong_type'] else ''}"

    def counts_in_words(self) -> str:
        """How many records were refused for each reason."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())

    def notes(self) -> list[str]:
        """Lines on what was not learned."""
        lines = []
        if self.outcomes["predicted_only"]:
            lines += [f"{self.outcomes['predicted_only']:,} events hold no target (or weigh nothing) and count nowhere"]
        for reason, letter in self.first_of.items():
            location = ", ".join(f"{name} {value}" for name, value in letter.location.items())
            said = printable(f"the first, at {location}: {letter.detail}")
            lines += [f"refused {self.reasons[reason]:,} ({reason}); {said}"]
        return lines

    def counts(self) -> dict[str, int]:
        """Records in all, and by outcome."""
        names = ("learned", "predicted_only", "rejected", "skipped")
        return {"events": sum(self.outcomes.values()), **{name: self.outcomes[name] for name in names}}

    def refused(self) -> list[dict[str, Any]]:
        """Of each reason how many records, and the first one, as JSON holds it."""
        return [
            {"reason": reason, "records": self.reasons[reason], "place": letter.location, "detail": letter.detail}
            for reason, letter in self.first_of.items()
        ]


def _want_of(schema: Schema, first: Values) -> str:
    """What records lack that were neither learned nor refused, as the first of them shows it."""
    for target in schema.targets:
        if target not in first:
            held = f"the first one holds {some_of(sorted(first))}; name the target by --target"
            return f"no record has a value of the target {target!r}, and {held}"
        if first[target] in (None, ""):
            held = "in the first one that field is there, but empty; fill it in, or name another by --target"
            return f"no record has a value of the target {target!r}: {held}"
    return f"no record has both a target and a weight above 0; the first one has the weight 0 in {schema.weight!r}"
