"""The command as a process of its own: `streammoe`, or ``python -m streammoe``."""

from __future__ import annotations

from streammoe.daemon.signals import StopFlag


def main() -> None:
    """Run the command line; a signal while it is still being imported ends the process without a traceback."""
    with StopFlag(armed=False):
        from streammoe.cli import main as command
    command()


if __name__ == "__main__":
    main()
