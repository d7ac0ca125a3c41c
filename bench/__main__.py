"""Run `python -m bench` and the console script ``bench``.

Ctrl-C prints one line at any moment. Importing the command line takes seconds, and imported code
may turn an interruption into another error. So interruptions are counted before any import.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit with 130 and one line, no traceback, if interrupted."""
    interruptions: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruptions.append(number)
        signal.default_int_handler(number, frame)

    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else SIGINT is ignored
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

    # as in the console script: never import a cli.py of the current folder instead of this one
    beside = Path(__file__).resolve().parents[1]
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != beside:
        del sys.path[0]
    main()
