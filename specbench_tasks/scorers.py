"""Score one answer objectively from 0 to 1, and a corpus by BLEU, against references.

Words are compared in any script. Latin text has exactly the words of SQuAD's, ROUGE's and
sacrebleu's own tokenisers. Scripts that write no spaces between words (Chinese, Japanese, Thai, …)
have a word per character; in others (Cyrillic, Greek, Arabic, Korean, …) a word is a run of
letters.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import regex

from specbench_tasks import maths
from specbench_tasks.task import SCORED_SETS, Constraint, GoldAnswer

PRIMARY: dict[str, str] = {
    "mt_bench": "constraints_met",
    "translation": "bleu",
    "summarization": "rouge_l",
    "qa": "contains_answer",
    **dict.fromkeys(("math_reasoning", *SCORED_SETS), "exact_number"),
    "rag": "contains_answer",
    "copy": "right_list",
    "replace": "right_list",
    "shuffle": "right_list",
}
"""Metric that is reported as a family's quality."""
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    r"\p{Tibetan}\p{Javanese}\p{Balinese}\u3001-\u303f\u30a0-\u30ff\uff01-\uff0f\uff1a-\uff20"
    r"\uff3b-\uff40\uff5b-\uff9f"
)
"""Characters of scripts without spaces, and their punctuation."""
_LETTER = rf"[\p{{L}}--\p{{Latin}}--\p{{Common}}--\p{{Inherited}}--[{_UNSPACED}]]"
"""A letter of a script with spaces that is not Latin."""
_CHARACTER = regex.compile(rf"(?=[{_UNSPACED}])\X", regex.V1)
_FOREIGN = regex.compile(rf"{_LETTER}|[{_UNSPACED}]", regex.V1)
_PUNCTUATION = regex.compile(r"[\p{P}\p{S}]")
_ROUGE_WORD = regex.compile(
    rf"[a-z0-9]+ | (?=[{_UNSPACED}])(?=\w)\X | {_LETTER}(?:{_LETTER}|[\p{{M}}\u200c\u200d])*"
    r"| [\p{Nd}--[0-9]]+",
    regex.V1 | regex.VERBOSE,
)
_ARTICLES = re.compile(r"\b(?:an?|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]", re.IGNORECASE)
_OPENING = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]", re.IGNORECASE)


def extract_answer(output: str) -> str:
    """Return the text after the last closing think tag, without thoughts that were not closed."""
    answer = _CLOSED.split(output)[-1]
    return _OPENING.split(answer)[0].strip()


def spaced(text: str) -> str:
    """Return text with spaces around each character of a script without spaces."""
    return str(_CHARACTER.sub(r" \g<0> ", text))


def normalized_words(text: str) -> list[str]:
    """Return the words of `text` as SQuAD v1.1's evaluation compares them.

    Text is lower-cased, ASCII punctuation deleted ("U.S." becomes "us"), then English articles.
    Words of other scripts lose their own punctuation, too.
    """
    words = _ARTICLES.sub(" ", spaced(text.lower().translate(_NO_PUNCTUATION))).split()
    for place, word in enumerate(words):
        if _FOREIGN.search(word):
            words[place] = unicodedata.normalize("NFC", _PUNCTUATION.sub("", word))
    return [word for word in words if word]


class RougeWords:
    """Tokenise as ROUGE (`rouge_score.tokenizers.DefaultTokenizer` without stems), any script."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text in lower case."""
        return [unicodedata.normalize("NFC", word) for word in _ROUGE_WORD.findall(text.lower())]


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
    """Return whether an answer meets one demand, ignoring case and matching whole words."""
    text, expected = text.strip(), str(constraint.value).lower()
    match constraint.kind:
        case "contains":
            return contains_words(text, expected)
        case "starts_with":
            return text.lower().startswith(expected)
        case "ends_with":
            return text.rstrip(string.punctuation + " ").lower().endswith(expected)
        case "num_sentences":
            return len(re.findall(r"[^.!?]*\w[^.!?]*[.!?]+", text)) == int(expected)


def score(family: str, output: str, reference: GoldAnswer) -> dict[str, float]:
    """Return the family's primary metric (see `PRIMARY`) and its other metrics for one answer.

    The reference must have what the family's scorer needs (`specbench_tasks.registry.scorable`).
    """
    return _SCORERS[family](extract_answer(output), reference)


def unreadable(family: str, reference: GoldAnswer) -> str | None:
    """Return a gold answer if no answer can ever be right, else None."""
    if family not in PRIMARY or not reference.answers:
        return None
    useless = [gold for gold in reference.answers if not _can_be_met(family, gold)]
    return useless[0] if len(useless) == len(reference.answers) else None


def _can_be_met(family: str, gold: str) -> bool:
    match family:
        case "math_reasoning" | "gsm8k" | "math500":
            return not maths.unreadable(gold)
        case "qa" | "rag":
            return bool(normalized_words(gold))
        case "summarization":
            return bool(RougeWords().tokenize(gold))
    return bool(gold.strip())


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


def split_items(text: str) -> list[str]:
    """Return an answer's comma-separated items, without single letters of other text."""
    return [part.strip() for part in text.strip().removesuffix(".").split(",")]


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


_SCORERS: dict[str, Callable[[str, GoldAnswer], dict[str, float]]] = {
    "mt_bench": _constraints,
    "translation": _translation,
    "summarization": _summary,
    "qa": _answered,
    **dict.fromkeys(("math_reasoning", *SCORED_SETS), _math),
    "rag": _answered,
    "copy": _list,
    "replace": _list,
    "shuffle": _reordered,
}
