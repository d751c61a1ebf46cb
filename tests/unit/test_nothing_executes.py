"""No way from data to code: what the sources of the package may not even name.

Beside the import contract "Nothing that is read can execute", which also sees what is imported by way of others, and
beside ruff's and bandit's rules about `eval`, shells, pickles and the like.
"""

from io import StringIO
from pathlib import Path
from token import NAME
from tokenize import generate_tokens

ROOT = Path(__file__).parents[2]
PATHS = sorted(
    path for folder in ("streammoe", "connectors/streammoe_connectors") for path in (ROOT / folder).rglob("*.py")
)
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
NAMES = {
    *("allow_pickle", "fromfile", "literal_eval", "memmap", "read_pickle", "to_pickle", "unsafe_load", "full_load"),
    *("popen", "system", "execv", "execve", "execvp", "spawnv", "spawnl", "posix_spawn", "fork", "set_start_method"),
    *("FunctionType", "CodeType", "__import__"),
}
"""Attributes, functions and arguments that do, or that start programs."""
SERVERS = {"listen", "create_server", "start_server", "start_unix_server", "HTTPServer", "TCPServer"}
MAY = {
    # Modules of this package, and of River by the short list of them that the command line knows.
    "import_module": {
        *(f"streammoe/{folder}__init__.py" for folder in ("", "commands/", "distributions/")),
        "streammoe/experts/linear.py",
        "streammoe/commands/evaluate/peers.py",
    },
    # No other program is started.
    "subprocess": set(),
    # Installed packages announce connectors and commands; nothing that is read names one.
    "entry_points": {"streammoe/configuration.py", "streammoe/commands/__init__.py"},
    # Metrics and probes, on the address that the settings name.
    "listening": {"streammoe/web/listener.py"},
}
"""Where alone something is used."""


def findings(source, place):
    """The names that a source must not hold, outside of text and comments."""
    used = {token.string for token in generate_tokens(StringIO(source).readline) if token.type == NAME}
    return (
        used & NAMES
        | {name for name in used & MAY.keys() if place not in MAY[name]}
        | (used & SERVERS if place not in MAY["listening"] else set())
    )


def test_no_source_can_make_code_of_data():
    assert len(SOURCES) > 100
    for place, source in SOURCES.items():
        assert not findings(source, place), place
