"""Run the loop of all decoders whose drafts the target verifies: draft, verify, commit, emit.

A turn is one call of the target over the last committed token and the drafts after it; the
prompt's call is a turn without drafts.
Source: Leviathan et al. 2023 (arXiv 2211.17192); trees of drafts: SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.rules import RULES
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule, Turn
from decoders.core.model import Call
from decoders.core.types import Emit

_DRAFTER_ARGUMENTS = ("slots", "positions", "mask", "hidden")
"""Arguments of the verifying call that a drafter may give; the loop decides all others."""


class DraftAndVerify(Decoder):
    """Combine the `Drafter` of a subclass with a verification rule into a decoder.

    Attributes:
        combines: the drafter can be combined with another (`decoders/hybrid.py`): it carries no
            slots in the verifying call, and works if only some of its drafts are verified.
    """

    combines: ClassVar[bool] = True

    def drafter(self, request: Request) -> Drafter:
        """Make the drafter of one answer."""
        raise NotImplementedError(f"{type(self).__name__} must define drafter(request)")

    @property
    def verification(self) -> Rule:
        """The rule that verifies drafts: the option ``verify`` if there is one, else `coupled`."""
        return RULES[vars(self).get("verify", "coupled")]

    @property
    def lossless(self) -> bool:
        """True if the verification rule is lossless."""
        return self.verification.lossless

    @property
    def coupled(self) -> bool:
        """True if the verification rule is coupled: it emits AR's tokens for the same seed."""
        return self.verification.coupled

    def steps(self, request: Request) -> Steps:
        """Feed the prompt in the first turn, then verify drafts in every turn."""
        drafter, rule = self.drafter(request), self.verification
        target, text = request.target, Text(request)
        tree = DraftTree(text.last)
        for step in itertools.count():
            output = text.output
            result = yield _verifying(request, drafter, rule, tree, text)
            if output or drafter.judges_prompt:
                turn = Turn(tree, result, text.uniforms, output)
                path, token, *compared = rule.decide(turn)
            else:
                path, token, compared = (0,), result.picks[0], []
            if path[-1] == len(path) - 1:  # accepted rows come first in the call
                target.truncate(target.length - len(tree.tokens) + len(path))
            else:
                target.select_rows(path)
            verdict = Verdict(tree, path, token, result, is_prompt=not output)
            text.tokens += (tokens := verdict.tokens)
            if rule.fresh:
                text.uniforms = request.uniforms.at_step(step + 1)
            drafter.observe(text, verdict)
            yield Emit(
                tokens=(*tree.first, *tokens),  # first: those that drafting made final
                drafted=tree.num_drafts,
                accepted=len(path) - 1,
                num_leading=len(tree.first),
                acceptance=compared[0] if compared else result.acceptance,
                rejected=tree.first_branch(path[-1]),
                depth=tree.depth if drafter.branches else None,
                sources=tuple(tree.sources[row] for row in path[1:]) if tree.sources else (),
                confidences=tree.tested(path),
            )
            # the verifying call adds one token itself, so at most left - 1 drafts can be emitted
            tree = text.tree((yield from drafter.draft(text, text.left - 1)), drafter)
            if tree.first and (text.left <= 0 or text.last in request.sampling.stop_ids):
                yield Emit(tokens=tree.first)


def _verifying(request: Request, drafter: Drafter, rule: Rule, tree: DraftTree, text: Text) -> Call:
    """Make the call that verifies a tree (the prompt's call verifies nothing)."""
    prompt, arguments, output = request.prompt_ids, dict[str, Any](), ["picks"]
    is_prompt, more = not text.output, drafter.outputs
    if not is_prompt or drafter.judges_prompt:
        form = rule.output(request.sampling, branches=drafter.branches)
        output = [form] if isinstance(form, str) else [*form]
        arguments["uniforms"] = text.uniforms
    arguments["output"] = [*output, *([more] if isinstance(more, str) else more)]
    arguments |= {"hidden": drafter.hidden > 0, "hidden_layers": drafter.hidden_layers}
    if is_prompt:
        arguments["hidden"] = range(max(0, len(prompt) - drafter.hidden), len(prompt))
    else:
        arguments["read"] = range(len(tree.tokens)) if tree.read is None else tree.read
        if drafter.branches:
            arguments |= {"positions": tree.positions(request.target.length), "mask": tree.mask}
        if not drafter.branches or not {"block", "tree"}.isdisjoint(output):
            is_tree = "tree" in output
            drafts = tree.tokens[1 : tree.num_drafts + 1] if is_tree else tree.chain_drafts
            arguments["drafts"] = drafts
            arguments |= {"draft_probs": tree.draft_probs, "acceptance_rule": rule.acceptance_rule}
    extra = dict(drafter.carry(text, tree))
    if strange := [name for name in extra if name not in _DRAFTER_ARGUMENTS]:
        raise ValueError(
            f"{type(drafter).__name__}.carry returned {strange[0]!r}, which the rule that verifies "
            f"the drafts decides; allowed: {', '.join(_DRAFTER_ARGUMENTS)}"
        )
    return request.target.call(prompt if is_prompt else tree.tokens, **(arguments | extra))
