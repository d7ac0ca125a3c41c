"""A short spin of waiting OpenMP threads before they sleep.

GNU's runtime, which torch ships on Linux, lets threads spin for so long that calls of a small model
take 5 to 25 times as long where another process uses the processor too; sleeping at once costs 1.7
times the time of a call on an idle machine, a short spin nothing (docs/log.md). The variable is
read once, when torch is imported.
"""

from __future__ import annotations

import os
import sys

WAIT_POLICY, SPIN_COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
_SHORT_SPIN = "10000"


def shorten_spinning() -> bool:
    """Let waiting threads spin only shortly, and tell whether that was set.

    Not where the user chose by `WAIT_POLICY` or `SPIN_COUNT`, nor once torch is imported.
    """
    if "torch" in sys.modules or WAIT_POLICY in os.environ or SPIN_COUNT in os.environ:
        return False
    os.environ[SPIN_COUNT] = _SHORT_SPIN
    return True


def spinning() -> tuple[str, str | None]:
    """Say what is set, with advice where it is known to cost time."""
    policy, count = os.environ.get(WAIT_POLICY), os.environ.get(SPIN_COUNT)
    if policy is not None:
        advice = f"unset {WAIT_POLICY}: each call of a small model waits for threads to wake"
        return f"{WAIT_POLICY}={policy}", advice if policy.lower() == "passive" else None
    if count is not None:
        return f"{SPIN_COUNT}={count}", None
    advice = f"export {SPIN_COUNT}={_SHORT_SPIN}: spinning threads slow calls beside other load"
    return "spin for as long as the OpenMP runtime lets them", advice
