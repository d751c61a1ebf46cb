"""Count what became of the records of a source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streammoe.daemon.model import schema_of
from streammoe.errors import SourceError, TooManyBadRecords
from streammoe.pipeline.decoders import Values, decoder
from streammoe.pipeline.pipeline import BatchResult
from streammoe.pipeline.schema import Schema
from streammoe.ports import Batch, DeadLetter
from streammoe.settings import Settings
from streammoe.text import printable, shown, some_of


@dataclass(kw_only=True)
class Tally:
    """Counts over all batches."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_of: dict[str, DeadLetter] = field(default_factory=dict)
    """The first rejected record for each reason."""
    first_idle: Values | None = None
    """The first record that was only predicted, raw, if nothing had been learned before."""

    def count(self, processed: BatchResult, batch: Batch) -> None:
        """Add the outcomes of a batch."""
        self.outcomes.update(processed.outcomes)
        self.reasons.update(processed.reasons)
        for letter in processed.letters:
            self.first_of.setdefault(letter.reason, letter)
        if self.first_idle is None and processed.outcomes["predicted_only"] and not self.outcomes["learned"]:
            self.first_idle = decoder(batch.format).names(batch, int(np.argmin(processed.bad)))

    def add(self, later: Tally) -> None:
        """Add the counts of records that came after these."""
        if self.first_idle is None and not self.outcomes["learned"]:
            self.first_idle = later.first_idle
        self.outcomes.update(later.outcomes)
        self.reasons.update(later.reasons)
        for reason, letter in later.first_of.items():
            self.first_of.setdefault(reason, letter)

    def check(self, source: str, settings: Settings, *, instead: str, remedy: str) -> None:
        """Check that anything was learned, and that a model of it would represent the file.

        Args:
            source: for the message.
            settings: with the schema, and the share of the records that may be rejected.
            instead: consequence of too many, for the message.
            remedy: beginning of the advice, for the message.

        Raises:
            SourceError: nothing was learned; with the reason.
            TooManyBadRecords: more records were rejected than the settings allow.
        """
        rejected, max_ratio = self.outcomes["rejected"], settings.dead_letters.max_ratio
        n = rejected + self.outcomes["learned"] + self.outcomes["predicted_only"]
        if self.outcomes["learned"]:
            if rejected > max_ratio * n:
                raise TooManyBadRecords(
                    f"{source}: {instead}: {rejected:,} of {n:,} records were rejected, and dead_letters.max_ratio "
                    f"allows a share of {max_ratio:g} {self.describe_rejected()}. {remedy}, raise that setting "
                    "(--set dead_letters.max_ratio=1)"
                )
            return
        if self.first_idle is not None and self.outcomes["predicted_only"] >= rejected:
            raise SourceError(f"{source}: {_describe_missing(schema_of(settings), self.first_idle)}")
        if self.first_of:
            raise SourceError(f"{source}: no event could be learned; records were rejected {self.describe_rejected()}")
        if skipped := self.outcomes["skipped"]:
            raise SourceError(
                f"{source}: it has no records, but {skipped:,} blank lines, headers once more, or records "
                "with null in place of an event; look at source.record"
            )
        raise SourceError(f"{source}: it has no records; give a file with records")

    def describe_rejected(self) -> str:
        """Describe the rejected records: counts by reason, the first detail, and possible remedies."""
        letter = next(iter(self.first_of.values()))
        first = letter.detail
        hint = (
            ". List columns that are not numeric in --categorical, --timestamps or --ignore; use --classify if the "
            "target is a label"
        )
        return f"({self.format_reasons()}). The first: {first}{hint if self.reasons['wrong_type'] else ''}"

    def format_reasons(self) -> str:
        """Format the number of rejected records for each reason."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())

    def notes(self) -> list[str]:
        """Describe the records that were not learned, one line each."""
        lines = []
        if self.outcomes["predicted_only"]:
            lines += [f"{self.outcomes['predicted_only']:,} events have no target (or no weight) and are ignored"]
        for reason, letter in self.first_of.items():
            where = ", ".join(f"{name} {value}" for name, value in letter.location.items())
            first = printable(f"the first, at {where}: {letter.detail}")
            lines += [f"rejected {self.reasons[reason]:,} ({reason}); {first}"]
        return lines

    def counts(self) -> dict[str, int]:
        """Count records in total and by outcome."""
        names = ("learned", "predicted_only", "rejected", "skipped")
        return {"events": sum(self.outcomes.values()), **{name: self.outcomes[name] for name in names}}

    def rejected(self) -> list[dict[str, Any]]:
        """Return the number of rejected records and the first one for each reason, as JSON values."""
        return [
            {"reason": reason, "records": self.reasons[reason], "place": letter.location, "detail": letter.detail}
            for reason, letter in self.first_of.items()
        ]


def _describe_missing(schema: Schema, first: Values) -> str:
    """Describe what the first record that was only predicted lacks."""
    for target in schema.targets:
        if target not in first:
            held = f"the first one has {some_of(sorted(first))}; name the target with --target"
            return f"no record has a value of the target {target!r}, and {held}"
        if schema.notations.of(target).is_missing(first[target]):
            found = shown(first[target]) if first[target] else "empty"
            held = f"in the first one that field is {found}; fill it in, or name another with --target"
            return f"no record has a value of the target {target!r}: {held}"
    return f"no record has both a target and a weight above 0; the first one has the weight 0 in {schema.weight!r}"
