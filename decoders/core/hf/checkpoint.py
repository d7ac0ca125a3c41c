"""Find checkpoints (local folders and hub ids), explain their errors, and hash their weights.

A checkpoint's configuration tells whether its model predicts masked tokens, and how. transformers
has no class for most published diffusion models. Those of `_TYPES` have the weights of the
architecture that they were trained from, whose class runs them with our masks. No checkpoint of
these types was at hand: tests rename tiny random ones. LLaDA's weights have names of their own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from decoders.core.types import MaskedForm

SAMPLED = "sampled:"
"""Prefix of a hash for which only a sample of the weights was read."""
GGUF = "gguf:"
"""Prefix of the hash of weights converted from a GGUF file; it is the GGUF file's hash."""
SOURCE = "source.json"
"""File in a converted folder that names the GGUF file."""
CONVERTED = 1
"""Format version of converted folders; raised when conversions give another result."""
_OF_MEMORY = re.compile(r"out of memory|allocate memory|enough memory", re.IGNORECASE)
MERGE_IT = (
    "it has an adapter of PEFT; merge it into its base model (peft: merge_and_unload, then "
    "save_pretrained) and give that folder, or move adapter_config.json away"
)
"""transformers would apply a PEFT adapter unasked if peft is installed, and ignore it if not."""
_CONVERT_IT = (
    "if you trust it, convert it once: AutoModelForCausalLM.from_pretrained(FOLDER)"
    ".save_pretrained(OTHER), and give that folder"
)
_HUB_TIMEOUT_S = 5.0
_STRETCHES, _STRETCH_BYTES = 64, 2**16
_MAX_HEADER_BYTES = 10**8  # the format's own limit


