"""Let waiting OpenMP threads spin briefly before they sleep.

With GNU's runtime, which torch ships on Linux, threads spin so long that calls of a small model
take 5 to 25 times as long if another process uses the processor too. On an idle machine, sleeping
at once makes a call 1.7 times as long; a short spin costs nothing (docs/log.md). The runtime reads
the variable once, when torch is imported.
"""

from __future__ import annotations

import os
import sys

WAIT_POLICY, SPIN_COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
SHORT_SPIN = "10000"


def shorten_spinning() -> None:
    """Make waiting threads spin only briefly, unless the user chose or torch is imported."""
    if not ("torch" in sys.modules or WAIT_POLICY in os.environ or SPIN_COUNT in os.environ):
        os.environ[SPIN_COUNT] = SHORT_SPIN
