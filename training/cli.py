"""The verbs `bench train` and `bench import`: parse options, call the training code, print.

Import heavy modules inside functions only: the command line imports this module to show help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench.cli.group import AllVerbs, Arguments, Configured, VerbGroup
from bench.cli.make import PANEL
from bench.cli.options import RESULTS, Progressing
from bench.errors import UsageError, as_error

train = typer.Typer(help="Train models and adapters.", no_args_is_help=True)
imports = typer.Typer(help="Convert published checkpoints to adapters.", no_args_is_help=True)
app = typer.Typer()


class _Trainers(AllVerbs):
    """The verbs below `bench train`, those of networks and of other packages included."""

    group = "bench.trainers"

    def to_verbs(self, registered: Any) -> Any:
        """Return registered verbs, or the verb of a `NetworkTable`."""
        if isinstance(registered, typer.Typer):
            return registered
        _adapter_verb(verbs := typer.Typer(), registered.verb, registered.help)
        return verbs


app.add_typer(train, name="train", cls=_Trainers, rich_help_panel=PANEL)
app.add_typer(imports, name="import", cls=VerbGroup, rich_help_panel=PANEL)

_NumSteps = Annotated[int | None, typer.Option(help="Training steps. [default: the recipe's]")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="TABLE.KEY=VALUE of the recipe, e.g. adapter.rank=32; repeatable."),
]
_Restart = Annotated[bool, typer.Option("--restart", help="Start again; do not resume.")]
_NewFolder = Annotated[Path, typer.Argument(help="Folder of the adapter; must be new.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda. [default: cuda if available, as in `bench run`]")
]


@dataclass(frozen=True)
class _AdapterOptions:
    """The options of the verbs that train adapters."""

    recipe: Annotated[
        Path | None, typer.Option(help="[default: training/recipes, for the zoo or for any model]")
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Folder or hub id. [default: the zoo's target]")
    ] = None
    data: Annotated[
        str | None, typer.Option(help="on-policy[=PROMPTS], text=PATH or dataset=ID.")
    ] = None
    on_policy: Annotated[
        bool, typer.Option("--on-policy", help="Train on completions that the model samples.")
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder of the adapter. [default: in results/adapters]"
        ),
    ] = None
    num_steps: _NumSteps = None
    settings: Settings = None
    restart: _Restart = False
    device: Device = None
    progress: Progressing = "auto"


_TrainsAdapter = Configured.by(lambda: _AdapterOptions)
_RECIPES = {
    "refine": ("idlm-refine.toml", "idlm-any-refine.toml"),
    "isd": ("idlm-isd.toml", "idlm-any.toml"),
}
"""Recipes for the zoo and for any model, where the files are not KIND.toml and KIND-any.toml."""


def _zoo_verb(name: str, place: str, text: str) -> None:
    """Add the verb that trains models on the zoo's text by a function of ``training.zoo``."""
    module, _, function = place.partition(".")

    @train.command(name, help=text)
    def verb(
        recipe: Annotated[Path | None, typer.Option(help="[default: the zoo's own]")] = None,
        output: Annotated[Path, typer.Option("--output", "-o")] = RESULTS / name,
        settings: Settings = None,
        restart: _Restart = False,
        device: Device = None,
        progress: Progressing = "auto",
    ) -> None:
        from training.recipe import RECIPES, read_recipe, with_settings

        with as_error(UsageError):
            tables = with_settings(read_recipe(recipe or RECIPES / f"{name}.toml"), settings or ())
            work = getattr(import_module(f"training.zoo.{module}"), function)
            work(tables, output, resume=not restart, progress=progress, device=device)
        typer.echo(str(output))


_zoo_verb("zoo", "train.train_zoo", "Train the zoo's target and draft model (resumable).")
_zoo_verb("dllm", "dllm.train_masked", "Train a small block-diffusion model (resumable).")


def _adapter_verb(verbs: typer.Typer, kind: str, text: str) -> None:
    def verb(arguments: Arguments) -> None:
        _train(kind, arguments)

    verbs.command(kind, cls=_TrainsAdapter, help=text)(verb)


_adapter_verb(
    train, "ptp", "Train a PTP adapter for a model (resumable); see docs/decoders/ptp.md."
)


@train.command("idlm", cls=_TrainsAdapter)
def train_idlm(
    objective: Annotated[
        Literal["refine", "isd"], typer.Option(help="refine: for nar and idlm; isd: for isd.")
    ],
    arguments: Arguments,
) -> None:
    """Train an adapter of masked slots for a model (resumable, see docs/training-an-adapter.md)."""
    _train(objective, arguments)


