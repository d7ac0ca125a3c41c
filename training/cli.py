"""Define the verbs `bench train` and `bench import`: parse options, call the training, print.

Import heavy modules inside functions only: the command line imports this module to show help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, get_type_hints

import typer

from bench.cli.group import AllVerbs, Arguments, Configured, VerbGroup
from bench.cli.make import PANEL
from bench.cli.options import RESULTS, Progressing
from bench.errors import BenchError, UsageError, as_error

train = typer.Typer(help="Train models and adapters.", no_args_is_help=True)
imports = typer.Typer(help="Convert published checkpoints to adapters.", no_args_is_help=True)
app = typer.Typer()


class _Trainers(AllVerbs):
    """Group the verbs below `bench train`, also those of networks and of other packages."""

    group = "bench.trainers"

    def to_verbs(self, registered: Any) -> Any:
        """Return registered verbs, or the verb of a `NetworkTable`."""
        if isinstance(registered, typer.Typer):
            return registered
        _verb(verbs := typer.Typer(), registered.verb, registered.help)
        return verbs


app.add_typer(train, name="train", cls=_Trainers, rich_help_panel=PANEL)
app.add_typer(imports, name="import", cls=VerbGroup, rich_help_panel=PANEL)


class _Options:
    """Declare the options of the verbs that train. Some verbs leave out some options."""

    recipe: Annotated[
        Path | None, typer.Option(help="[default: in training/recipes, by verb and --model]")
    ] = None
    model: Annotated[str | None, typer.Option(help="Folder or hub id. [default: the recipe's]")] = (
        None
    )
    data: Annotated[
        str | None,
        typer.Option(help="on-policy[=PROMPTS] (the model's answers), text=PATH or dataset=ID."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="[default: results/VERB, of an adapter results/adapters/MODEL-VERB]",
        ),
    ] = None
    num_steps: Annotated[
        int | None, typer.Option(help="Training steps. [default: the recipe's]")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="TABLE.KEY=VALUE of the recipe, e.g. adapter.rank=32; repeatable."
        ),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Start again; do not resume.")] = False
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda. [default: cuda if available, as in `bench run`]"),
    ] = None
    progress: Progressing = "auto"


_MODELS = {
    "zoo": ("training.zoo.train:train_zoo", "zoo.toml"),
    "dllm": ("training.zoo.dllm:train_masked", "dllm.toml"),
    "draft": ("training.draft:train_draft", "smollm2-draft.toml"),
    "inverse": ("training.inverse.train:train_both", "ptp-inverse.toml"),
}
"""Functions that train models, by the name of the verb, and their recipes."""
_RECIPES = {
    "refine": ("idlm-refine.toml", "idlm-any-refine.toml"),
    "isd": ("idlm-isd.toml", "idlm-any.toml"),
}
"""Recipes for the zoo and for any model, where the files are not KIND.toml and KIND-any.toml."""


def _with_options(*without: str) -> type[Configured]:
    """Return the class of verbs with all `_Options` except some."""

    def declare() -> type:
        hints = get_type_hints(_Options, include_extras=True).items()
        kept = [(name, kind, getattr(_Options, name)) for name, kind in hints]
        return make_dataclass("Options", [each for each in kept if each[0] not in without])

    return Configured.by(declare)


def _verb(verbs: typer.Typer, kind: str, text: str, *without: str) -> None:
    def verb(arguments: Arguments) -> None:
        _train(kind, arguments)

    verbs.command(kind, cls=_with_options(*without), help=text)(verb)


_OF_ADAPTERS = ("model", "data", "num_steps")
_verb(train, "zoo", "Train the zoo's target and draft model (resumable).", *_OF_ADAPTERS)
_verb(train, "dllm", "Train a small block-diffusion model (resumable).", *_OF_ADAPTERS)
_verb(train, "ptp", "Train a PTP adapter for a model (resumable); see docs/decoders/ptp.md.")


@train.command("idlm", cls=_with_options())
def train_idlm(
    objective: Annotated[
        Literal["refine", "isd"], typer.Option(help="refine: for nar and idlm; isd: for isd.")
    ],
    arguments: Arguments,
) -> None:
    """Train an adapter of masked slots for a model (resumable, see docs/training-an-adapter.md)."""
    _train(objective, arguments)


_verb(
    train,
    "draft",
    "Distil a small draft model on stored completions of a Llama target (resumable).",
    "data",
)
_verb(
    train,
    "inverse",
    "Train C-PTP from scratch without a teacher, train an AR model too, and compare the two.",
    *("model", "data"),
)


def _train(kind: str, arguments: Arguments) -> None:
    from bench.plan.sources import checkpoint, resolve
    from decoders.core.hf.checkpoint import is_local
    from training.heads.recipe import network_tables
    from training.run import located

    options = dict(arguments)
    resume, progress = not options.pop("restart"), options.pop("progress")
    with as_error(BenchError, OSError), as_error(UsageError):
        model = options.get("model")
        if model is not None and not is_local(model):
            located(model, checkpoint)  # imported here, where an error becomes one line
        folder = _train_kind(kind, **options, resume=resume, progress=progress, locate=resolve)
    if progress != "none" and kind not in _MODELS:
        name = tables[kind].network if kind in (tables := network_tables()) else kind
        typer.echo(f"to use it in `bench run`: --adapter {name}={folder}", err=True)
    typer.echo(str(folder))


def _train_kind(
    kind: str,
    *,
    recipe: Path | None = None,
    output: Path | None = None,
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
    settings: Sequence[str] | None = None,
    **options: Any,
) -> Path:
    """Train models, or an adapter of slots (ptp, refine, isd) or of hidden states.

    An adapter's `recipe` defaults to the zoo's recipe, or with a `model` to the recipe for any
    model. The returned `output` defaults to ``results/KIND``, or ``results/KIND-MODEL`` with a
    model; for an adapter to ``results/adapters/MODEL-KIND`` (``MODEL`` for PTP; ``zoo`` without a
    model), never to a shipped folder. `options` are those of `training.run.TrainingOptions`.
    """
    from training.heads.recipe import network_tables
    from training.recipe import RECIPES, read_recipe, with_overrides, with_settings

    files, folder = _RECIPES.get(kind, (f"{kind}.toml", f"{kind}-any.toml")), RECIPES
    suffix = "" if kind == "ptp" else f"-{kind}"
    name, place = "training.adapters:train_adapter", f"adapters/{Path(model or 'zoo').name}{suffix}"
    if kind in _MODELS:
        name, file = _MODELS[kind]
        files, place = (file, file), kind if model is None else f"{kind}-{Path(model).name}"
    elif (network := network_tables().get(kind)) is not None:
        name, folder = "training.adapters:train_heads", network.recipes
    else:
        options["kind"] = kind
    tables = read_recipe(recipe or folder / files[model is not None])
    tables = with_overrides(tables, model=model, data=data, num_steps=num_steps)
    tables = with_settings(tables, settings or ())
    output = output or RESULTS / place
    resolve_name(name)(tables, output, **options)
    return output


@imports.command("idlm")
def import_idlm(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of I-DLM-8B, or of a LoRA of it.")],
    output: Annotated[Path, typer.Argument(help="Folder of the adapter; must be new.")],
    base: Annotated[Path | None, typer.Option(help="Folder of the LoRA's base model.")] = None,
    stride: Annotated[int, typer.Option(min=2, help="Stride N of its training.")] = 4,
    mask_id: Annotated[int, typer.Option(help="Id of the mask token.")] = 151_669,
) -> None:
    """Turn a published I-DLM into a base model and an isd adapter, or its LoRA into an adapter."""
    from training.importers import idlm

    with as_error(BenchError, OSError), as_error(UsageError):
        typer.echo(idlm.import_idlm(checkpoint, output, base=base, stride=stride, mask_id=mask_id))
