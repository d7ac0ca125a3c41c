"""Objective scores from 0 to 1 for one answer, or for a family's answers, against references."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from specbench_tasks import maths
from specbench_tasks.generators.lists import split_items
from specbench_tasks.task import Constraint, GoldAnswer
from specbench_tasks.words import RougeWords, extract_answer, normalized_words, spaced

PRIMARY: dict[str, str] = {
    "mt_bench": "constraints_met",
    "translation": "bleu",
    "summarization": "rouge_l",
    "qa": "contains_answer",
    "math_reasoning": "exact_number",
    "rag": "contains_answer",
    "copy": "right_list",
    "replace": "right_list",
    "shuffle": "right_list",
}
"""The metric that is reported as a family's quality."""


def contains_words(text: str, answer: str) -> bool:
    """Return whether the normalised `answer` occurs in the normalised `text` as whole words."""
    words, expected = normalized_words(text), normalized_words(answer)
    spans = (words[i : i + len(expected)] for i in range(len(words) - len(expected) + 1))
    return bool(expected) and any(span == expected for span in spans)


def token_f1(text: str, answer: str) -> float:
    """Return the harmonic mean of normalised words' precision and recall (SQuAD's F1)."""
    words, expected = normalized_words(text), normalized_words(answer)
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected)) if shared else 0.0


def constraint_met(text: str, constraint: Constraint) -> bool:
    """Return whether an answer meets one demand, ignoring case and matching whole words.

    Raises:
        ValueError: unknown kind.
    """
    text, value, kind = text.strip(), constraint.value, constraint.kind
    expected = str(value).lower()
    match kind:
        case "contains":
            return contains_words(text, expected)
        case "excludes":
            return not contains_words(text, expected)
        case "starts_with":
            return text.lower().startswith(expected)
        case "ends_with":
            return text.rstrip(string.punctuation + " ").lower().endswith(expected)
        case "num_sentences":
            return len(re.findall(r"[^.!?]*\w[^.!?]*[.!?]+", text)) == int(value)
        case "max_words":
            return len(text.split()) <= int(value)
    fields = "contains, excludes, starts_with, ends_with, num_sentences, max_words"
    raise ValueError(f"unknown constraint kind {kind!r}; use one of {fields}")


def score(family: str, output: str, reference: GoldAnswer) -> dict[str, float]:
    """Return the family's primary metric (see `PRIMARY`) and its other metrics for one answer.

    Raises:
        ValueError: unknown family, or a reference that lacks what the family's scorer needs.
    """
    _check_family(family)
    field = "constraints" if family == "mt_bench" else "answers"
    if not getattr(reference, field):
        raise ValueError(f"a {family} reference needs {field}; got {reference!r}")
    return _SCORERS[family](extract_answer(output), reference)


def unreadable(family: str, reference: GoldAnswer) -> str | None:
    """Return a gold answer if no answer could ever be right, or None if one gold answer can be."""
    if family not in PRIMARY or not reference.answers:
        return None
    useless = [gold for gold in reference.answers if not _can_be_met(family, gold)]
    return useless[0] if len(useless) == len(reference.answers) else None


def _can_be_met(family: str, gold: str) -> bool:
    match family:
        case "math_reasoning":
            return not maths.unreadable(gold)
        case "qa" | "rag":
            return bool(normalized_words(gold))
        case "summarization":
            return bool(RougeWords().tokenize(gold))
    return bool(gold.strip())


