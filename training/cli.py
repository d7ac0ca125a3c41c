"""The verbs `bench train` and `bench import`: parse, call, print.

Nothing heavy at module level: the command line imports this to show its help.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench.cli.options import RESULTS, Given, Progressing, ProgressStyle, gathering
from bench.errors import UsageError

train = typer.Typer(help="Train what the benchmark runs on.", no_args_is_help=True)
imports = typer.Typer(help="Turn checkpoints of others into adapters.", no_args_is_help=True)

_NumSteps = Annotated[int | None, typer.Option(help="Steps. [default: the recipe's]")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="TABLE.KEY=VALUE of the recipe, e.g. adapter.rank=32; repeat."),
]
_Restart = Annotated[bool, typer.Option("--restart", help="Do not resume.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
_OF_ADAPTERS: dict[str, tuple[Any, Any]] = {
    "recipe": (
        Annotated[
            Path | None,
            typer.Option(help="[default: training/recipes, for the zoo or for any model]"),
        ],
        None,
    ),
    "model": (
        Annotated[str | None, typer.Option(help="Folder or hub id. [default: the zoo's target]")],
        None,
    ),
    "data": (
        Annotated[str | None, typer.Option(help="on-policy, text=PATH or dataset=ID.")],
        None,
    ),
    "on_policy": (
        Annotated[
            bool,
            typer.Option("--on-policy", help="Learn completions sampled from the model itself."),
        ],
        False,
    ),
    "output": (
        Annotated[
            Path | None,
            typer.Option(
                "--output",
                "-o",
                help="Folder of the adapter. [default: in zoo, or in results/adapters]",
            ),
        ],
        None,
    ),
    "num_steps": (_NumSteps, None),
    "settings": (Settings, None),
    "restart": (_Restart, False),
    "device": (Device, "cpu"),
    "progress": (Progressing, ProgressStyle.auto),
}
"""What both verbs that train adapters take, with the defaults."""


@contextmanager
def _usage() -> Iterator[None]:
    """What recipes, data or checkpoints are refused for is one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


