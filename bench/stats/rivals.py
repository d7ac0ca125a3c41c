"""The speed-up of every decoder over every other one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from bench.records.record import SampleRecord
from bench.stats import times
from bench.stats.intervals import Estimate, paired_speedup

Rivals = Mapping[tuple[str, str], Estimate]
"""Speed-ups of one decoder over another, by (decoder, other decoder)."""


def rivals(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Rivals:
    """Estimate the speed-up of each decoder over every other decoder, over all families."""
    units = times.units_by_decoder(records)
    return {
        (name, other): paired_speedup(units[other], units[name])
        for name, other in itertools.permutations(decoders, 2)
    }