def corpus_scores(
    family: str, outputs: Sequence[str], references: Sequence[GoldAnswer]
) -> dict[str, float]:
    """Score all answers of a family: corpus BLEU and chrF for translation, else means.

    Raises:
        ValueError: unknown family, no outputs, or unequal lengths.
    """
    _check_family(family)
    if not outputs or len(outputs) != len(references):
        raise ValueError(
            f"got {len(outputs)} outputs and {len(references)} references; give one reference per "
            "output, and at least one"
        )
    if family == "translation":
        return _corpus_translation([extract_answer(text) for text in outputs], references)
    rows = [score(family, *pair) for pair in zip(outputs, references, strict=True)]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def corpus_bleu(pairs: Sequence[tuple[str, tuple[str, ...]]]) -> float:
    """Return BLEU / 100 of a corpus of texts with their gold answers, with cached counts."""
    from sacrebleu.metrics.bleu import BLEU

    sums = list(map(sum, zip(*(_bleu_counts(*pair) for pair in pairs), strict=True)))
    result = BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp")
    return min(1.0, float(result.score) / 100)


@lru_cache(maxsize=4096)
def _bleu_counts(output: str, answers: tuple[str, ...]) -> tuple[int, ...]:
    """Return n-gram counts by length (matching, then all), and the lengths of text and gold."""
    import sacrebleu

    result = sacrebleu.sentence_bleu(spaced(extract_answer(output)), [*map(spaced, answers)])
    return (*result.counts, *result.totals, result.sys_len, result.ref_len)


def _check_family(family: str) -> None:
    if family not in PRIMARY:
        raise ValueError(f"unknown family {family!r}; use one of {', '.join(PRIMARY)}")


def _math(output: str, reference: GoldAnswer) -> dict[str, float]:
    return {"exact_number": float(any(maths.same(output, gold) for gold in reference.answers))}


def _answered(output: str, reference: GoldAnswer) -> dict[str, float]:
    return {
        "contains_answer": float(any(contains_words(output, gold) for gold in reference.answers)),
        "f1": max(token_f1(output, gold) for gold in reference.answers),
    }


def _constraints(output: str, reference: GoldAnswer) -> dict[str, float]:
    met = [constraint_met(output, constraint) for constraint in reference.constraints]
    return {"constraints_met": sum(met) / len(met), "all_met": float(all(met))}


def _summary(output: str, reference: GoldAnswer) -> dict[str, float]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rougeL"], tokenizer=RougeWords())
    rows = [scorer.score(gold, output) for gold in reference.answers]
    return {
        "rouge_l": max(row["rougeL"].fmeasure for row in rows),
        "rouge_1": max(row["rouge1"].fmeasure for row in rows),
    }


def _list(output: str, reference: GoldAnswer) -> dict[str, float]:
    items = split_items(output)
    return {"right_list": float(any(items == split_items(gold) for gold in reference.answers))}


def _reordered(output: str, reference: GoldAnswer) -> dict[str, float]:
    items, gold = split_items(output), split_items(reference.answers[0])
    return {"right_list": float(items != gold and sorted(items) == sorted(gold))}


def _translation(output: str, reference: GoldAnswer) -> dict[str, float]:
    import sacrebleu

    golds = list(reference.answers)
    words = [*map(spaced, golds)]
    return {
        "bleu": min(1.0, sacrebleu.sentence_bleu(spaced(output), words).score / 100),
        "chrf": min(1.0, sacrebleu.sentence_chrf(output, golds).score / 100),
        "exact": float(output in golds),
    }


def _corpus_translation(outputs: list[str], references: Sequence[GoldAnswer]) -> dict[str, float]:
    import sacrebleu

    pairs = [(text, gold.answers) for text, gold in zip(outputs, references, strict=True)]
    depth = max(len(golds) for _, golds in pairs)
    streams = [[golds[i % len(golds)] for _, golds in pairs] for i in range(depth)]
    return {
        "bleu": corpus_bleu(pairs),
        "chrf": min(1.0, sacrebleu.corpus_chrf(outputs, streams).score / 100),
        "exact": sum(text in golds for text, golds in pairs) / len(pairs),
    }


_SCORERS: dict[str, Callable[[str, GoldAnswer], dict[str, float]]] = {
    "mt_bench": _constraints,
    "translation": _translation,
    "summarization": _summary,
    "qa": _answered,
    "math_reasoning": _math,
    "rag": _answered,
    "copy": _list,
    "replace": _list,
    "shuffle": _reordered,
}
