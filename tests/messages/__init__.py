"""Every message that a user may read, written out once in `approved.md` and reviewed there as prose.

A module of this package lists the messages of one area in `CASES`: a name, and a function that is called with an empty
folder and raises an error, logs, or returns a text. `make messages` writes the file again; the test compares. Other
tests assert an error's type and its `reason`, never its wording.
"""

import importlib
import logging
import pkgutil
import re
import tempfile
from pathlib import Path

APPROVED = Path(__file__).with_name("approved.md")
HEAD = "# Messages\n\nWritten by `make messages`; read the difference as prose before you commit it.\n"


def areas():
    """Return the cases of each module here, by the module's name."""
    names = sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = (name for name in names if not name.startswith(("test_", "_")))
    return {name: importlib.import_module(f"{__name__}.{name}").CASES for name in modules}


def message_of(case):
    """Return what `case` logs, returns and raises, one line each, without what changes from run to run."""
    lines, said = [], []
    handler, logger = logging.Handler(), logging.getLogger("streammoe")
    handler.emit = lambda record: lines.append(f"{record.levelname.lower()}: {record.getMessage()}")
    # It depends on the cache what is compiled.
    handler.addFilter(lambda record: record.name != "streammoe.kernels" and "compiled the" not in record.getMessage())
    logger.addHandler(handler)
    was = logger.level
    logger.setLevel(logging.INFO)  # unlike an assignment, this lets loggers below ask again what is enabled
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = case(Path(folder))
            said = found.splitlines() if isinstance(found, str) else []
        except Exception as error:  # noqa: BLE001 - whatever a user may see is written down
            problems = getattr(error, "problems", None) or [str(error)]
            said = [f"{type(error).__name__}: {problem}" for problem in problems]
        finally:
            logger.removeHandler(handler)
            logger.setLevel(was)
    return "\n".join([*lines, *said]).replace(folder, "{folder}")


def section(area):
    """Return an area's messages in the form of the approval file."""
    entries = (f"### {name}\n\n```text\n{message_of(case)}\n```\n" for name, case in areas()[area].items())
    return "\n".join([f"## {area}\n", *entries])


def approved():
    """Return the approved sections, by area."""
    parts = re.split(r"(?m)^(?=## )", APPROVED.read_text())
    return {part.split("\n", 1)[0].removeprefix("## "): part.rstrip("\n") for part in parts[1:]}
