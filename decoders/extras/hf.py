"""Run the loops of transformers' own `generate()` (Wolf et al. 2020, arXiv 1910.03771).

They let one run compare our decoders with their usual alternatives (`early-exit` is LayerSkip,
arXiv 2404.16710). transformers runs its own module with its own cache, loop, warping and sampling.
A step is a turn of its loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from decoders.core.decoder import Answer, Need, SelfDriven
from decoders.core.registry import register

if TYPE_CHECKING:
    from decoders.core.model import Model
    from decoders.extras.library.loops import Loop

_DRAFTED = {"assisted": 4, "lookup": 5, "early-exit": 4}


@register("hf")
@dataclass(frozen=True, kw_only=True)
class Transformers(SelfDriven):
    """Answer by transformers' own generate() and cache. Lossless except for custom loops.

    Args:
        kind: the loop: one token per call, a draft model, prompt lookup, or the target's own first
            layers as a draft.
        k: tokens drafted per step; 0: 4, or 5 for lookup (the defaults of our `spec` and
            `lookup`).
        n: maximum number of tokens that lookup matches; 0: 3, as in our `lookup`.
        exit_layer: number of first layers that draft; 0: the exit layer in the model's config.
        schedule: how transformers changes k from step to step (of one answer).
        confidence: a draft below this probability ends its step's drafts; 0: off.
        custom: a folder or Python file whose `custom_generate` loop runs; its code is executed.
        function: the loop's name in that file.
    """

    kind: Literal["generate", "assisted", "lookup", "early-exit"] = "generate"
    k: int = 0
    n: int = 0
    exit_layer: int = 0
    schedule: Literal["constant", "heuristic", "heuristic_transient"] = "constant"
    confidence: float = 0.0
    custom: str = ""
    function: str = "generate"

    by_default = False

    def __post_init__(self) -> None:
        drafting = ("k", "schedule", "confidence")
        reads = {
            "generate": ("custom", "function"),
            "assisted": drafting,
            "lookup": ("k", "n"),
            "early-exit": (*drafting, "exit_layer"),
        }
        self.demand_read("kind", reads)
        fits = bool(self.custom) or self.function == type(self).function
        self.demand(fits, "function", "left out without custom=FILE.py")
        for option in ("k", "n", "exit_layer"):
            self.demand(getattr(self, option) >= 0, option, "0 (default) or above")
        self.demand(0 <= self.confidence <= 1, "confidence", "from 0 (off) to 1")
        object.__setattr__(self, "k", self.k or _DRAFTED.get(self.kind, 0))
        object.__setattr__(self, "n", self.n or (3 if self.kind == "lookup" else 0))

    @property
    def needs(self) -> tuple[Need, ...]:
        """A draft model for assisted generation."""
        return ("draft",) if self.kind == "assisted" else ()

    @property
    def lossless(self) -> bool:
        """False for a custom loop, as nothing is known about its answers."""
        return not self.custom

    @property
    def drafts(self) -> bool:
        """False for the plain loop, and for a custom loop, which may not report its drafts."""
        return self.kind != "generate"

    @property
    def batches(self) -> bool:
        """True only for the plain loop: transformers drafts for one sequence at a time."""
        return self.kind == "generate" and not self.custom

    @property
    def alike_in_batches(self) -> bool:
        """False for batches, whose sequences draw from one random stream."""
        return not self.batches

    @classmethod
    def code_in(cls, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the path of a custom loop."""
        return (options["custom"],) if options.get("custom") else ()

    def check_models(self, target: Model, draft: Model | None) -> None:
        """Load modules before timing starts, or raise `ValueError` for an unusable exit or loop."""
        for model in (target, draft):
            assert model is None or model.library_module is not None
        if self.kind == "assisted":
            assert draft is not None
            configs = [m.library_module.config.get_text_config() for m in (target, draft)]
            sizes = [int(config.vocab_size) for config in configs]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"{self.name}:kind=assisted needs a draft with as many rows for tokens as the "
                    f"target ({sizes[0]}), not {sizes[1]}: transformers' own loop compares these "
                    "numbers, even if the tokenizer is the same; use spec"
                )
        if self.custom:
            self._loop()
        if self.kind == "early-exit":
            from decoders.extras.library.loops import stops_early

            module = target.library_module
            self._exit(module)
            if not stops_early(module):
                raise ValueError(
                    f"{self.name}:kind=early-exit cannot run on {type(module).__name__}: in "
                    "transformers its body always runs all its layers"
                )

    def answer(self, answers: Sequence[Answer]) -> None:
        """Run one `generate()` for all answers."""
        from decoders.extras.library.loops import run_generate  # transformers loads slowly

        target, options = answers[0].request.target.model.library_module, dict[str, int]()
        assistant = {
            "num_assistant_tokens": self.k,
            "num_assistant_tokens_schedule": self.schedule,
            "assistant_confidence_threshold": self.confidence,
        }
        if self.kind == "generate":
            run_generate(answers, options, custom=self._loop() if self.custom else None)
        elif self.kind == "lookup":
            options = {"prompt_lookup_num_tokens": self.k, "max_matching_ngram_size": self.n}
            run_generate(answers, options, verifies=True)
        else:
            if self.kind == "early-exit":
                options = {"assistant_early_exit": self._exit(target)}
            run_generate(answers, options, assistant=assistant, verifies=True)

    def _loop(self) -> Loop:
        from decoders.extras.library.loops import load_custom

        return load_custom(self.custom, self.function)

    def _exit(self, module: Any) -> int:
        config = module.config.get_text_config()
        last = config.num_hidden_layers - 1
        layer = self.exit_layer or getattr(config, "exit_layer", 0)
        if not layer and last:
            raise ValueError(
                f"{self.name}:kind=early-exit needs a model with a trained exit layer, but this "
                "model's config.json names none (exit_layer); if it has one, give its number: "
                f"exit_layer=1 to {last}"
            )
        if layer > last or not last:
            raise ValueError(
                f"{self.name}:exit_layer={layer}: fewer layers must draft than the model has, and "
                f"it has {last + 1}"
            )
        return int(layer)
