"""Where checkpoints are: local folders and hub ids, their errors, and the hash of the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path


def find_checkpoint(path_or_id: str | Path, what: str, *needed: str) -> str:
    """Check a local folder before its name is taken for that of a hub model.

    Args:
        path_or_id: a folder written by `save_pretrained`, or a hub id.
        what: "model" or "tokenizer", for the message.
        needed: files of which the folder must hold one.

    Errors: `ValueError` in one line for a folder that is missing or holds none of them.
    """
    given = str(path_or_id)
    folder = Path(given).expanduser()
    if folder.is_dir():
        if not any((folder / name).is_file() for name in needed):
            raise ValueError(
                f"{what} {given!r}: that folder has no {' or '.join(needed)}; "
                "give a folder written by save_pretrained, or a hub id"
            )
        return str(folder)
    if folder.exists() or given.startswith((".", "/", "~")) or given.count("/") > 1:
        raise ValueError(
            f"{what} {given!r}: there is no such folder; "
            "give a folder written by save_pretrained, or a hub id such as owner/name"
        )
    return given


def unavailable(path_or_id: str | Path, what: str, error: Exception) -> ValueError:
    """The one line for a checkpoint that could not be read, or is neither here nor on the hub."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if Path(path_or_id).expanduser().is_dir():
        return ValueError(f"{what} {str(path_or_id)!r} cannot be loaded: {lines[0]}")
    return ValueError(
        f"{what} {str(path_or_id)!r} is neither a local folder nor available from the hub; check "
        f"the name and the network, or download it and give its folder ({lines[0]})"
    )


def weights_sha256(path: str | Path, limit_bytes: int = 2**30) -> str | None:
    """SHA-256 over a folder's weight files in name order; None if none or over `limit_bytes`."""
    files = sorted(Path(path).glob("*.safetensors"))
    if not files or sum(file.stat().st_size for file in files) > limit_bytes:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()
