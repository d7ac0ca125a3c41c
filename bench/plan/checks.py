"""Check all cheap conditions before any expensive step: `check_first` lists them in order.

The user sees a mistake within seconds. Then GGUF files are converted, weights opened
(`bench.plan.setup`) and graphs compiled (`bench.plan.compiling`), which may take minutes.

A draft model must number its tokens as the target does. Otherwise every draft would mean another
token to the target, and all drafts would be rejected without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError, UnavailableError, UsageError, as_error
from bench.machine.usage import available_bytes
from bench.plan.code import law_file
from bench.plan.labels import Note
from bench.plan.numerics import default_dtype, open_device, uses_tiles
from bench.plan.select import ResolvedRun, choose_decoders
from bench.plan.sources import adapter_folder, locate, model_shelf
from bench.plan.tokenise import max_prompt_tokens, read_tasks
from bench.records.plan import parse_part
from bench.settings.config import INVARIANT, ZOO, RunConfig
from bench.settings.setting import ALONE, WorkerConfig
from decoders.core.decoder import SelfDriven
from decoders.core.hf.checkpoint import count_weights, tensor_files
from decoders.core.hf.graph_files import missing_compiler
from decoders.core.hf.loading import has_tokenizer, load_tokenizer, max_context
from decoders.core.plugins import network

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SMALLER = "use a smaller --dtype (bfloat16) or model, or another --device"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_first(
    config: RunConfig, note: Note, *, brings_models: bool = False, reads_tasks: bool = True
) -> ResolvedRun:
    """Check a job before anything expensive, and return it with its decoders chosen.

    Args:
        config: the job.
        note: takes a line for the user.
        brings_models: the caller opens its own models, so only options are checked.
        reads_tasks: the caller has no own tasks, so the configuration's tasks are read.

    Raises:
        UsageError: an option, a file or a task is wrong, or an answer does not fit the model.
        UnavailableError: a model, an adapter, data, a device or a tokenizer is missing.
        BenchError: the weights do not fit into the free memory.
    """
    notes: list[str] = []
    run = choose_decoders(config, notes.append)
    check_options(run)
    if not brings_models:
        sources = check_files(run)
        if reads_tasks:
            check_tasks(run, notes.append)
        device = check_device(run)
        read_models(sources)
        if "target" in sources and (context := max_context(sources["target"])) is not None:
            max_prompt_tokens(config, context)
        check_memory(run, sources, device)
    for line in notes:  # after the checks, so that an error stands alone
        note(line)
    return run


def check_options(run: ResolvedRun) -> None:
    """Refuse options that contradict each other (`UsageError`)."""
    config = run.config
    for option, value in (("--compile", config.compile), ("--quantize", config.quantize)):
        if value and config.device_map:
            line = f"{option} cannot be combined with --device-map"
            raise UsageError(f"{line}; leave one of them out")
    uses_tiles(run)
    if config.reuse_prefix and (config.batch_size > 1 or config.prompt_tokens is not None):
        line = "--reuse-prefix answers one prompt at a time, behind the text of the turn before"
        raise UsageError(f"{line}; leave it out, or --batch-size and --prompt-tokens")
    for cell, decoder in run.decoders.items():
        tiled = run.numerics(cell) == INVARIANT
        if isinstance(decoder, SelfDriven) and (tiled or config.reuse_prefix):
            option = "numerics=invariant" if tiled else "--reuse-prefix"
            line = f"decoder {cell!r} runs its own loop and cache, which {option} does not reach"
            raise UsageError(f"{line}; leave out one of them")


def refuse_sharing(run: ResolvedRun, spread: WorkerConfig, part: str | None = None) -> None:
    """Refuse a malformed part, and to share answers out if a decoder remembers them."""
    if part is not None:
        parse_part(part)
    option = "--part" if part else "--workers" if spread.workers > 1 else "--executor"
    for cell, decoder in run.decoders.items():
        if decoder.remembers and (part is not None or spread != ALONE):
            line = f"decoder {cell!r} remembers answers; {option} gives a process only some"
            raise UsageError(f"{line}; leave out the decoder or {option}")


def check_files(run: ResolvedRun) -> dict[str, str]:
    """Find the models and adapters that the options name, and return where the models are.

    GGUF files that are not converted yet are left out. A draft model that no decoder uses is
    refused, unless it is the target's embedded one.
    """
    config, sources = run.config, run.models
    if config.draft not in (None, model_shelf(config.model)) and "draft" not in sources:
        line = f"none of {', '.join(run.decoders)} uses a draft model; leave it out, or add spec"
        raise UsageError(f"--draft {config.draft}: {line}")
    if config.law is not None and not Path(law_file(config.law)).is_file():
        raise UsageError(f"--law {config.law}: there is no such file")
    places = {role: locate(source, role) for role, source in sources.items()}
    for name, source in config.adapters.items():
        adapter_folder(name, source)
    for part in [part for decoder in run.decoders.values() for part in decoder.parts]:
        with as_error(UsageError):
            files = tensor_files(places["target"]) if "network" in part.needs else {}
            if files:
                network(part.variants[0]).check_tensors(files)
    return {role: place for role, place in places.items() if place is not None}


def check_tasks(run: ResolvedRun, note: Note) -> None:
    """Read the tasks, and note if the user's model gets the embedded model's tasks."""
    if run.config.model != ZOO and "tasks" not in run.config.model_fields_set:
        note(
            f"--tasks is not given: {run.config.model} answers the generated tasks of the embedded "
            "model (--tasks zoo); `bench ls tasks` lists others"
        )
    read_tasks(run.config)


def check_device(run: ResolvedRun) -> str:
    """Return the run's device, or refuse options that the device does not support."""
    config, device = run.config, open_device(run.config.device)
    if config.quantize is not None and device.type != "cpu":
        line = f"--quantize {config.quantize} runs only on a CPU (torch's packed kernels)"
        raise UsageError(f"{line}; leave it out, or use --device cpu")
    if config.compile and device.type == "cpu" and (missing := missing_compiler()):
        raise UnavailableError(f"{missing}; or use --no-compile")
    return str(device)


