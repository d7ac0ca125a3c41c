"""The words of a text, in any script, as the scorers compare them.

Latin text has exactly the words of SQuAD's, ROUGE's and sacrebleu's own tokenisers. Scripts that
write no spaces between words (Chinese, Japanese, Thai, …) have a word per character; in others
(Cyrillic, Greek, Arabic, Korean, …) a word is a run of letters.
"""

from __future__ import annotations

import re
import string
import unicodedata

import regex

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
    """Return what follows the last closing think tag, without thoughts that were not closed."""
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
    return [word for word in map(_bare, words) if word]


def _bare(word: str) -> str:
    if not _FOREIGN.search(word):
        return word
    return unicodedata.normalize("NFC", _PUNCTUATION.sub("", word))


class RougeWords:
    """ROUGE's tokeniser (`rouge_score.tokenizers.DefaultTokenizer` without stems), any script."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text in lower case."""
        return [unicodedata.normalize("NFC", word) for word in _ROUGE_WORD.findall(text.lower())]
