"""Check the invariants of a record, which every answer of a run must keep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bench.records.record import SampleRecord


def broken_invariants(
    record: SampleRecord, max_new_tokens: int, *, verified: bool = False
) -> Sequence[str]:
    """Describe the invariants that a record breaks. A failed answer breaks none.

    A decoder whose tokens the target verifies (`verified`) feeds each of them, and each draft.
    """
    steps, tokens = record.steps, record.tokens
    if steps is None or tokens is None:
        return ()
    broken = []
    if sum(steps.emitted) != len(tokens):
        broken.append(f"steps emit {sum(steps.emitted)} tokens, the answer has {len(tokens)}")
    if any(a > d for a, d in zip(steps.accepted, steps.depths, strict=True)):
        broken.append("a step accepted more drafts than it made (in a tree: on its longest path)")
    if any(depth > d for depth, d in zip(steps.depths, steps.drafted, strict=True)):
        broken.append("the longest path of a step has more drafts than the step")
    if 0 in (n for n, d in zip(steps.emitted[1:], steps.drafted[1:], strict=True) if d):
        broken.append("a step verified drafts and emitted nothing, not even the target's token")
    num_rejected = [d - a for d, a in zip(steps.drafted, steps.accepted, strict=True)]
    if any(len(ids) > n for ids, n in zip(steps.rejected, num_rejected, strict=False)):
        broken.append("a step rejected more tokens than it drafted minus those accepted")
    sources = [len(p) for p in steps.source]
    if sources and sources != list(steps.accepted):
        broken.append("a step names drafters, but not one per accepted draft")
    decided = [(len(p), n) for p, n in zip(steps.decided, steps.emitted, strict=False) if p]
    if any(passes != num for passes, num in decided):
        broken.append("a step names deciding passes, but not one per emitted token")
    if any(after < before for before, after in itertools.pairwise(steps.ended_s)):
        broken.append("a step ended before the previous one")
    rows = sum(steps.target_rows[1:])
    if verified and max(sum(steps.emitted[1:]), sum(steps.drafted[1:])) > rows:
        broken.append(f"later steps fed the target {rows} rows, fewer than tokens or drafts")
    first_s, last_s = record.ttft_s, record.total_s
    if first_s is not None and last_s is not None and first_s > last_s:
        broken.append(f"its first token came after {first_s} s, its last after {last_s} s")
    if len(tokens) > max_new_tokens:
        broken.append(f"{len(tokens)} tokens exceed the budget of {max_new_tokens}")
    if record.decoder in ("ar", "ar@aa") and sum(steps.target_calls) != len(tokens):
        broken.append(f"ar made {sum(steps.target_calls)} calls for {len(tokens)} tokens")
    return tuple(broken)
