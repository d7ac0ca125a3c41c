"""Convert GGUF files (llama.cpp's format) to checkpoint folders, each complete or not written.

The file's metadata supplies what transformers leaves out: special ids and the pre-tokenizer.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from decoders.core.hf.checkpoint import CONVERTED, SOURCE, first_line
from decoders.core.hf.loading import no_bars

_MAGIC = b"GGUF"
_CUT_DIGITS = "smollm"
"""A pre-tokenizer that transformers does not know; it makes every digit a separate token."""


def hash_file(file: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hash a file, calling `on_bytes` with the size of each chunk."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(2**22):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()


def convert(file: Path, folder: Path, sha256: str) -> Path:
    """Write the model and tokenizer of a GGUF file into a new `folder`, in float32.

    `ValueError` for a missing package, a file that cannot be read, or a full disk.
    """
    check(file)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader may raise anything on a damaged file
        raise ValueError(
            f"{file} is damaged or cut off ({first_line(error)}); fetch it again"
        ) from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with no_bars():
            _write(file, scratch, metadata)
        facts = {"format": CONVERTED, "file": file.name, "sha256": sha256}
        (scratch / SOURCE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        scratch.rename(folder)
    except OSError as error:
        if folder.is_dir() and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return folder  # another process was faster
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"no room for the converted {file.name} in {folder.parent} ({error.strerror}); "
                "free some space, or choose another folder with DECODING_BENCH_CACHE"
            ) from error
        raise ValueError(f"{file.name} cannot be converted: {first_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def check(file: Path) -> None:
    """Check a file's first bytes: `ValueError` if it is not GGUF, or a package is missing."""
    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    if magic != _MAGIC:
        raise ValueError(f"{file} is not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise ValueError(
                f"reading {file.name} needs the package {package!r}: "
                "pip install 'decoding-bench[gguf]' (the packages gguf and accelerate)"
            )


def _write(file: Path, folder: Path, metadata: Mapping[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        module: Any = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(**source)
    except OSError:
        raise
    except Exception as error:  # the readers raise anything from KeyError to NotImplementedError
        raise ValueError(
            f"{file} cannot be loaded by transformers: {first_line(error)}; use a file of a "
            "supported architecture and quantisation, or a folder of save_pretrained"
        ) from error
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    for short, name in names.items():
        if (value := metadata.get(f"tokenizer.ggml.{short}_token_id")) is not None:
            setattr(module.config, name, int(value))
            setattr(module.generation_config, name, int(value))
            token = tokenizer.convert_ids_to_tokens(int(value))
            setattr(tokenizer, name.removesuffix("_id"), token)
    if metadata.get("tokenizer.ggml.pre") == _CUT_DIGITS:
        from tokenizers import pre_tokenizers

        digits = pre_tokenizers.Digits(individual_digits=True)
        steps = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