@contextmanager
def refusing_panics() -> Iterator[None]:
    """Raise `ValueError` for a panic of the tokenizers library, which is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"its tokenizer fails: {' '.join(str(error).split())}") from error


def cache_folder() -> Path:
    """Return ``DECODING_BENCH_CACHE``, or a folder in the user's cache folder."""
    if folder := os.environ.get("DECODING_BENCH_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "decoding-bench"


def graphs_folder() -> Path:
    """Return the folder of compiled graphs (`graph_files`)."""
    return cache_folder() / "graphs"


def hub_answers() -> bool:
    """Ask the Hugging Face hub for its first page's head (False offline or without answer)."""
    from huggingface_hub import constants

    stated = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
    if stated or constants.HF_HUB_OFFLINE:
        return False
    try:
        request = urllib.request.Request(str(constants.ENDPOINT), method="HEAD")
        urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:  # the hub answered
        error.close()
    except (OSError, ValueError) as error:
        logging.getLogger(__name__).debug("hub not reachable: %s", error)
        return False
    return True


def find_checkpoint(path_or_id: str | Path, role: str, *files: str) -> str:
    """Return the path of a local folder, or the hub id, of a "model" or "tokenizer" (`role`).

    `ValueError` for a folder that is missing, has none of the `files` files, or holds a PEFT
    adapter or pickled weights.
    """
    text = str(path_or_id)
    folder = Path(text).expanduser()
    if folder.is_dir():
        pickles = sorted(folder.glob("pytorch_model*.bin"))
        if role == "model" and (folder / "adapter_config.json").is_file():
            raise ValueError(f"model {text!r}: {MERGE_IT}")
        if role == "model" and pickles and not any(folder.glob("*.safetensors")):
            raise ValueError(
                f"model {text!r}: its weights are a pickle ({pickles[0].name}), which is not read, "
                f"as it may run code; {_CONVERT_IT}"
            )
        if not any((folder / name).is_file() for name in files):
            raise ValueError(
                f"{role} {text!r}: that folder has no {' or '.join(files)}; "
                "give a folder written by save_pretrained, or a hub id"
            )
        return str(folder)
    if is_local(text):
        raise ValueError(
            f"{role} {text!r}: there is no such folder; "
            "give a folder written by save_pretrained, or a hub id such as owner/name"
        )
    return text


def is_local(name: str) -> bool:
    """Tell whether a name must mean a local folder, even if the folder does not exist."""
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return is_path or Path(name).expanduser().exists()


def unavailable(path_or_id: str | Path, role: str, error: Exception) -> ValueError:
    """Explain in one line why a checkpoint could not be read, here or from the hub."""
    if Path(path_or_id).expanduser().is_dir():
        return ValueError(f"{role} {str(path_or_id)!r} cannot be loaded: {first_line(error)}")
    if "model.safetensors" in str(error):  # found, but without these weights
        return ValueError(
            f"{role} {str(path_or_id)!r} has no weights in safetensors, and pickles are not read; "
            f"{_CONVERT_IT}"
        )
    return ValueError(
        f"{role} {str(path_or_id)!r} is neither a local folder nor available from the hub; check "
        f"the name and the network, or download it and give its folder ({first_line(error)})"
    )


def first_line(error: Exception) -> str:
    """Return the first line of a library's error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_of_memory(error: Exception) -> bool:
    """Tell whether an error means too little memory, rather than bad files."""
    return isinstance(error, MemoryError) or bool(_OF_MEMORY.search(str(error)))


def weights_sha256(path: str | Path, limit_bytes: int = 2**30) -> str | None:
    """Hash a checkpoint's weight files in name order (None if there are none).

    A folder converted from a GGUF file has that file's hash. Above `limit_bytes`, only a sample of
    every file is hashed. The digest then begins with `SAMPLED`, so it never equals a full hash.
    """
    folder = find_folder(path)
    with suppress(OSError, ValueError, KeyError, TypeError):  # none, or no conversion's
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        if source["format"] == CONVERTED and isinstance(source["sha256"], str):
            return GGUF + source["sha256"]
    files = _weight_files(folder)
    if not files:
        return None
    whole = sum(file.stat().st_size for file in files) <= limit_bytes
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            if whole:
                hashlib.file_digest(stream, lambda: digest)
                continue
            # evenly, because fine-tuning often leaves embeddings and the last norm unchanged
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            length = int.from_bytes(stream.read(8), "little")
            digest.update(stream.read(min(length, _MAX_HEADER_BYTES)))
            for number in range(_STRETCHES):
                stream.seek(max(0, size - _STRETCH_BYTES) * number // (_STRETCHES - 1))
                digest.update(stream.read(_STRETCH_BYTES))
    return digest.hexdigest() if whole else SAMPLED + digest.hexdigest()


def count_weights(path: str | Path) -> int | None:
    """Count a checkpoint's weights from the headers of its files (None if there are none)."""
    total = 0
    try:
        for file in _weight_files(find_folder(path)):
            with safe_open(file, framework="np") as reader:
                parts = map(reader.get_slice, reader.keys())
                total += sum(math.prod(part.get_shape()) for part in parts)
    except (SafetensorError, OSError):  # loading the file reports the error
        return None
    return total or None


def tensor_files(path: str | Path | None) -> dict[str, Path]:
    """Return the file of each tensor of a checkpoint by name (none if it is not here).

    `ValueError` if an index or a file cannot be read.
    """
    folder, files = find_folder(path or "no/path"), dict[str, Path]()
    file = folder / "model.safetensors.index.json"
    try:
        if file.is_file():
            places = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
            return {name: folder / place for name, place in places.items()}
        for file in _weight_files(folder):
            with safe_open(file, framework="pt") as reader:
                files |= dict.fromkeys(reader.keys(), file)
    except Exception as error:  # damaged files may raise anything
        line = f"model {str(path)!r}: {file.name} cannot be read: {first_line(error)}"
        raise ValueError(line) from error
    return files


def find_folder(path: str | Path) -> Path:
    """Return the folder of a checkpoint, in the hub's cache for a hub id (which may be missing)."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(str(path), "config.json")
    except ValueError:  # no hub id
        return folder
    return Path(config).parent if isinstance(config, str) else folder


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))


_TYPES: Mapping[str, tuple[str, bool, int]] = {
    "Dream": ("qwen2", True, 0),  # arXiv 2508.15487
    "sdar": ("qwen3", False, 4),  # arXiv 2510.06303
    "Fast_dLLM_Qwen": ("qwen2", True, 32),  # v2, arXiv 2509.26328
    "a2d-qwen3": ("qwen3", False, 0),  # github.com/ZHZisZZ/dllm
    "a2d-llama": ("llama", False, 0),
}
"""Published types: base architecture, `MaskedForm.shifted`, and `MaskedForm.block`."""
_BLOCKS = ("block_size", "block_length", "bd_size")


def masked_form(config: Mapping[str, Any]) -> MaskedForm | None:
    """Return the form of a masked model from its configuration, or None of a causal one.

    A model is masked if ``is_causal`` is false, if there is a ``mask_token_id``, or by its type.
    """
    mask_id = config.get("mask_token_id")
    base, shifted, block = _TYPES.get(str(config.get("model_type")), ("", False, 0))
    if config.get("is_causal") is not False and mask_id is None and not base:
        return None
    blocks = [size for name in _BLOCKS if isinstance(size := config.get(name), int)]
    shifted = bool(config.get("shifted_logits", shifted))
    return MaskedForm(mask_id=mask_id, shifted=shifted, block=blocks[0] if blocks else block)


def is_masked(path_or_id: str) -> bool:
    """Tell whether a checkpoint on this machine is a masked model (False if none is there)."""
    file = find_folder(path_or_id) / "config.json"
    try:
        return masked_form(json.loads(file.read_text(encoding="utf-8"))) is not None
    except (OSError, ValueError, AttributeError):  # opening it says what is wrong
        return False


def base_config(source: str) -> Any:
    """Return the configuration of a published type as one of its base, or None of other types."""
    from transformers import AutoConfig, PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(source)
    base, form = _TYPES.get(str(config.get("model_type")), ("",))[0], masked_form(config)
    if not base or form is None:
        return None
    kept = {name: each for name, each in config.items() if name not in ("auto_map", "model_type")}
    kept |= {"is_causal": False, "shifted_logits": form.shifted, "block_size": form.block}
    return AutoConfig.for_model(base, **kept)
