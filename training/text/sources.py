"""Define sources of training text: the zoo's grammars, a file, a dataset, or the teacher.

`build_source` builds a source from a recipe's [data] table:

==========  ====================================================================================
zoo         counts (rows per step and family), seed
text        path (.txt, or rows: .jsonl, .json, .csv, .tsv, .parquet)
dataset     path (hub id, folder or file), config, split, limit
on-policy   prompts, num_completions, max_new_tokens, temperatures, top_p, batch_size
completions path (of files that on-policy sampling wrote; may hold * and ?)
==========  ====================================================================================

All kinds but zoo also take max_tokens (of a row; by default the model's context), rows_per_step and
seed. `prompts` is a .txt file (one prompt per line), a file of rows, or a table of one of the first
three kinds; without it completions start from the BOS token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specbench_tasks.generators import generate
from specbench_tasks.task import FAMILIES
from training.text.completions import CompletionPlan, Teacher, sampled_rows, stored_rows
from training.text.data import Encoder, PoolSource, Row, prompt_hash
from training.text.documents import cut_rows, first_prompt, read_documents
from training.text.tokenizer import SPECIALS

_HELD_OUT_SEED = 31_337  # different rows from evaluation, measuring and the test set
_NUMBER = (int, float)
_TYPES = {int: "a whole number", float: "a number", str: "a text", dict: "a table"}
_POOL = {"max_tokens": int, "rows_per_step": int, "seed": int}
_PROMPTS: dict[str, dict[str, Any]] = {
    "zoo": {"counts": dict, "seed": int},
    "text": {"path": str},
    "dataset": {"path": str, "config": str, "split": str, "limit": int},
}
_PLAN = {
    "num_completions": int,
    "max_new_tokens": int,
    "temperatures": (*_NUMBER, list),
    "top_p": _NUMBER,
    "batch_size": int,
}
_DATA: dict[str, dict[str, Any]] = {
    "zoo": _PROMPTS["zoo"],
    "text": {**_PROMPTS["text"], **_POOL},
    "dataset": {**_PROMPTS["dataset"], **_POOL},
    "on-policy": {"prompts": (str, dict), **_PLAN, **_POOL},
    "completions": {"path": str, **_POOL},
}
_REQUIRED = {"zoo": "counts", "text": "path", "dataset": "path", "completions": "path"}
_EXPLAINED = {"counts": ", rows per step of each family, such as counts = {qa = 2, rag = 2}"}


class ZooSource:
    """Draw fresh conversations of the zoo's grammars at every step, with a held-out test split."""

    kind = "zoo"

    def __init__(self, encoder: Encoder, counts: Mapping[str, int], seed: int) -> None:
        """Set the `counts` of rows per step and family (bad counts raise `ValueError`)."""
        if unknown := sorted(set(counts) - set(FAMILIES)):
            raise ValueError(f"unknown family {unknown[0]!r} in counts; use {', '.join(FAMILIES)}")
        self._encoder, self._seed = encoder, seed
        wrong = [each for each in counts.values() if not isinstance(each, int) or each < 0]
        if wrong or not any(counts.values()):
            raise ValueError(f"counts are {dict(counts)}; give whole numbers of rows, not all 0")
        self._counts = {family: count for family, count in counts.items() if count}

    def rows(self, step: int) -> list[Row]:
        """Return `counts` fresh rows of each family."""
        return self._encoder.rows(self._counts, self._seed, step)

    def held_out(self, num: int) -> list[Row]:
        """Return `num` rows of the test split, taking the families in turn."""
        streams = [generate(family, "test", _HELD_OUT_SEED) for family in self._counts]
        turns = itertools.islice(itertools.cycle(streams), num)
        return [self._encoder.row(next(stream)) for stream in turns]

    @property
    def digest(self) -> str:
        """A hash of the first step's rows."""
        ids = str([row.ids for row in self.rows(0)])
        return hashlib.sha256(ids.encode()).hexdigest()[:16]


Source = ZooSource | PoolSource
"""A source of rows that depend only on (seed, step), with its kind and a digest of the content."""


