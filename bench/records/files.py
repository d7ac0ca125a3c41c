"""Write small files that survive kills and full disks, and read JSON as frozen dataclasses.

A small file is replaced as a whole. A folder has one writer at a time. JSON is read without
converting numbers or texts. Files of older versions may lack fields; the default None then means
unknown. Unknown fields are ignored.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from bench.errors import BenchError, InvalidRunError, UnavailableError, UsageError
from bench.settings.bounds import allowed

SCHEMA = 1
"""Version of all files, raised whenever the meaning of a field or metric changes."""
T = TypeVar("T")
_SCRATCH = re.compile(r"\..+\.\d+")


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a run folder against other writers, with the operating system's lock on the folder.

    The lock ends with the process, even after a crash, and leaves no file behind. On a file system
    without locks, nothing is locked.

    Raises:
        UnavailableError: another process holds the lock.
        UsageError: the folder does not exist.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            line = f"another process is writing to {folder}; wait until it ends, or stop it"
            raise UnavailableError(line) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def remove_scratch(folder: Path) -> None:
    """Remove temporary files of replacements that a kill interrupted."""
    for file in folder.rglob(".*"):
        if _SCRATCH.fullmatch(file.name) and file.is_file():
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(folder, error) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file atomically while writing in pieces (`BenchError` if writing fails)."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.unlink(missing_ok=True)
        with scratch.open("xb") as file:  # do not write through a link of that name
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # this, too, fails on a read-only file system
            scratch.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a small file atomically (raises as `replacing`)."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace a small file with UTF-8 text (raises as `replacing`)."""
    write_bytes(path, text.encode())


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Replace files by their paths in `folder`, create folders, and return the full paths.

    Raises:
        BenchError: a folder on the way is a link, or writing fails.
    """
    for name, data in files.items():
        path = folder / name
        refuse_links(folder, path.parent)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        write_bytes(path, data)
    return [folder / name for name in files]


def write_json(path: Path, data: Mapping[str, Any], indent: int = 1) -> None:
    """Replace a small file with indented JSON (raises as `replacing`)."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=indent) + "\n")


def append_text(path: Path, text: str) -> None:
    """Append text, escaping what UTF-8 cannot encode (raises as `open_in_place`)."""
    descriptor = open_in_place(path, os.O_WRONLY | os.O_APPEND)
    try:
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(path, error) from error


def refuse_links(folder: Path, path: Path) -> None:
    """Refuse to write to `path` if it, or a folder between `folder` and it, is a link.

    A folder may come from a stranger, and its links may lead anywhere. `folder` itself and the
    folders above are the user's choice.

    Raises:
        BenchError: there is such a link.
    """
    below = path.relative_to(folder)
    for link in (folder / part for part in (*reversed(below.parents), below)):
        if link != folder and link.is_symlink():
            raise _is_link(link)


def open_in_place(path: Path, flags: int) -> int:
    """Open or create a file to change in place, and return its descriptor.

    Raises:
        BenchError: the path is a link, a hard link or no ordinary file, or cannot be opened.
    """
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise _is_link(path) if path.is_symlink() else cannot_write(path, error) from error
    state = os.fstat(descriptor)
    if state.st_nlink > 1 or not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise _is_link(path)
    return descriptor


def _is_link(path: Path) -> BenchError:
    line = f"{path} is a link or no ordinary file, and is not followed"
    return BenchError(f"{line}; put a copy of what it points to in its place, or remove it")


def cannot_write(path: Path, error: OSError | ValueError) -> BenchError:
    """Return the error of a failed write (full disk, read-only folder, file in the way)."""
    reason = getattr(error, "strerror", None) or str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if full else "choose a writable folder"
    return BenchError(f"cannot write {path}: {reason}; {advice}")


def check_schema(path: Path, data: dict[str, Any]) -> None:
    """Raise `UnavailableError` for another schema. The first versions wrote no schema."""
    if (schema := data.get("schema", SCHEMA)) != SCHEMA:
        line = f"{path} has schema {schema}; this version reads {SCHEMA}"
        raise UnavailableError(f"{line}: use the version that wrote it")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, if it exists (`InvalidRunError`, `UnavailableError`: other schema)."""
    if path.exists() and not path.is_file():  # never wait for a pipe
        raise InvalidRunError(f"{path} is damaged: it is no ordinary file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRunError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRunError(f"{path} is damaged: it is not a JSON object")
    check_schema(path, data)
    return data


def parse(kind: type[T], data: object, source: Path | str) -> T:
    """Parse JSON data as `kind`. An `InvalidRunError` names `source` and the first bad field."""
    try:
        parsed: T = validator(kind).validate_python(data)
    except RecursionError as error:
        raise InvalidRunError(f"{source} is damaged: it is nested too deeply") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field, *below = map(str, first["loc"] or ("content",))
        where = f" (at {'.'.join(below)})" if below else ""
        line = f"{source} is damaged: its {field} cannot be read{where}: {allowed(first)}"
        raise InvalidRunError(line) from error
    return parsed


def _strict(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_strict, schema))
    if not isinstance(schema, dict):
        return schema
    strict = {"strict": True} if schema.get("type") in ("bool", "float", "int", "str") else {}
    return {key: _strict(value) for key, value in schema.items()} | strict


validator: Callable[[Any], SchemaValidator] = cache(
    lambda kind: SchemaValidator(_strict(TypeAdapter(kind).core_schema))
)
"""Returns the validator of a type, which converts nothing but lists, to tuples."""
