"""Console entry point, also for ``python -m streammoe``.

It imports as little as possible before `main` handles signals: until then Ctrl-C ends the process with Python's
traceback.
"""

import os
import signal
import sys


def main() -> None:
    """Run the command line; a signal that a command does not handle itself ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also during the next import, and while Python shuts down
    from streammoe.daemon.signals import StopFlag

    with StopFlag(armed=False):
        from streammoe.commands import main as command
        from streammoe.invocation import command_line

        try:
            command(prog_name=command_line())
        except SystemExit as exit_:
            _exit_if_fit_was_abandoned(exit_)
            raise


def _exit_if_fit_was_abandoned(exit_: SystemExit) -> None:
    """Exit at once if a fit was abandoned, without waiting for its thread; everything is saved and closed by now."""
    interruption = sys.modules.get("streammoe.engine.interruption")  # importing it would take a second
    if interruption is None or not interruption.has_abandoned_calls() or not isinstance(exit_.code, int | None):
        return
    import logging

    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(exit_.code or 0)


if __name__ == "__main__":
    main()
