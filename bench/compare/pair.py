"""Pair two runs: check that they are comparable, list differences, pair answers to a prompt.

Answers are paired by (pass, decoder with label, prompt hash, repeat). Counters are sums over the
answers that both sides finished, so that no side gains by failing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from bench.compare.gate import GATED
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.records.run_folder import law_name
from bench.stats import counters
from bench.stats.answers import identical_to_ar
from bench.stats.metric import CellData, compute
from bench.stats.quality import Gold, family_quality, gold_answers, overall_quality, scored
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL, family_order
from bench.text import flat, shown_value

_WORK = (
    *("temperature", "top_p", "top_k", "law", "max_new_tokens", "fixed_length", "reuse_prefix"),
)
"""Settings that decide the answers and their timed part (the seed too, when sampling)."""
_NOT_SETTINGS = ("decoders", "primary", "run_name", "adapters", "session")
_HASH, _SHORT = ".weights_sha256", re.compile(r"(\w{12})\w+$")
"""Name of a hash of weights, and the digits of the hash, of which the first are shown."""
QUALITY = "quality"
Key = tuple[str, str, str, int]
Values = dict[str, float | None]


@dataclass(frozen=True)
class RunPair:
    """Relate the two sides of a comparison."""

    base: RunSnapshot
    head: RunSnapshot

    @property
    def sides(self) -> dict[str, RunSnapshot]:
        """Return the two sides by name."""
        return {"base": self.base, "head": self.head}

    @property
    def same_machine(self) -> bool:
        """Return whether `bench ab` measured both sides, or both keys are known and equal."""
        key = self.base.env.comparability_key
        return self.interleaved or (key is not None and key == self.head.env.comparability_key)

    @property
    def interleaved(self) -> bool:
        """Return whether `bench ab` measured both sides interleaved."""
        return self.base.status.ab is not None and self.base.status.ab == self.head.status.ab

    @property
    def same_benchmark(self) -> bool:
        """Return whether `bench ab` measured decoders of another repository with one benchmark."""
        base, head = self.base.env, self.head.env
        elsewhere = base.repository is not None and head.repository is not None
        return self.interleaved and elsewhere and base.git == head.git

    def exact(self, cell: str) -> bool:
        """Return whether equal work of a cell gives equal numbers (same machine and rounding)."""
        same_tile = self.base.config.get("tile") == self.head.config.get("tile")
        return self.same_machine and same_tile and self.rounded(cell) is None

    def rounded(self, cell: str) -> str | None:
        """Return the dtype of a side where rounding may change a cell's tokens, if any."""
        sides = self.sides.values()
        return next((side.dtype for side in sides if not side.is_exact(cell)), None)

    @property
    def control(self) -> str:
        """Return the cell that shows how fast a side's machine was: ar, else base's baseline."""
        return BASELINE if BASELINE in self.base.cells else self.base.plan.baseline

    @cached_property
    def unlike(self) -> list[str]:
        """List why the runs are not comparable."""
        base, head = ({**s.config, "law": law_name(s.config)} for s in self.sides.values())
        lines = [
            f"{key} is {shown_value(base[key])} in base and {shown_value(head[key])} in head"
            for key in (*_WORK, *(["seed"] if base.get("temperature") else []))
            if key in base and key in head and base[key] != head[key]
        ]
        facts = [side.env.models.target or {} for side in self.sides.values()]
        hashes = [target.get("weights_sha256") for target in facts]
        # packed weights (--quantize) make another model with the same hash of checkpoint files
        widths = [target.get("quantized") or "not packed" for target in facts]
        names = base.get("model"), head.get("model")
        differ = "the target models differ"
        if all(facts) and widths[0] != widths[1]:
            lines.append(f"{differ}: weights are {widths[0]} in base and {widths[1]} in head")
        elif all(hashes) and hashes[0] != hashes[1]:
            lines.append(differ)
        elif not all(hashes) and names[0] != names[1]:
            lines.append(f"{differ}: name is {names[0]} in base and {names[1]} in head")
        return lines

    @property
    def other_template(self) -> str:
        """Describe the known differences of the sides' chat templates."""
        base, head = (
            (side.env.models.target or {}).get("template") or {} for side in self.sides.values()
        )
        names = {"date": "date (--date)", "arguments": "--template-args", "sha256": "text"}
        return "; ".join(
            f"the chat template's {name} is {base[key]} in base and {head[key]} in head"
            for key, name in names.items()
            if key in base and key in head and base[key] != head[key]
        )

    def changes(self) -> list[str]:
        """List further differences of comparable runs, which are reported but not judged."""
        facts = []
        for side in self.sides.values():
            models = flat(asdict(side.env.models))
            facts.append(
                [
                    {"comparability key": side.env.comparability_key, "benchmark": side.benchmark},
                    {key: value for key, value in side.config.items() if key not in _NOT_SETTINGS},
                    {key: _SHORT.sub(r"\1", value) for key, value in models if key.endswith(_HASH)},
                    {f"package {name}": version for name, version in side.env.packages.items()},
                ]
            )
        return [line for old, new in zip(*facts, strict=True) for line in _changes(old, new)]

    def option_changes(self, cell: str) -> list[str]:
        """List the changed options of one decoder, as ``k: 4 -> 5``."""
        old, new = (side.cells.get(cell, {}) for side in self.sides.values())
        return list(_changes(old, new, missing="unset"))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], missing: Any = None) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        before, now = (shown_value(side.get(key, missing)) for side in (old, new))
        if before != now:
            yield f"{key}: {before} -> {now}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedAnswers:
    """Hold one decoder's answers on both sides, in pairs.

    Head's answers carry base's prompt names. In the passes that both sides planned, `num_base`
    counts base's answers, paired or not, and `shared` has two numbers for each pass: base's
    distinct prompts that head also has, and all distinct prompts of base.
    """

    base: tuple[SampleRecord, ...] = ()
    head: tuple[SampleRecord, ...] = ()
    num_base: int = 0
    shared: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def finished(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """Return the pairs without an error on either side."""
        pairs = zip(self.base, self.head, strict=True)
        return [(old, new) for old, new in pairs if not (old.error or new.error)]

    @property
    def changed(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """Return the finished pairs whose token ids differ."""
        return [(old, new) for old, new in self.finished if old.tokens != new.tokens]


def join(pair: RunPair, cell: str) -> PairedAnswers:
    """Pair one decoder's answers to the same prompt under the same repeat."""
    base, head = _answers(pair.base, cell), _answers(pair.head, cell)
    pairs = [(old, head[key]) for key, old in base.items() if key in head]
    passes = pair.base.passes & pair.head.passes
    prompts = {
        name: [{prompt for kind, _, prompt, _ in keys if kind == name} for keys in (base, head)]
        for name in sorted(passes)
    }
    return PairedAnswers(
        base=tuple(old for old, _ in pairs),
        head=tuple(
            replace(new, conversation=old.conversation, turn=old.turn, family=old.family)
            for old, new in pairs
        ),
        num_base=sum(old.kind in passes for old in base.values()),
        shared={name: (len(old & new), len(old)) for name, (old, new) in prompts.items() if old},
    )


def _answers(side: RunSnapshot, cell: str) -> dict[Key, SampleRecord]:
    records = [record for record in side.records if record.decoder == cell]
    return {(r.kind, r.decoder, r.prompt_hash, r.repeat): r for r in records}


def counted(
    joined: PairedAnswers, baseline: PairedAnswers, pair: RunPair
) -> dict[str, tuple[float | None, float | None]]:
    """Return every hard measure of base and head.

    `baseline` has ar's paired answers. `changed_answers` is omitted if the baseline's answers are
    not promised or near-ties may swap.
    """
    cell, gold = joined.base[0].decoder, gold_answers(pair.base.plan)
    both: list[Values] = []
    for side in (0, 1):
        records, ar = ([each[side] for each in answers.finished] for answers in (joined, baseline))
        data = CellData(decoder=cell, family=ALL, records=records, baseline=ar)
        values = _counters(data) | _quality(records, gold)
        if cell != BASELINE and cell in pair.base.same_as_ar:
            values["identical_to_ar"] = identical_to_ar(records, ar)
        both.append(values)
    for values, all_ in zip(both, (joined.base, joined.head), strict=True):
        values["errors"] = counters.ratio(sum(r.error is not None for r in all_), len(all_))
    base, head = both
    if cell in pair.base.same_as_ar and pair.exact(cell):
        timed = [(old, new) for old, new in joined.finished if old.kind == "timing"]
        changed = sum(old.tokens != new.tokens for old, new in timed)
        base["changed_answers"], head["changed_answers"] = 0.0, counters.ratio(changed, len(timed))
    if (wrong := pair.head.num_wrong(cell)) is not None:
        base["wrong_answers"] = float(pair.base.num_wrong(cell) or 0)
        head["wrong_answers"] = float(wrong)
    return {name: (base.get(name), head.get(name)) for name in {**base, **head}}


def answer_effects(joined: PairedAnswers) -> dict[str, float]:
    """Return the effect of a single answer on each measure of quality."""
    answers = scored([old for old, _ in joined.finished])
    families = counters.group_by(answers, lambda record: record.family)
    steps = {f"{QUALITY}.{family}": 1 / len(records) for family, records in families.items()}
    return {**steps, QUALITY: max(steps.values()) / len(steps)} if steps else {}


def _counters(data: CellData) -> Values:
    """Return gated metrics and sums over timed answers, if there are any."""
    if not data.timed:
        return {}
    tally = data.tally
    draft_calls = [sum(r.steps.draft_calls) for r in data.timed if r.steps is not None]
    return {
        **{n: v for n, v in compute(data, GATED).items() if isinstance(v, int | float)},
        "calls": tally.target_calls,
        "rows": tally.later_rows,
        "draft_calls": sum(draft_calls),
        "emitted": tally.emitted,
        "accepted": tally.accepted,
    }


def _quality(records: Sequence[SampleRecord], gold: Gold) -> Values:
    families = counters.group_by(scored(records), lambda record: record.family)
    by_family = {f: family_quality(f, families[f], gold) for f in family_order(families)}
    values: Values = {f"{QUALITY}.{family}": q.estimate.value for family, q in by_family.items()}
    if by_family:
        values[QUALITY] = overall_quality(list(by_family.values())).estimate.value
    return values