def _train(kind: str, arguments: Arguments) -> None:
    from bench.plan.sources import checkpoint, resolve
    from decoders.core.hf.checkpoint import is_local
    from training.heads.recipe import network_tables
    from training.run import located

    options = dict(arguments)
    if options.pop("on_policy"):
        if options["data"] is not None:
            raise UsageError("--on-policy and --data exclude each other; give one of them")
        options["data"] = "on-policy"
    resume, progress = not options.pop("restart"), options.pop("progress")
    with as_error(UsageError):
        if options["model"] is not None and not is_local(options["model"]):
            located(options["model"], checkpoint)  # here, where an error has one line
        folder = train_kind(kind, **options, resume=resume, progress=progress, locate=resolve)
    if progress != "none":
        name = tables[kind].network if kind in (tables := network_tables()) else kind
        typer.echo(f"to use it in `bench run`: --adapter {name}={folder}", err=True)
    typer.echo(str(folder))


def train_kind(
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
    """Train an adapter of slots (ptp, refine, isd) or of hidden states, and return its folder.

    `recipe` defaults to the zoo's recipe, or to the recipe for any model if `model` is given.
    `output` defaults to ``results/adapters/MODEL-KIND`` (``MODEL`` for PTP), never to a folder that
    is shipped; without a model, MODEL is ``zoo``. `options` are those of
    `training.run.TrainingOptions`.
    """
    from training import adapters
    from training.heads.recipe import network_tables
    from training.recipe import RECIPES, customised, read_recipe, with_settings

    files = _RECIPES.get(kind, (f"{kind}.toml", f"{kind}-any.toml"))
    network = network_tables().get(kind)
    folder = RECIPES if network is None else network.recipes
    tables = read_recipe(recipe or folder / files[model is not None])
    tables = customised(tables, model=model, data=data, num_steps=num_steps)
    tables = with_settings(tables, settings or ())
    if output is None:
        suffix = "" if kind == "ptp" else f"-{kind}"
        output = RESULTS / "adapters" / f"{Path(model or 'zoo').name}{suffix}"
    if network is None:
        adapters.train_adapter(tables, output, kind=kind, **options)
    else:
        adapters.train_heads(tables, output, **options)
    return output


@train.command("draft")
def _draft(
    recipe: Annotated[
        Path | None, typer.Option(help="[default: training/recipes/smollm2-draft.toml]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The target. [default: the recipe's]")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="[default: results/drafts/MODEL]")
    ] = None,
    num_steps: _NumSteps = None,
    settings: Settings = None,
    restart: _Restart = False,
    progress: Progressing = "auto",
) -> None:
    """Distil a small draft model on stored completions of a Llama target (resumable)."""
    from bench.plan.sources import resolve
    from training.draft import DraftRecipe, train_draft
    from training.recipe import RECIPES, customised, read_recipe, with_settings

    with as_error(UsageError):
        tables = read_recipe(recipe or RECIPES / "smollm2-draft.toml")
        tables = with_settings(customised(tables, model=model, num_steps=num_steps), settings or ())
        name = Path(DraftRecipe.of(tables).model.path).name
        folder = output or RESULTS / "drafts" / name
        train_draft(tables, folder, locate=resolve, resume=not restart, progress=progress)
    typer.echo(str(folder))


@train.command("inverse")
def train_inverse(
    recipe: Annotated[
        Path | None, typer.Option(help="[default: training/recipes/ptp-inverse.toml]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="[default: results/inverse]")
    ] = None,
    num_steps: _NumSteps = None,
    restart: _Restart = False,
    progress: Progressing = "auto",
) -> None:
    """Train C-PTP from scratch without a teacher, train an AR model too, and compare the two."""
    from training.inverse.train import train_both
    from training.recipe import RECIPES, customised, read_recipe

    folder = output or RESULTS / "inverse"
    with as_error(UsageError):
        tables = read_recipe(recipe or RECIPES / "ptp-inverse.toml")
        tables = customised(tables, num_steps=num_steps)
        train_both(tables, folder, resume=not restart, progress=progress)
    typer.echo(str(folder / "inverse.json"))


@imports.command("idlm")
def import_idlm(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of I-DLM-8B, or of a LoRA of it.")],
    output: _NewFolder,
    base: Annotated[Path | None, typer.Option(help="Folder of the LoRA's base model.")] = None,
    stride: Annotated[int, typer.Option(help="N of its training.")] = 4,
    mask_id: Annotated[int, typer.Option(help="Id of the mask token.")] = 151_669,
) -> None:
    """Turn a published I-DLM into a base model and an isd adapter, or its LoRA into an adapter."""
    from training.importers import idlm

    with as_error(UsageError):
        typer.echo(idlm.import_idlm(checkpoint, output, base=base, stride=stride, mask_id=mask_id))


@imports.command("peft")
def import_peft(
    folder: Annotated[
        Path, typer.Argument(help="Folder from `bench export --to peft`, or saved by PEFT.")
    ],
    output: _NewFolder,
) -> None:
    """Turn an adapter in PEFT's format into ours, the reverse of `bench export --to peft`."""
    from training.importers import peft

    with as_error(UsageError):
        typer.echo(peft.import_peft(folder, output))
