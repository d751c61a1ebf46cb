"""The command as a process of its own: `streammoe`, or ``python -m streammoe``.

It imports next to nothing before `main` has taken over the signals, and nothing here may: until then Ctrl-C ends the
process with Python's traceback.
"""

import signal


def main() -> None:
    """Run the command line; a signal that a command does not handle itself ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also amid the next import, and while Python shuts down
    from streammoe.daemon.signals import StopFlag

    with StopFlag(armed=False):
        from streammoe.cli import main as command

        command()


if __name__ == "__main__":
    main()
