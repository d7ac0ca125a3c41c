"""The one loop of all decoders whose drafts the target verifies: draft, verify, commit, emit.

A turn is one call of the target over the last committed token and the drafts behind it. It decides
how many drafts stand, adds a token of its own, and may carry what the next draft is made from. The
prompt's call is a turn without drafts.

Source: Leviathan et al. 2023 (arXiv 2211.17192); trees of drafts: SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.drafter import Carried, Draft, Drafter, Text, Verdict
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Verification
from decoders.core.model import Session
from decoders.core.types import Call, Emit


class DraftAndVerify(Decoder):
    """A decoder that is a `Drafter` and a rule of verification; a subclass defines `drafter`.

    Attributes:
        combines: whether its drafter can draft beside another's (`decoders/hybrid.py`): it neither
            carries slots in the verifying call nor needs each of its drafts verified.
    """

    combines: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = {"verify": {"strict": "rejection"}}

    def drafter(self, request: Request) -> Drafter:
        """Begin the drafts of one answer."""
        raise NotImplementedError(f"{type(self).__name__} must define drafter(request)")

    @property
    def verification(self) -> Verification:
        """The rule that drafts are verified by: the option ``verify``, else `coupled`."""
        return Verification(rule=vars(self).get("verify", "coupled"))

    @property
    def lossless(self) -> bool:
        """Exact rules keep the target's distribution."""
        return self.verification.exact

    @property
    def coupled(self) -> bool:
        """Coupled verification emits AR's tokens for the same seed."""
        return self.verification.rule == "coupled"

    def steps(self, request: Request) -> Steps:
        """Verify a draft in every turn, the first of which feeds the prompt."""
        drafter, rule = self.drafter(request), self.verification
        target, text = request.target, Text(request)
        draft = Draft(DraftTree(text.last))
        while True:
            result = yield _verifying(request, drafter, rule, draft, text)
            path, token = rule.decide(draft, result, request.uniforms, text.output)
            _forget_fallen(target, draft.tree, path)
            verdict = Verdict(draft, path, token, result, is_prompt=not text.output)
            text.tokens += verdict.tokens
            drafter.observe(text, verdict)
            yield _emit(verdict, drafter.branches)
            # the verifying call adds one token itself: draft at most what the budget still holds
            draft = text.draft((yield from drafter.draft(text, text.left - 1)))
            if draft.first and text.ended:
                yield Emit(tokens=draft.first)


def _forget_fallen(target: Session, tree: DraftTree, path: Sequence[int]) -> None:
    """Drop the rows of a call that do not stand from the cache."""
    if path[-1] == len(path) - 1:
        target.truncate(target.length - len(tree) + len(path))
    else:
        target.keep(path)


def _emit(verdict: Verdict, branches: bool) -> Emit:
    """End a step."""
    draft, tree = verdict.draft, verdict.draft.tree
    return Emit(
        tokens=(*draft.first, *verdict.tokens),
        drafted=tree.num_drafts,
        accepted=verdict.accepted,
        undrafted=len(draft.first),
        acceptance=verdict.result.acceptance,
        rejected=tree.below(verdict.path[-1]),
        depth=tree.depth if branches else None,
        sources=tuple(draft.sources[row] for row in verdict.path[1:]) if draft.sources else (),
    )


def _verifying(
    request: Request, drafter: Drafter, rule: Verification, draft: Draft, text: Text
) -> Call:
    """The call that verifies a draft; the prompt's call feeds the prompt and verifies nothing."""
    target, tree, sampling = request.target, draft.tree, request.sampling
    if not text.output:
        prompt, num_states = request.prompt_ids, max(1, drafter.hidden)
        tokens = prompt
        read: Sequence[int] = range(max(0, len(prompt) - num_states), len(prompt))
    else:
        tokens = tuple(tree.tokens)
        read = range(len(tree)) if draft.read is None else draft.read
    is_tree = drafter.branches and text.output > 0
    carried = drafter.carry(text, draft) or Carried(
        positions=tree.positions(target.length) if is_tree else None,
        mask=tree.mask if is_tree else None,
    )
    by_rule = text.output > 0 or drafter.judges_prompt
    return target.call(
        tokens,
        want=rule.want(sampling, branches=drafter.branches) if by_rule else "picks",
        read=read,
        positions=carried.positions,
        mask=carried.mask,
        slots=carried.slots,
        drafts=() if is_tree else tree.tokens[1:],
        draft_probs=None if is_tree else draft.chain_probs,
        acceptance_rule=rule.acceptance_rule,
        hidden=drafter.hidden > 0,
    )
