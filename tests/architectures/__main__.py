"""``python -m tests.architectures [NAME …]``: judge checkpoints of the catalogue and store it.

What is neither right nor refused keeps its old verdict, is told, and makes the exit code 1.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from transformers.utils import logging

from docs.generate.architectures import STORED, read_verdicts, write_verdicts
from tests.architectures.catalogue import CATALOGUE
from tests.architectures.judge import judge


def main(names: list[str]) -> int:
    """Judge the checkpoints of some names, or of all."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    verdicts = {
        name: verdict
        for name, verdict in (read_verdicts() if STORED.exists() else {}).items()
        if name in CATALOGUE
    }
    wrong = 0
    for name in names or CATALOGUE:
        with tempfile.TemporaryDirectory() as folder:
            try:
                verdicts[name] = judge(name, Path(folder))
                write_verdicts(verdicts)
            except Exception as error:
                wrong += 1
                print(f"{name}: {type(error).__name__}: {error} {error.__cause__ or ''}")  # noqa: T201
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
