"""Suffix decoding: draft what usually followed the last tokens, here or in earlier answers.

Source: SuffixDecoding (arXiv 2411.04975), without its trees: the longest match decides, and each
draft is the token that most of its occurrences go on with. A longer match may draft more tokens.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register


@register("my-suffix")
@dataclass(frozen=True, kw_only=True)
class Suffix(DraftAndVerify):
    """Draft what followed the longest match. Lossless, coupled, remembers answers."""

    depth: int = 12
    factor: int = 4
    share: float = 0.3

    remembers = "answers"

    def drafter(self, request: Request) -> Drafter:
        return Matches(self, request.memory)


class Matches(Drafter):
    def __init__(self, options: Suffix, memory: Any) -> None:
        self.options = options
        self.earlier = [[*prompt, *tokens] for prompt, tokens in memory]

    def propose(self, text: Text, most: int) -> list[int]:
        for length in range(min(self.options.depth, len(text.tokens)), 0, -1):
            if after := [*self.followers(text.tokens[-length:], [*self.earlier, text.tokens])]:
                return self.grown(after, min(most, self.options.factor * length))
        return []

    def followers(self, end: list[int], texts: list[list[int]]) -> Iterator[list[int]]:
        for tokens in texts:
            for stop in range(len(end), len(tokens)):
                if tokens[stop - len(end) : stop] == end:
                    yield tokens[stop:]

    def grown(self, after: list[list[int]], limit: int) -> list[int]:
        """Follow the usual tokens as long as enough of the occurrences go this way."""
        drafts, total = list[int](), len(after)
        while len(drafts) < limit and (after := [each for each in after if each]):
            ((token, count),) = Counter(each[0] for each in after).most_common(1)
            if count < self.options.share * total:
                break
            drafts.append(token)
            after = [each[1:] for each in after if each[0] == token]
        return drafts
