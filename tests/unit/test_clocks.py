"""What goes by the time of day, which may be set back and forth, and what by a clock that only runs on."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_THE_DAY = {
    "streammoe/daemon/loop.py": "when a checkpoint was made, for people",
    "streammoe/commands/dead_letters.py": "the same",
    "streammoe/commands/inspect.py": "how old one is, for people",
    "connectors/streammoe_connectors/stdin.py": "a name for what came through one pipe",
    "connectors/streammoe_connectors/kafka/ownership.py": "who owns a group, told to other machines",
    "connectors/streammoe_connectors/kafka/transactions.py": "the same",
}
"""Modules that ask for the time of day, and what for. Nothing is waited for, due or expired by it within a process."""


def asks_for_the_time_of_day(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    used = {(ast.unparse(node.value), node.attr) for node in nodes if isinstance(node, ast.Attribute)}
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return bool(used & {("time", "time"), ("time", "time_ns"), ("datetime", "now")}) or "time" in imported


def test_nothing_else_asks_for_the_time_of_day():
    paths = [*(ROOT / "streammoe").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    assert len(paths) > 100
    found = {str(path.relative_to(ROOT)) for path in paths if asks_for_the_time_of_day(path)}
    assert found == OF_THE_DAY.keys()
