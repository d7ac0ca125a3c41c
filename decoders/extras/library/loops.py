"""Run transformers' `generate()` as a decoder, and report its forward passes and tokens.

Hooks count forward passes. A stopping criterion, which every loop checks once a step, ends steps.
A custom loop is a folder as on the hub, whose code replaces `generate`, or a function in a file.
Letters: B sequences, N rows of a pass, T tokens of the widest prompt.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from decoders.core.adapter.gating import cache_argument, decoder_layers, text_model
from decoders.core.decoder import Answer, Role
from decoders.core.hf.loading import library_copy
from decoders.core.registry import import_file
from decoders.core.types import Emit

_settings: Any = GenerationConfig  # untyped


def run_generate(
    answers: Sequence[Answer],
    options: Mapping[str, Any],
    *,
    assistant: Mapping[str, Any] | None = None,
    verifies: bool = False,
    custom: Loop | None = None,
) -> None:
    """Generate all answers as one batch with transformers' `generate` on the target's own module.

    Args:
        answers: the answers to generate; their sampling settings differ only in the seed.
        options: options of the generation config besides sampling, token budget and stop ids.
        assistant: options of the draft model's generation config; None: no model drafts.
        verifies: the target's forward passes verify drafts.
        custom: a loop that replaces the library's own.
    """
    request = answers[0].request
    module = request.target.model.library_module
    module.generation_config = _settings(**(assistant or {}))
    prompts = [answer.request.prompt_ids for answer in answers]
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    sampling, warping = request.sampling, dict[str, Any]()
    if not sampling.greedy:
        warping = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
    arguments: dict[str, Any] = {
        "input_ids": torch.tensor(ids, device=module.device),
        "attention_mask": torch.tensor(mask, device=module.device),
        # no padding token: `generate` would hide it from an assistant, even inside the text
        "generation_config": _settings(
            do_sample=not sampling.greedy,
            **warping,
            **options,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(sampling.stop_ids) or None,
            use_cache=True,
        ),
    }
    course = _Course(answers, width, verifies=verifies)
    with ExitStack() as stack:
        log: Any = logging  # untyped
        stack.callback(log.set_verbosity, log.get_verbosity())
        log.set_verbosity_error()
        if request.draft is not None:
            helper = request.draft.model.library_module
            if helper is module:
                helper = library_copy(helper)
            helper.generation_config = _settings(**(assistant or {}))
            arguments["assistant_model"] = helper
            stack.enter_context(_hooked(helper, "draft", course))
        stack.enter_context(_hooked(module, "target", course))
        if custom is not None or not request.sampling.greedy:
            stack.enter_context(_seeded(answers, module.device))
        arguments["stopping_criteria"] = StoppingCriteriaList([course])
        if custom is None:
            module.generate(**arguments)
        else:
            course.finish(custom(module, **arguments))


@contextmanager
def _seeded(answers: Sequence[Answer], device: torch.device) -> Iterator[None]:
    firsts = [answer.request.uniforms.at("draw", 0) for answer in answers]
    digest = hashlib.blake2b(repr(firsts).encode(), digest_size=7).digest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(digest, "little"))  # noqa: TID251  (forked, put back)
        yield


@contextmanager
def _hooked(module: Any, role: Role, course: _Course) -> Iterator[None]:
    body = text_model(module)
    config, cache = body.config, cache_argument(body)
    num_layers = config.num_hidden_layers

    def hook(_: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        ids = args[0] if args else named.get("input_ids")
        fed = named["inputs_embeds"] if ids is None else ids
        drafts = role == "draft" or config.num_hidden_layers < num_layers
        course.ran("draft" if drafts else "target", fed, named.get(cache))

    with body.register_forward_pre_hook(hook, with_kwargs=True):
        try:
            yield
        finally:  # an interrupted early exit leaves its own layer count
            config.num_hidden_layers = num_layers


class _Course(StoppingCriteria):
    """Report the forward passes and steps of a running loop, as a criterion that never stops."""

    def __init__(self, answers: Sequence[Answer], width: int, *, verifies: bool) -> None:
        self._answers, self._verifies = answers, verifies
        self._lengths = [len(answer.request.prompt_ids) for answer in answers]
        self._width = width
        self._num_passes = {"target": 0, "draft": 0}
        self._fed: Tensor | None = None
        self._cached = 0

    def ran(self, role: Role, fed: Tensor, cache: Any) -> None:
        num_rows = fed.shape[1]
        whole = not self._num_passes[role] and num_rows >= self._width
        self._num_passes[role] += 1
        for answer, length in zip(self._answers, self._lengths, strict=True):
            padding = self._width - length if whole else 0
            answer.ran(role, num_rows - padding)
        if self._verifies and role == "target":
            self._fed = fed
            self._cached = 0 if cache is None else int(cache.get_seq_length())

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if self._fed is not None or not self._verifies:  # else 5.17 asks about unverified drafts
            self.extend(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def extend(self, ids: Tensor) -> None:
        if ids.shape[1] <= self._width:
            return
        if not self._num_passes["target"]:
            raise RuntimeError("the loop gave tokens without a forward pass of the target's body")
        drafts: list[int] = []
        if self._fed is not None:
            num_drafts = self._cached + self._fed.shape[1] - self._width
            drafts = self._fed[0, self._fed.shape[1] - num_drafts :].tolist()
        for answer, new in zip(self._answers, ids[:, self._width :].tolist(), strict=True):
            pairs = zip(new, drafts, strict=False)
            accepted = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            num, rejected = len(drafts), tuple(drafts[accepted:])
            step = Emit(tokens=tuple(new), drafted=num, accepted=accepted, rejected=rejected)
            answer.emit(step)
        self._width, self._fed = ids.shape[1], None

    def finish(self, ids: Any) -> None:
        ids = getattr(ids, "sequences", ids)
        whole = isinstance(ids, Tensor) and ids.dim() == 2 and len(ids) == len(self._answers)
        prompt = list(self._answers[0].request.prompt_ids)
        if not whole or ids[0, : len(prompt)].tolist() != prompt:
            raise ValueError(
                "the custom loop returned no ids [1, T] that begin with its prompt; return what "
                "generate() returns for a decoder-only model: prompt and answer"
            )
        self.extend(ids)


@torch.no_grad()
def stops_early(module: Any) -> bool:
    """Test whether a module's body runs only as many layers as its config says."""
    try:
        last = decoder_layers(module)[-1]
    except ValueError:
        return True
    ran: list[None] = []
    config = module.base_model.config
    num_layers = getattr(config, "num_hidden_layers", None)
    if num_layers is None:  # a text model next to an image tower has another configuration
        return False
    try:
        config.num_hidden_layers = num_layers - 1
        with last.register_forward_pre_hook(lambda *_: ran.append(None)):
            module(torch.zeros(1, 1, dtype=torch.int64, device=module.device), use_cache=False)
    finally:
        config.num_hidden_layers = num_layers
    return not ran