def build_source(
    section: Mapping[str, Any],
    *,
    tokenizer: Any,
    max_length: int,
    folder: Path,
    teacher: Teacher | None = None,
    tempered: bool = False,
) -> Source:
    """Return the source that a recipe's [data] table describes by `kind` and that kind's options.

    Args:
        section: the table; a wrong kind, option or value raises `ValueError`.
        tokenizer: the model's.
        max_length: number of tokens of the longest row that can be trained.
        folder: folder of sampled completions, which later runs read.
        teacher: model to sample from; None: kind ``on-policy`` is refused.
        tempered: let rows of completions that are sampled have their temperature.
    """
    kind, options = _checked(section, _DATA, "[data]")
    if kind == "zoo":
        return _zoo(options, tokenizer)
    max_tokens = options.pop("max_tokens", max_length)
    if not 2 <= max_tokens <= max_length:
        raise ValueError(
            f"data.max_tokens is {max_tokens}; rows of 2 to {max_length} tokens fit the model (its "
            f"context and, of slots, its sliding window): --set data.max_tokens={max_length}"
        )
    seed, path = options.pop("seed", 0), options.get("path", "")
    common: dict[str, Any] = {"rows_per_step": options.pop("rows_per_step", 16), "seed": seed}
    if kind == "completions":
        rows = stored_rows(path, len(tokenizer), max_tokens)
        # keep completions of one prompt on the same side of the split
        return PoolSource(rows, kind=kind, name=path, key=prompt_hash, **common)
    if kind in ("text", "dataset"):
        use = partial(cut_rows, tokenizer=tokenizer, max_tokens=max_tokens)
        cuts = read_documents(kind, use, **options)
        return PoolSource(itertools.chain.from_iterable(cuts), kind=kind, name=path, **common)
    if teacher is None:
        raise ValueError("kind 'on-policy' samples from a teacher, which is missing here")
    settings = {name: each for name, each in options.items() if name in _PLAN}
    if (temperatures := options.get("temperatures")) is not None:
        listed = [temperatures] if isinstance(temperatures, _NUMBER) else temperatures
        if not all(isinstance(temperature, _NUMBER) for temperature in listed):
            raise ValueError(f"temperatures are {temperatures}; give a number or a list of numbers")
        settings["temperatures"] = tuple(map(float, listed))
    plan = CompletionPlan(**settings, seed=seed)
    if (prompts := options.get("prompts")) is not None:
        prompts = _prompts(prompts, tokenizer, plan.num_completions)
    extra = {"max_tokens": max_tokens, "prompts": prompts, "tempered": tempered}
    rows = sampled_rows(teacher, tokenizer, plan, folder, **extra)
    return PoolSource(rows, kind=kind, name="on-policy sampling", **common)


def _checked(
    section: Mapping[str, Any], allowed: Mapping[str, Mapping[str, Any]], where: str
) -> tuple[str, dict[str, Any]]:
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in allowed:
        raise ValueError(f"kind is {kind!r} in {where}; use one of {', '.join(allowed)}")
    options = {name: value for name, value in section.items() if name != "kind"}
    types = allowed[kind]
    for name, value in options.items():
        if name not in types:
            raise ValueError(
                f"unknown option {name!r} of {kind} in {where}; use {', '.join(types)}"
            )
        if not isinstance(value, types[name]) or isinstance(value, bool):
            kinds = types[name] if isinstance(types[name], tuple) else (types[name],)
            named = " or ".join(_TYPES.get(each, "a list") for each in kinds)
            raise ValueError(f"{name} is {value!r} in {where}; it must be {named}")
    if kind in _REQUIRED and (needs := _REQUIRED[kind]) not in options:
        raise ValueError(f"kind {kind!r} in {where} needs {needs}{_EXPLAINED.get(needs, '')}")
    return kind, options


def _zoo(options: Mapping[str, Any], tokenizer: Any) -> ZooSource:
    if missing := set(SPECIALS) - set(tokenizer.get_vocab()):
        raise ValueError(
            f"kind 'zoo' is for models with the zoo's tokenizer; this one has no {min(missing)}: "
            "use kind text, dataset or on-policy"
        )
    return ZooSource(Encoder(tokenizer), options["counts"], options.get("seed", 0))


def _prompts(spec: str | Mapping[str, Any], tokenizer: Any, num: int) -> list[list[int]]:
    """Return the prompts that a recipe names (of kind zoo, at least `num`)."""
    table = {"kind": "text", "path": spec} if isinstance(spec, str) else spec
    kind, options = _checked(table, _PROMPTS, "prompts of [data]")
    if kind == "zoo":
        source, rows = _zoo(options, tokenizer), list[Row]()
        for step in itertools.count():
            if len(rows) >= num:
                break
            rows += source.rows(step)
        return [row.ids[: row.learn.index(True)] for row in rows]
    use = partial(first_prompt, tokenizer=tokenizer)
    return list(read_documents(kind, use, prompts_only=True, **options))
