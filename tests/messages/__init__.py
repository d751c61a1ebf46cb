"""Every message that a user may read, written out once in `approved.md` and reviewed there as prose.

A module of this package lists the messages of one area in `CASES`: a name, and a function that is called with an empty
folder and raises an error, logs, or returns a text. `make messages` writes the file again; the test compares. Other
tests assert an error's type and its `reason`, never its wording.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

APPROVED = Path(__file__).with_name("approved.md")
HEAD = "# Messages\n\nWritten by `make messages`; read the difference as prose before you commit it.\n"

Case = Callable[[Path], object]


class _Records(logging.Handler):
    """Keep what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname.lower()}: {record.getMessage()}")


def areas() -> dict[str, dict[str, Case]]:
    """Return the cases of each module here, by the module's name."""
    names = sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = (name for name in names if not name.startswith(("test_", "_")))
    return {name: importlib.import_module(f"{__name__}.{name}").CASES for name in modules}


def message_of(case: Case) -> str:
    """Return what `case` logs, returns and raises, one line each, without what changes from run to run."""
    logger, records = logging.getLogger("streammoe"), _Records()
    logger.addHandler(records)
    was, logger.level = logger.level, logging.INFO
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = case(Path(folder))
            if isinstance(found, str):
                lines += found.splitlines()
        except Exception as error:  # noqa: BLE001 - whatever a user may see is written down
            problems = getattr(error, "problems", None) or [str(error)]
            lines += [f"{type(error).__name__}: {problem}" for problem in problems]
        finally:
            logger.removeHandler(records)
            logger.level = was
        text = "\n".join([*records.lines, *lines])
        return re.sub(rf"{re.escape(folder)}", "{folder}", text)


def sections(wanted: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield each area's name and section; only those of the `wanted` areas if given."""
    for area, cases in areas().items():
        if wanted is not None and area not in wanted:
            continue
        entries = (f"### {name}\n\n```text\n{message_of(case)}\n```\n" for name, case in cases.items())
        yield area, "\n".join([f"## {area}\n", *entries])


def approved() -> dict[str, str]:
    """Return the approved sections, by area."""
    parts = re.split(r"(?m)^(?=## )", APPROVED.read_text()) if APPROVED.exists() else []
    return {part.split("\n", 1)[0].removeprefix("## "): part.rstrip("\n") for part in parts[1:]}
