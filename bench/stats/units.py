"""Units of metrics, each with the format of its printed numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricUnit:
    """A metric's unit, with the format of printed numbers and the factor before it."""

    name: str = ""
    spec: str = ".2f"
    scale: float = 1.0
    is_time: bool = False


NUMBER = MetricUnit()
SHARE = MetricUnit("share", ".1f", 100)
"""A fraction from 0 to 1, printed in per cent."""
FACTOR = MetricUnit("x", is_time=True)
"""A ratio of times, printed with its interval."""
MILLISECONDS = MetricUnit("s", ".2f", 1e3, is_time=True)
"""Seconds, printed in milliseconds."""
PER_SECOND = MetricUnit("1/s", ",.0f", is_time=True)
MEGABYTES = MetricUnit("bytes", ",.1f", 1e-6)
"""Bytes, printed in megabytes."""
NATS = MetricUnit("nats")
JOULES = MetricUnit("J")
