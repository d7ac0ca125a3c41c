"""Compare a model's logits with those of transformers before use, so that errors are noticed.

Prompts are fed as decoders feed them, and to transformers' own forward. The same prompt in a batch
of three shows how much rounding is usual there. The median row is compared in half precision, where
a router may send a row to another expert. First of all, the model must be causal. The check of an
opened model runs uncompiled calls; `check_graphs` compares those that run as graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from decoders.core.device import has_kernels, switches
from decoders.core.hf.checkpoint import first_line, is_of_memory
from decoders.core.hf.model import HFModel

_LENGTH, _BLOCK = 12, 5
_BOUNDS = {torch.float32: (1.0, 1e-3), torch.float16: (0.5, 0.1), torch.bfloat16: (0.5, 0.2)}
"""The compared quantile of the rows' errors, and its bound as a fraction of the logits' spread."""
_USUAL = 4
"""The largest accepted error, in multiples of the usual rounding of transformers' own forward."""
_UNMOVED = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}
"""The largest change of a row's logits through later tokens, as a fraction of their spread, unless
the usual rounding is larger. In most models no bit changes."""
_ENDINGS = 3
"""Other endings of a prompt: rounding may send a row to another expert with one, not with each."""
_MAX_WORK = 2e11
"""Weights times tokens of the longest compared prompt, which takes a CPU a few seconds."""
_GPU_WORK = 1000
"""The same limit for a GPU, as a multiple of the CPU's."""


def self_check(model: HFModel) -> list[str]:
    """Compare a model without open sessions and return one line for all that readers must know.

    Kernels of this project that fail on a GPU are switched off in this process.

    Raises:
        ValueError: a call fails or logits differ; one line says where, and for which architecture.
    """
    notes = list[str]()
    with model.uncompiled():
        try:
            _compare(model, (3,))
        except Exception as error:  # compilers of kernels raise anything
            if is_of_memory(error) or not has_kernels(model.device):
                raise
            line = "this GPU runs torch's kernels, because ours fail there"
            notes.append(f"{line}: {first_line(error)}")
            switches.kernels = False
            _compare(model, (3,))
    window, compared = _windows(model)
    if window and window < model.max_length and not compared:
        notes.append(f"not compared with transformers' own forward beyond its window of {window:,}")
    return notes


def check_graphs(model: HFModel, batch_sizes: Sequence[int]) -> None:
    """Compare calls of so many sequences that run as graphs, with errors of `self_check`."""
    _compare(model, batch_sizes, "compiled ")


def _compare(model: HFModel, batch_sizes: Sequence[int], kind: str = "") -> None:
    try:
        _compare_calls(model, batch_sizes, kind)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        if is_of_memory(error):
            raise
        raise ValueError(
            f"{type(model.module).__name__} fails in the calls that decoders make "
            f"({type(error).__name__}: {first_line(error)}); choose another model"
        ) from error


def _compare_calls(model: HFModel, batch_sizes: Sequence[int], kind: str) -> None:
    """Compare calls with transformers' own forward, which must be causal for calls of no `kind`."""
    tokens, dtype = _ids(model, min(_LENGTH, model.max_length), 0), model.facts["dtype"]
    expected = model.own_logits(tokens, len(tokens))
    if expected.isnan().any():
        raise ValueError(
            f"{type(model.module).__name__} gives NaN in transformers' own forward pass in "
            f"{dtype}: its weights are damaged, or it overflows; try --dtype bfloat16 or float32"
        )
    batched = model.own_logits(tokens, len(tokens), [_ids(model, len(tokens), 1)] * 2)
    usual = _USUAL * _errors(batched, expected)
    if not kind:
        _check_causal(model, tokens, expected, usual.max().item())
    quantile, bound = _BOUNDS[model.dtype]
    bound = max(bound, usual.quantile(quantile).item())
    by_tokens = {tuple(tokens): expected}
    for how, prompts, counts in _cases(model, tokens, batch_sizes, kind):
        for prompt, logits in zip(prompts, _fed(model, prompts, counts), strict=True):
            key, num_rows = tuple(prompt), len(logits)
            if key not in by_tokens:
                by_tokens[key] = model.own_logits(key, num_rows)
            error = _errors(logits, by_tokens[key][-num_rows:]).quantile(quantile).item()
            if not error <= bound:  # NaN is an error, too
                raise ValueError(
                    f"{type(model.module).__name__} gives other logits for {how} than "
                    f"transformers' own forward, by {error:.2g} of their spread (rounding in "
                    f"{dtype} is below {bound:.2g}): nothing measured on it would be right; "
                    "choose another model"
                )