_FILE = Path("custom_generate") / "generate.py"
Loop = Callable[..., Any]
"""A loop: it takes a module, and the arguments of `generate` by name."""


def load_custom(path: str, function: str) -> Loop:
    """Load the loop of a folder or file, again if it changed, or raise `ValueError`."""
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    return _load(path, function, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _load(path: str, function: str, _changed_ns: int) -> Loop:
    file, is_folder = Path(path), Path(path).is_dir()
    if is_folder and not (file / _FILE).is_file():
        raise ValueError(f"custom loop {path!r} has no {_FILE.as_posix()}")
    if not is_folder and (file.suffix != ".py" or not file.is_file()):
        raise ValueError(
            f"custom loop {path!r} is neither a Python file nor a folder with {_FILE.as_posix()}"
        )
    load: Any = GenerationMixin.load_custom_generate  # also checks requirements.txt
    try:
        if is_folder:
            alone = load(None, str(file.resolve()), trust_remote_code=True)
            return functools.partial(_run_alone, alone)
        loop = getattr(import_file(file, f"bench_custom_{file.stem}"), function, None)
    except (Exception, SystemExit) as error:  # code of the user may raise anything
        line = f"custom loop {path!r} cannot be loaded: {type(error).__name__}: {error}"
        raise ValueError(line) from error
    if not callable(loop):
        raise ValueError(f"custom loop {path!r} has no function {function!r}; name one: function=…")
    return lambda module, **arguments: module.generate(**arguments, custom_generate=loop)


def _run_alone(loop: Loop, module: Any, **arguments: Any) -> Any:
    """Run a loop instead of `generate`, with the arguments and defaults of `generate`."""
    parameters = inspect.signature(GenerationMixin.generate).parameters.values()
    usual = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    for name in ("self", "custom_generate"):
        usual.pop(name, None)
    with torch.no_grad():
        return loop(model=module, **{**usual, **arguments})
