"""What goes by the time of day, which may be set back and forth, and what by a clock that only runs on."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BY_THE_TIME_OF_DAY = {
    "streammoe/daemon/state.py": "when a checkpoint was made, for people",
    "streammoe/commands/inspect.py": "how old one is, for people",
    "connectors/streammoe_connectors/stdin.py": "a name for what came through one pipe",
    "connectors/streammoe_connectors/kafka/ownership.py": "who owns a group, as seen by other machines",
    "connectors/streammoe_connectors/kafka/transactions.py": "the same",
}
"""Modules that ask for the time of day, and what for. Nothing is waited for, due or expired by it within a process."""
ASKS = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.now\b|^ *from time import", re.MULTILINE)


def test_nothing_else_asks_for_the_time_of_day():
    paths = [*(ROOT / "streammoe").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    assert len(paths) > 100
    found = {str(path.relative_to(ROOT)) for path in paths if ASKS.search(path.read_text(encoding="utf-8"))}
    assert found == BY_THE_TIME_OF_DAY.keys()