def check_memory(run: ResolvedRun, sources: Mapping[str, str], device: str) -> None:
    """Refuse models whose weights alone are larger than the free memory (`BenchError`)."""
    config = run.config
    if config.quantize or config.device_map or "target" not in sources:
        return  # sizes are only known after packing, placement or conversion
    dtype = config.dtype or default_dtype(config, device.partition(":")[0], sources["target"])
    num_bytes = _BYTES[dtype] * sum(count_weights(path) or 0 for path in sources.values())
    free = available_bytes(device)
    if num_bytes > free:
        raise BenchError(
            f"out of memory: the weights of {config.model} take {num_bytes / 1e9:.1f} GB in "
            f"{dtype}, and {free / 1e9:.1f} GB are free on {device}; {SMALLER}"
        )


def read_models(sources: Mapping[str, str]) -> dict[str, PreTrainedTokenizerBase | None]:
    """Compare the tokenizers of models, and return them by role (None: no tokenizer).

    Raises:
        UnavailableError: a folder has no configuration, or the target has no tokenizer.
        UsageError: another model has another tokenizer than the target.
    """
    tokenizers = {}
    with as_error(UnavailableError):
        for role, source in sources.items():
            expected = role == "target" or has_tokenizer(source)
            tokenizers[role] = load_tokenizer(source) if expected else None
            max_context(source)  # the configuration can be read
    target = tokenizers.get("target")
    for role, tokenizer in tokenizers.items():
        if role == "target" or target is None or tokenizer is None:
            continue
        if difference := first_difference(target, tokenizer):
            line = f"the {role.removeprefix('model:')} model has another tokenizer than the target"
            advice = "give a model that was trained with the target's tokenizer"
            raise UsageError(f"{line}: {difference}; {advice}")
    return tokenizers


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """Describe the first id that means different texts in the two tokenizers, if there is one.

    Ids that only one tokenizer has do not count, nor do special tokens, which are often renamed.
    """
    marks = {*target.added_tokens_decoder, *draft.added_tokens_decoder}
    target_pieces, draft_pieces = (
        {token: piece for piece, token in each.get_vocab().items()} for each in (target, draft)
    )
    for token in sorted((target_pieces.keys() & draft_pieces.keys()) - marks):
        pieces = target_pieces[token], draft_pieces[token]
        if pieces[0] != pieces[1]:
            return f"id {token} is {pieces[0]!r} in the target's, {pieces[1]!r} in the draft's"
    return None
