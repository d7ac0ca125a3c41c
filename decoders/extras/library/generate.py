"""Run decoders of this project as loops of transformers' ``generate(…, custom_generate=…)``.

    from decoders import transformers_generate
    spec = transformers_generate("spec:k=4", draft="path/of/a/draft")
    ids = model.generate(**inputs, max_new_tokens=64, custom_generate=spec)

`generate` prepares prompts, token budget, stop ids and sampling. The decoder then runs the user's
module with this project's KV cache. A setting that it cannot honour is an error, but `generate`
itself gives no loop its `streamer` or `assistant_model`.

Letters: B sequences, T tokens of the widest prompt or answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoders.core.adapter.gating import cache_argument
from decoders.core.adapter.module import read_adapter
from decoders.core.decoder import Request, SelfDriven, Steps
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.architecture import main_device
from decoders.core.hf.model import HFModel
from decoders.core.products import leave_out_cudnn
from decoders.core.registry import build, parse_spec
from decoders.core.types import CallResult, Emit, Generation, Sampling

_WARPERS = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
}
_output: Any = GenerateDecoderOnlyOutput  # the annotation demands a LongTensor
_CUTS = (MaxLengthCriteria, EosTokenCriteria)
_BEYOND = "prompt_lookup_num_tokens penalty_alpha output_scores output_logits output_attentions"


class TransformersGenerate:
    """Wrap a decoder as a loop for transformers' `custom_generate`.

    The object keeps the models of its last call. Adapters wrap a module's linear layers in place.
    """

    def __init__(
        self,
        decoder: str,
        *,
        draft: Any = None,
        adapters: Mapping[str, str | Path] | None = None,
        seed: int | None = None,
    ) -> None:
        """Make a decoder, whose models are opened in a call.

        Args:
            decoder: a spec as on the command line, such as ``ptp`` or ``spec:k=4``.
            draft: the draft model, if needed: a transformers module, a folder or a hub id.
            adapters: folders of the needed adapters, by the name in the decoder's option.
            seed: seed of the draws. None: every call draws one from torch's global generator, which
                `transformers.set_seed` sets. The n-th of equal prompts in a batch uses seed + n.

        Raises:
            ValueError: an unknown decoder or option, or a missing draft model or adapter.
        """
        adapters = dict(adapters or {})
        self._decoder = build(parse_spec(decoder))
        if isinstance(self._decoder, SelfDriven):
            raise ValueError(f"{decoder} is already a loop of transformers: use it there")
        self._draft, self._adapters, self._seed = draft, adapters, seed
        self._models: Models | None = None
        self._module: Any = None
        name = self._decoder.name
        if "draft" in self._decoder.needs and draft is None:
            raise ValueError(f"decoder {name!r} needs a draft model: pass draft=MODEL-OR-FOLDER")
        for adapter in [p.adapter_name for p in self._decoder.parts if "adapter" in p.needs]:
            if adapter is not None and adapter not in adapters:
                raise ValueError(
                    f"decoder {name!r} needs an adapter named {adapter!r}: "
                    f"pass adapters={{{adapter!r}: FOLDER}}"
                )

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Sequence[Any] = (),
        stopping_criteria: Sequence[Any] = (),
        generation_config: Any = None,
        **inputs: Any,
    ) -> Any:
        """Return ids ``[B, T]`` as `generate` does: prompts with answers, padded on the right.

        Mask and cache are read from `inputs`, because `generate` prepares no argument that only a
        custom loop names. `ValueError` for settings that the decoder cannot honour.
        """
        cache, mask = inputs.get(cache_argument(model)), inputs.get("attention_mask")
        if cache is not None and cache.get_seq_length():
            raise ValueError(f"{self._decoder.name} begins with an empty cache of its own")
        sampling = self._sampling(generation_config, input_ids.shape[1], logits_processor)
        shown = torch.ones_like(input_ids) if mask is None else mask
        prompts = [ids[row.bool()].tolist() for ids, row in zip(input_ids, shown, strict=True)]
        criteria = [test for test in stopping_criteria if not isinstance(test, _CUTS)]
        answers = self._answers(model, prompts, sampling, criteria)
        pad = getattr(generation_config, "_pad_token_tensor", None)
        filler = 0 if pad is None else int(pad)
        length = max(map(len, answers))
        added = [answer + [filler] * (length - len(answer)) for answer in answers]
        ids = torch.cat([input_ids, torch.tensor(added, device=input_ids.device)], 1)
        if generation_config.return_dict_in_generate:
            return _output(sequences=ids)
        return ids

    def _answers(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        criteria: Sequence[Any],
    ) -> list[list[int]]:
        def watch(request: Request) -> Steps:
            steps, device = self._decoder.steps(request), request.target.model.device
            tokens: list[int] = []
            result: CallResult | None = None
            while True:
                item = next(steps) if result is None else steps.send(result)
                result = yield item
                if isinstance(item, Emit):
                    tokens += item.tokens
                    ids = torch.tensor([[*request.prompt_ids, *tokens]], device=device)
                    if any(bool(torch.as_tensor(test(ids, None)).all()) for test in criteria):
                        raise _Stopped(tokens)

        models, steps = self._open(model), watch if criteria else None
        scheduler = Scheduler(self._decoder, models, sampling, len(prompts), steps=steps)
        again: Counter[tuple[int, ...]] = Counter()
        seeds = []
        for prompt in map(tuple, prompts):
            seeds.append(sampling.seed + again[prompt])
            again[prompt] += 1
        answers = []
        for outcome in scheduler.run(prompts, seeds=seeds):
            if not isinstance(outcome, _Stopped | Generation):
                raise outcome
            answers.append([*outcome.tokens])
        return answers

    def _sampling(self, config: Any, num_prompt: int, processors: Sequence[Any]) -> Sampling:
        settings = {name: getattr(config, name, None) for name in _BEYOND.split()}
        beyond = [f"{name}={value}" for name, value in settings.items() if value]
        for each in processors:
            option = _WARPERS.get(type(each))
            matches = option is not None and getattr(each, option) == getattr(config, option)
            if not (config.do_sample and matches):
                beyond.append(type(each).__name__)
        if (config.num_beams or 1) > 1:
            beyond.append(f"num_beams={config.num_beams}")
        if beyond:
            raise ValueError(
                f"{self._decoder.name} draws only by temperature, top_k and top_p; it cannot have "
                f"{', '.join(beyond)}: leave out what asks for it"
            )
        stops = getattr(config, "_eos_token_tensor", None)
        options: dict[str, Any] = {}
        if config.do_sample:
            options = {
                "temperature": 1.0 if config.temperature is None else config.temperature,
                "top_k": config.top_k or 0,
                "top_p": 1.0 if config.top_p is None else config.top_p,
                "seed": int(torch.randint(2**62, ())) if self._seed is None else self._seed,
            }
        return Sampling(
            max_new_tokens=config.max_length - num_prompt,
            stop_ids=frozenset() if stops is None else frozenset(stops.tolist()),
            **options,
        )

    def _open(self, model: Any) -> Models:
        if self._models is None or self._module is not model:
            leave_out_cudnn(main_device(model))
            target = _wrapped(model)
            draft = None
            if isinstance(self._draft, str | Path):
                draft = HFModel.load(self._draft, dtype=target.dtype, device=target.device)
            elif self._draft is not None:
                draft = _wrapped(self._draft)
            for name, folder in self._adapters.items():
                models = {part.adapter_name: part.adapter_of for part in self._decoder.parts}
                attached = draft if models.get(name) == "draft" else target
                assert attached is not None
                attached.attach(name, read_adapter(folder))
            self._models, self._module = Models(target=target, draft=draft), model
        return self._models


transformers_generate = TransformersGenerate


class _Stopped(Exception):
    """Report that a stopping criterion ended an answer after `tokens`."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__("stopped by a criterion")
        self.tokens = tokens


def _wrapped(module: Any) -> HFModel:
    was_training = module.training
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model = HFModel(module, in_place=False)
    module.train(was_training)
    for parameter in trained:
        parameter.requires_grad_(True)
    return model
