"""`python -m bench`, and what the console script ``bench`` calls: Ctrl-C is one line at any moment.

Importing the command line and the models' code takes seconds, and what is imported may turn an
interruption into an error of its own: so nothing is imported before interruptions are counted.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line; where it was interrupted, no traceback but a line and exit code 130."""
    interruptions: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruptions.append(number)
        signal.default_int_handler(number, frame)

    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, interrupt)
        from cli import main as command_line

        command_line()
    except Exception:
        if not interruptions:
            raise
    except KeyboardInterrupt:
        pass
    else:
        return
    sys.stderr.write("bench: interrupted\n")
    sys.exit(INTERRUPTED)


if __name__ == "__main__":
    from pathlib import Path

    # as for the console script: no cli.py of the current folder stands in for ours
    beside = Path(__file__).resolve().parents[1]
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != beside:
        del sys.path[0]
    main()