def _check_causal(model: HFModel, tokens: list[int], expected: Tensor, usual: float) -> None:
    """Raise `ValueError` if later tokens change the `expected` logits ``[N, V]`` of earlier ones.

    All texts have one shape, so that even rounding is the same for most models.
    """
    bound = max(_UNMOVED[model.dtype], usual)
    for cut in sorted({len(tokens) // 2 - 1, len(tokens) - 1} - {-1, 0}):
        moved = torch.tensor([float("inf")])
        for step in range(1, _ENDINGS + 1):
            ending = [(token + step) % model.vocab_size for token in tokens[cut:]]
            after = model.own_logits([*tokens[:cut], *ending], len(tokens))
            moved = torch.minimum(moved, _errors(after[:cut], expected[:cut]).cpu())
            if moved.max() <= bound:
                break
        else:
            raise ValueError(
                f"{type(model.module).__name__} is not causal: its logits for a token change with "
                f"the tokens after it, by {moved.max():.2g} of their spread (rounding in "
                f"{model.facts['dtype']} is below {bound:.2g}), so that it cannot decode token by "
                "token; choose a causal language model"
            )


def _windows(model: HFModel) -> tuple[int, int]:
    """Return the widest window and the compared one (0 if none, or if comparing takes long)."""
    window = max((window or 0 for window in model.architecture.windows.values()), default=0)
    max_work = _MAX_WORK * (1 if model.device.type == "cpu" else _GPU_WORK)
    fits = window + _BLOCK <= model.max_length and window * model.num_parameters <= max_work
    return window, window if fits else 0


def _cases(
    model: HFModel, tokens: list[int], batch_sizes: Sequence[int], kind: str
) -> Iterator[tuple[str, list[list[int]], Sequence[int]]]:
    """Yield how prompts are fed (as decoders do, by calls of a `kind`), the prompts, and counts.

    So many last rows of each prompt are read, after a call of the others.
    """
    window = 0 if kind else _windows(model)[1]
    model.reserve(max(1, *batch_sizes), max(len(tokens), window + _BLOCK))
    yield f"a {kind}prompt alone", [tokens], [len(tokens)]
    if len(tokens) > _BLOCK:
        yield f"{_BLOCK} {kind}rows after a prefix", [tokens], [_BLOCK]
        if kind:
            yield f"one {kind}row after a prefix", [tokens], [1]
        for number in [number for number in batch_sizes if number > 1]:
            prompts = [tokens, _ids(model, len(tokens) - 1, 1), *[_ids(model, 3, 2)] * number]
            batches = [(len(tokens), 2, *[3] * number)[:number], (1,) * number]
            for counts in batches if kind else batches[:1]:
                yield f"{kind}prompts of unequal lengths in one call", prompts[:number], counts
    if window:
        beyond = _ids(model, window + _BLOCK, 3)
        yield f"a prompt beyond its window of {window}", [beyond], [_BLOCK]


def _fed(model: HFModel, prompts: Sequence[list[int]], counts: Sequence[int]) -> Sequence[Tensor]:
    """Feed the last rows of each prompt in one call of all, and return their logits ``[N, V]``."""
    sessions = [model.open() for _ in counts]
    try:
        for session, prompt, count in zip(sessions, prompts, counts, strict=True):
            if before := prompt[:-count]:
                model.forward([session.call(before)])
        calls = [
            session.call(prompt[-count:], read=range(count))
            for session, prompt, count in zip(sessions, prompts, counts, strict=True)
        ]
        parts: Sequence[Tensor] = model.forward(calls).split([*counts])  # type: ignore[no-untyped-call]
        return parts
    finally:
        for session in sessions[::-1]:
            model.close(session)


def _errors(logits: Tensor, expected: Tensor) -> Tensor:
    """Return root-mean-square differences ``[N]`` as fractions of the expected spread."""
    difference = (logits - expected).masked_fill(logits == expected, 0)  # for infinities, too
    spread = expected.masked_fill(~expected.isfinite(), 0).std(-1)
    return difference.pow(2).mean(-1).sqrt() / spread.clamp(min=torch.finfo(torch.float32).tiny)


def _ids(model: HFModel, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.vocab_size, (count,), generator=generator).tolist()
