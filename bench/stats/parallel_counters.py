"""Compute counters from the literature on parallel decoding, only from records.

They cover rounds, the overlap of draft and target distributions, passes, accuracy under
parallelism, and the losses of lossy outputs. All other counters are in `bench.stats.counters`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from bench.records.prompts import Prompt
from bench.records.record import SampleRecord, StepColumns
from bench.stats.counters import by_cluster, ratio
from bench.stats.intervals import Estimate, jackknife

LOOP_SHARE = 0.5
"""Share of repeated 3-grams above which answers count as loops."""
LOOP_EXCESS = 0.1
"""Excess over the baseline's share above which answers count as loops."""
COPIED_RUN = 4
"""Minimum length of a copied run: after a match of 3 tokens, `lookup` gains from the fourth."""


def round_shares(steps: Iterable[StepColumns]) -> dict[str, float | None]:
    """Return cold, accepted and rejected rounds / later steps, None without any drafts.

    A cold round verified no drafts. An accepted round accepted as many drafts as its depth, a
    rejected round fewer. Drafts behind EOS or budget are not accepted (`Tally.acceptance_rate`).
    """
    pairs: Counter[tuple[int, int]] = Counter()
    for columns in steps:
        pairs.update(zip(columns.depths[1:], columns.accepted[1:], strict=True))
    num = pairs.total() if any(drafted for drafted, _ in pairs) else 0
    cold = sum(n for (drafted, _), n in pairs.items() if not drafted)
    fell = sum(n for (drafted, accepted), n in pairs.items() if accepted < drafted)
    return {
        "cold_rounds": ratio(cold, num),
        "accepted_rounds": ratio(num - cold - fell, num),
        "rejected_rounds": ratio(fell, num),
    }


def compared_ratio(steps: Iterable[StepColumns], part: str, whole: str) -> float | None:
    """Return the sum of column `part` / the sum of column `whole`, over answers with comparisons.

    ``overlap`` / ``tested`` is the mean over tested drafts of min(target, draft), summed over the
    vocabulary: the probability that the draft is accepted (1 - total variation). A draft is tested
    if all earlier drafts of its step were accepted. ``alpha`` / ``emitted`` is the mean over
    emitted tokens of min(1, target / draft), with 1 for a token that was no draft. This is I-DLM's
    introspective acceptance rate (arXiv 2604.11035; the target is the base model). It is not the p
    in the formula for tokens per call, because accepted tokens are a selection. The result is None
    for greedy and coupled verification, which compare only picks.
    """
    sums = [(sum(getattr(s, part)), sum(getattr(s, whole))) for s in steps if s.tested]
    return ratio(sum(one for one, _ in sums), sum(other for _, other in sums))


def passes_per_block(steps: Iterable[StepColumns]) -> dict[str, float | None]:
    """Return passes per finished block, mean and 95th percentile (nearest rank), and tokens."""
    counts: list[int] = []
    tokens = 0
    for columns in steps:
        ends = [i for i, count in enumerate(columns.passes) if count]
        counts += [columns.passes[i] for i in ends]
        tokens += sum(columns.emitted[: ends[-1] + 1]) if ends else 0
    counts.sort()
    rank = math.ceil(0.95 * len(counts))
    return {
        "tokens_per_block": ratio(tokens, len(counts)),
        "passes_per_block": ratio(sum(counts), len(counts)),
        "passes_per_block_p95": float(counts[rank - 1]) if counts else None,
    }


def copied(records: Iterable[SampleRecord], prompts: Mapping[str, Prompt]) -> float | None:
    """Return the share of tokens in runs of `COPIED_RUN` or more that also occur in the prompt.

    A token counts once, and answers count in their first repeat.
    """
    num = num_copied = 0
    for record in records:
        prompt = prompts.get(record.prompt)
        if record.repeat == 0 and record.tokens and prompt is not None:
            runs = [*_runs(record.tokens)]
            shared = set(runs).intersection(_runs(prompt.ids))
            starts = [start for start, run in enumerate(runs) if run in shared]
            num_copied += len({start + i for start in starts for i in range(COPIED_RUN)})
            num += len(record.tokens)
    return ratio(num_copied, num)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return zip(*(ids[start:] for start in range(COPIED_RUN)), strict=False)


def _answers(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    return [r for r in records if r.kind == "quality" and r.error is None and r.tokens]


def repetition(records: Iterable[SampleRecord]) -> float | None:
    """Return the share of quality answers' tokens that repeat the previous token, pooled."""
    pairs = [pair for r in _answers(records) for pair in itertools.pairwise(r.tokens or ())]
    return ratio(sum(one == other for one, other in pairs), len(pairs))


def distinct_trigrams(records: Iterable[SampleRecord]) -> float | None:
    """Return the different 3-grams of all quality answers / their 3-grams (arXiv 1510.03055)."""
    texts = [r.tokens or () for r in _answers(records)]
    trigrams = [each for t in texts for each in zip(t, t[1:], t[2:], strict=False)]
    return ratio(len(set(trigrams)), len(trigrams))


def answer_tokens(records: Iterable[SampleRecord]) -> float | None:
    """Return the mean number of tokens of a quality answer, EOS included."""
    lengths = [len(r.tokens or ()) for r in _answers(records)]
    return ratio(sum(lengths), len(lengths))


def repeated_trigrams(records: Iterable[SampleRecord]) -> float | None:
    """Return the share of 3-grams that occur earlier in the same answer, pooled over answers."""
    seen = repeated = 0
    for record in records:
        if record.error is None and record.repeat == 0:
            tokens = record.tokens or ()
            trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
            seen += len(trigrams)
            repeated += len(trigrams) - len(set(trigrams))
    return ratio(repeated, seen)


def loops(share: float | None, baseline: float | None) -> bool | None:
    """Return whether a share means loops: above `LOOP_SHARE`, or `LOOP_EXCESS` above ar's share."""
    if share is None:
        return None
    return share > LOOP_SHARE or (baseline is not None and share > baseline + LOOP_EXCESS)


def per_token(
    records: Iterable[SampleRecord], name: Literal["nll", "agreement", "entropy"]
) -> float | None:
    """Return a value under the target, averaged over the tokens of quality answers.

    ``nll`` and ``entropy`` (nats) are at temperature 1 without truncation. ``agreement`` is 1 for a
    lossless decoder in greedy decoding.
    """
    weighted = [
        (value, len(record.tokens or ()))
        for record in _answers(records)
        if (value := getattr(record, name)) is not None
    ]
    return ratio(sum(value * num for value, num in weighted), sum(num for _, num in weighted))


def nll_over(records: Iterable[SampleRecord], baseline: Iterable[SampleRecord]) -> Estimate:
    """Estimate `per_token` nll minus the baseline's in nats, on prompts that both cells answered.

    The interval is a jackknife over conversations. There is none if the differences do not vary.
    """
    reference = {r.prompt: r for r in _answers(baseline)}
    sums: dict[str, list[Sequence[float]]] = {}
    for name, answers in by_cluster(_answers(records)).items():
        for pair in ((answer, reference.get(answer.prompt)) for answer in answers):
            sides = [(r.nll, len(r.tokens or ())) for r in pair if r]
            row = [x for nll, num in sides if nll is not None for x in (nll * num, num)]
            if len(row) == 4:
                sums.setdefault(name, []).append(row)

    def difference(rows: Sequence[Sequence[float]]) -> float:
        nll, num, other_nll, other_num = map(sum, zip(*rows, strict=True))
        return nll / num - other_nll / other_num

    return jackknife(sums, difference)
