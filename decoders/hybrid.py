"""Combine two drafters in one decoder: e.g. n-grams with a draft layer, heads, or a draft model.

A drafter that copies text costs nothing but often has no draft; a drafter that runs weights always
has drafts. `match` runs the drafters in order and takes the first with at least `least` drafts in a
row. `merge` runs both and verifies their drafts as branches of one tree (as SpecInfer merges its
drafts, arXiv 2305.09781). All drafts are verified by the target's own picks, which gives AR's
tokens for the same seed, or as a block. A step records which drafter's drafts were accepted.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import ChainMap
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal

from decoders.core.decoder import Decoder, Need, Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import Call, DraftCall
from decoders.core.registry import build, named_code, parse_spec, register
from decoders.core.types import MAX_DRAFTS, CallResult

_PART = "eagle, jacobi, lookup, medusa, mtp, shallow, spec, suffix+answers=false or your own"
_ONE_MODEL = "a decoder without a draft model, as `first` has one"


@register("hybrid")
@dataclass(frozen=True, kw_only=True)
class Hybrid(DraftAndVerify):
    """Draft with the drafters of two decoders: the second as a fallback, or both. Lossless.

    Args:
        first: a decoder with its options, `+` in place of `:`, e.g. ``lookup+n=4+k=8``.
        then: another decoder, written likewise.
        how: `match` (the first drafter that has enough drafts) or `merge` (both in one tree).
        least: for `match`: the number of drafts in a row that is enough.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `block` (drafts of
            `then` are drawn and a chain is tested jointly: AR's distribution), for both parts.
    """

    first: str = "lookup+shortest=3"
    then: str = "eagle"
    how: Literal["match", "merge"] = "match"
    least: int = 1
    verify: Literal["coupled", "block"] = "coupled"

    by_default = False
    combines = False

    def __post_init__(self) -> None:
        self.demand(self.least >= 1, "least", "1 or above")
        self.demand_read("how", {"match": ("least",)})
        is_block = self.verify == "block"
        self.demand(self.how == "match" or not is_block, "how", "match with verify=block")
        for option, part in zip(("first", "then"), self.parts, strict=True):
            self.demand(isinstance(part, DraftAndVerify) and part.combines, option, _PART)
            self.demand(not part.remembers, option, "without a memory, as suffix+answers=false")
            branches = is_block and vars(part).get("branches")
            self.demand(not branches, option, "one of chains with verify=block (+branches=false)")
        self.demand(self.first != self.then, "then", f"a decoder other than first={self.first}")
        drafting = ["draft" in part.needs for part in self.parts]
        self.demand(not all(drafting), "then", _ONE_MODEL)
        # dropping drawn drafts because they are too few would change the distribution
        draws = is_block and "verify" in vars(self.parts[0])
        self.demand(not draws, "first", "a decoder that draws no drafts with verify=block")

    @functools.cached_property
    def parts(self) -> tuple[Decoder, ...]:
        """Both decoders, with this decoder's verification where they have that option."""
        parts = []
        for text in (self.first, self.then):
            spec = parse_spec(text.replace("+", ":"))
            part, options = build(spec), {**spec.options, "verify": self.verify}
            verifies = "verify" in vars(part)
            parts.append(build(dataclasses.replace(spec, options=options)) if verifies else part)
        return tuple(parts)

    @classmethod
    def code_in(cls, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the paths of code that the parts name."""
        texts = [options[part].replace("+", ":") for part in ("first", "then") if part in options]
        return tuple(path for text in texts for path in named_code(parse_spec(text)))

    @property
    def needs(self) -> tuple[Need, ...]:
        """The needs of both parts."""
        return tuple(dict.fromkeys(need for part in self.parts for need in part.needs))

    @property
    def sequences(self) -> int:
        """The most sequences of any part."""
        return max(part.sequences for part in self.parts)

    @property
    def adapter_name(self) -> None:
        """None, because only the parts have adapters."""

    def drafter(self, request: Request) -> Drafter:
        """Make the drafters of both parts and combine them."""
        texts = (self.first, self.then)
        names = [text.partition("+")[0] for text in texts]
        drafters = {}
        for name, part in zip(names if len({*names}) == 2 else texts, self.parts, strict=True):
            assert isinstance(part, DraftAndVerify)
            adapter = request.adapters.get(part.adapter_name or "")
            drafters[name] = part.drafter(dataclasses.replace(request, adapter=adapter))
        return FirstMatch(drafters, self.least) if self.how == "match" else Merge(drafters)


class FirstMatch(Drafter):
    """Take the drafts of the first drafter that has at least `min_run` in a row."""

    def __init__(self, drafters: Mapping[str, Drafter], min_run: int = 1) -> None:
        """Run named drafters in this order, with the last one's drafts as the fallback."""
        self._drafters, self._min_run = drafters, min_run
        self._confidences: dict[str, dict[int, float]] = {}  # of the last tree, by drafter
        self.hidden = max(drafter.hidden for drafter in drafters.values())
        outputs = [drafter.outputs for drafter in drafters.values()]
        self.outputs = [f for each in outputs for f in ([each] if isinstance(each, str) else each)]
        self.outputs.append("picks")  # a coupled part may learn from them, also with verify=block
        layers = {tuple(each.hidden_layers) for each in drafters.values() if each.hidden}
        if len(layers) > 1:
            raise ValueError(
                f"{' and '.join(drafters)} read hidden states of different layers; use one"
            )
        self.hidden_layers = next(iter(layers), ())
        self.branches |= any(drafter.branches for drafter in drafters.values())

    def draft(self, text: Text, most: int) -> Generator[Call | DraftCall, CallResult, DraftTree]:
        """Run drafters until one has enough drafts."""
        for name, drafter in self._drafters.items():
            tree = text.tree((yield from drafter.draft(text, most)), drafter)
            tree.sources, self._confidences = [name] * len(tree), {name: {**tree.confidences}}
            if tree.depth >= self._min_run:
                break
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Pass the verdict to all drafters, each with only the confidences that it gave."""
        for name, drafter in self._drafters.items():
            tree = copy.copy(verdict.tree)
            tree.confidences = self._confidences.get(name, {})
            drafter.observe(text, dataclasses.replace(verdict, tree=tree))


class Merge(FirstMatch):
    """Merge the drafts of several drafters into one tree. A shared row is the first drafter's."""

    branches = True

    def draft(self, text: Text, most: int) -> Generator[Call | DraftCall, CallResult, DraftTree]:
        """Run all drafters, dropping drafts for which the cache has no room."""
        merged, sources, self._confidences = DraftTree(text.last), [""], {}
        for name, drafter in self._drafters.items():
            tree, rows = text.tree((yield from drafter.draft(text, most)), drafter), [0]
            for row in range(1, min(len(tree), MAX_DRAFTS + 2 - len(merged))):
                rows.append(merged.draft(tree.tokens[row], rows[tree.parents[row]]))
                sources += [name] * (len(merged) - len(sources))
            self._confidences[name] = {
                rows[row]: sure for row, sure in tree.confidences.items() if row < len(rows)
            }
        merged.sources, merged.confidences = sources, dict(ChainMap(*self._confidences.values()))
        return merged