@train.command("zoo")
def train_zoo(
    recipe: Annotated[Path | None, typer.Option(help="[default: the zoo's own]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="[default: zoo]")] = None,
    restart: _Restart = False,
    device: Device = "cpu",
    progress: Progressing = ProgressStyle.auto,
) -> None:
    """Train the embedded target and its draft from scratch (resumable)."""
    from training.recipe import RECIPES, zoo_output
    from training.zoo import train as zoo

    with _usage():
        zoo.main(
            recipe or RECIPES / "zoo.toml",
            output or zoo_output(),
            resume=not restart,
            progress=progress.value,
            device=device,
        )


class Objective(StrEnum):
    """What an I-DLM adapter is for."""

    refine = "refine"
    isd = "isd"


@train.command("ptp")
@gathering(_OF_ADAPTERS)
def train_ptp(given: Given) -> None:
    """Train a PTP adapter for a model (resumable); see docs/ptp.md."""
    _train_adapter("ptp", given)


@train.command("idlm")
@gathering(_OF_ADAPTERS)
def train_idlm(
    objective: Annotated[
        Objective, typer.Option(help="refine: for nar and idlm:mode=refine; isd: for mode=isd.")
    ],
    given: Given,
) -> None:
    """Train an adapter of masks for a model (resumable); see docs/idlm.md."""
    _train_adapter(objective.value, given)


def _train_adapter(kind: Literal["ptp", "refine", "isd"], given: Given) -> None:
    """What the commands that train adapters of slots share."""
    from bench.plan.named_models import resolve
    from training.adapter import train as adapters

    with _usage():
        adapters.main(kind=kind, locate=resolve, **_adapter_options(**given))


def _adapter_options(
    *,
    data: str | None,
    on_policy: bool,
    settings: list[str] | None,
    restart: bool,
    progress: ProgressStyle,
    **options: Any,
) -> dict[str, Any]:
    """`_OF_ADAPTERS` as the functions that train take them."""
    if on_policy and data is not None:
        raise UsageError("--on-policy and --data exclude each other; give one of them")
    return {
        **options,
        "data": "on-policy" if on_policy else data,
        "settings": settings or (),
        "resume": not restart,
        "progress": progress.value,
    }


@train.command("medusa")
@gathering(_OF_ADAPTERS)
def train_medusa(given: Given) -> None:
    """Train Medusa heads for a model (resumable); see docs/decoders/medusa.md."""
    from bench.plan.named_models import resolve
    from training.heads import train as heads

    with _usage():
        heads.main(locate=resolve, **_adapter_options(**given))


@train.command("eagle")
@gathering(_OF_ADAPTERS)
def train_eagle(given: Given) -> None:
    """Train EAGLE's draft layer for a model (resumable); see docs/decoders/eagle.md."""
    from bench.plan.named_models import resolve
    from training.heads import train as heads

    with _usage():
        heads.main(kind="eagle", locate=resolve, **_adapter_options(**given))


@train.command("exit")
@gathering(_OF_ADAPTERS)
def train_exit(given: Given) -> None:
    """Train an early exit of a model (resumable); see docs/decoders/exit.md."""
    from bench.plan.named_models import resolve
    from training.heads import train as heads

    with _usage():
        heads.main(kind="exit", locate=resolve, **_adapter_options(**given))


@train.command("draft")
def train_draft(
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
    progress: Progressing = ProgressStyle.auto,
) -> None:
    """Distil a small draft model on stored completions of a Llama target (resumable)."""
    from bench.plan.named_models import resolve
    from training.adapter import draft
    from training.recipe import RECIPES, customised, read_recipe, with_settings

    with _usage():
        tables = read_recipe(recipe or RECIPES / "smollm2-draft.toml")
        tables = with_settings(customised(tables, model=model, num_steps=num_steps), settings or ())
        name = Path(draft.DraftRecipe.of(tables).model.path).name
        folder = output or RESULTS / "drafts" / name
        draft.train_draft(
            tables, folder, resume=not restart, progress=progress.value, locate=resolve
        )
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
    progress: Progressing = ProgressStyle.auto,
) -> None:
    """Train C-PTP from scratch without a teacher, beside an AR model, and compare them."""
    from training.inverse import train as inverse

    with _usage():
        result = inverse.main(
            recipe,
            output or RESULTS / "inverse",
            num_steps=num_steps,
            resume=not restart,
            progress=progress.value,
        )
    typer.echo(str(result))


@train.command("curve")
def train_curve(
    logs: Annotated[
        list[Path], typer.Argument(help="training_log.jsonl of an adapter or draft, or its folder.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The figure: .png, .svg or .pdf.")
    ] = Path("curve.png"),
) -> None:
    """How proposals grew with training, and what ten times more would give if it went on."""
    from training.adapter.plots import plot_growth
    from training.growth import read_growth

    with _usage():
        files = [log / "training_log.jsonl" if log.is_dir() else log for log in logs]
        grown = [growth for file in files for growth in read_growth(file, _trained(file))]
        plot_growth(grown, output)
    for growth in grown:
        value, low, high = growth.at(10 * growth.seen[-1])
        typer.echo(
            f"{growth.name}, {growth.kind}: {growth.values[-1]:.2f} stand after "
            f"{growth.seen[-1] / 1e6:.2f} million; ten times as many give {growth.slope:+.2f} "
            f"(standard error {growth.slope_error:.2f}): {value:.2f} [{low:.2f}, {high:.2f}]"
        )
    typer.echo(str(output))


def _trained(log: Path) -> str:
    """What a log is of, by its folder; a run in progress keeps it in ``.training`` there."""
    parents = [folder.name for folder in log.absolute().parents]
    return parents[parents[0] == ".training"]


@imports.command("ptp")
def import_ptp(
    checkpoint: Annotated[
        Path, typer.Argument(help="Lightning .ckpt, safetensors of the same keys, or their folder.")
    ],
    output: Annotated[Path, typer.Argument(help="Folder of the adapter; must be new.")],
    config: Annotated[
        Path | None, typer.Option(help="train.yaml. [default: the one beside the checkpoint]")
    ] = None,
) -> None:
    """Turn a checkpoint of the PTP authors into an adapter; the base model is not needed."""
    from training.importers import ptp

    with _usage():
        typer.echo(ptp.import_ptp(checkpoint, output, config))


@imports.command("idlm")
def import_idlm(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of I-DLM-8B, or of a LoRA of it.")],
    output: Annotated[Path, typer.Argument(help="Folder of the adapter; must be new.")],
    base: Annotated[Path | None, typer.Option(help="Folder of the LoRA's base model.")] = None,
    stride: Annotated[int, typer.Option(help="N that it was trained for.")] = 4,
    mask_id: Annotated[int, typer.Option(help="Token whose embedding is the mask.")] = 151_669,
) -> None:
    """Turn a published I-DLM into a base model and an isd adapter, or its LoRA into the latter."""
    from training.importers import idlm

    with _usage():
        typer.echo(idlm.import_idlm(checkpoint, output, base=base, stride=stride, mask_id=mask_id))


@imports.command("peft")
def import_peft(
    folder: Annotated[
        Path, typer.Argument(help="What `bench export --to peft` wrote, or PEFT saved since.")
    ],
    output: Annotated[Path, typer.Argument(help="Folder of the adapter; must be new.")],
) -> None:
    """Turn an adapter in PEFT's format into ours; `bench export --to peft` is the way back."""
    from training.importers import peft

    with _usage():
        typer.echo(peft.import_peft(folder, output))
