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

from bench.errors import BenchError, Exit
from bench.options import RESULTS, Progressing, Shown

train = typer.Typer(help="Train what the benchmark runs on.", no_args_is_help=True)
imports = typer.Typer(help="Turn checkpoints of others into adapters.", no_args_is_help=True)

RecipeOf = Annotated[
    Path | None,
    typer.Option(help="[default: training/recipes, for the zoo or for any model]"),
]
ModelOf = Annotated[str | None, typer.Option(help="Folder or hub id. [default: the zoo's target]")]
DataOf = Annotated[str | None, typer.Option(help="on-policy, text=PATH or dataset=ID.")]
OnPolicy = Annotated[
    bool, typer.Option("--on-policy", help="Learn completions sampled from the model itself.")
]
AdapterOutput = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Folder of the adapter. [default: in zoo, or in results/adapters]"
    ),
]
NumSteps = Annotated[int | None, typer.Option(help="Steps. [default: the recipe's]")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="TABLE.KEY=VALUE of the recipe, e.g. adapter.rank=32; repeat."),
]
Restart = Annotated[bool, typer.Option("--restart", help="Do not resume.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


@contextmanager
def _usage() -> Iterator[None]:
    """What recipes, data or checkpoints are refused for is one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        raise BenchError(str(error), Exit.USAGE) from error


@train.command("zoo")
def train_zoo(
    recipe: Annotated[Path | None, typer.Option(help="[default: the zoo's own]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="[default: zoo]")] = None,
    restart: Restart = False,
    device: Device = "cpu",
    progress: Progressing = Shown.auto,
) -> None:
    """Train the embedded target and its draft from scratch (resumable)."""
    from training import zoo
    from training.recipe import RECIPES, zoo_output

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
def train_ptp(
    context: typer.Context,
    recipe: RecipeOf = None,
    model: ModelOf = None,
    data: DataOf = None,
    on_policy: OnPolicy = False,
    output: AdapterOutput = None,
    num_steps: NumSteps = None,
    settings: Settings = None,
    restart: Restart = False,
    device: Device = "cpu",
    progress: Progressing = Shown.auto,
) -> None:
    """Train a PTP adapter for a model (resumable); see docs/ptp.md."""
    _train_adapter("ptp", **context.params)


@train.command("idlm")
def train_idlm(
    context: typer.Context,
    objective: Annotated[
        Objective, typer.Option(help="refine: for nar and idlm:mode=refine; isd: for mode=isd.")
    ],
    recipe: RecipeOf = None,
    model: ModelOf = None,
    data: DataOf = None,
    on_policy: OnPolicy = False,
    output: AdapterOutput = None,
    num_steps: NumSteps = None,
    settings: Settings = None,
    restart: Restart = False,
    device: Device = "cpu",
    progress: Progressing = Shown.auto,
) -> None:
    """Train an adapter of masks for a model (resumable); see docs/idlm.md."""
    options = {name: value for name, value in context.params.items() if name != "objective"}
    _train_adapter(objective.value, **options)


def _train_adapter(
    kind: Literal["ptp", "refine", "isd"],
    *,
    data: str | None,
    on_policy: bool,
    settings: list[str] | None,
    restart: bool,
    progress: Shown,
    **options: Any,
) -> None:
    """What the commands that train adapters share."""
    from training import adapters

    if on_policy and data is not None:
        raise BenchError("--on-policy and --data exclude each other; give one of them", Exit.USAGE)
    with _usage():
        adapters.main(
            kind=kind,
            data="on-policy" if on_policy else data,
            settings=settings or (),
            resume=not restart,
            progress=progress.value,
            **options,
        )


@train.command("inverse")
def train_inverse(
    recipe: Annotated[
        Path | None, typer.Option(help="[default: training/recipes/ptp-inverse.toml]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="[default: results/inverse]")
    ] = None,
    num_steps: NumSteps = None,
    restart: Restart = False,
    progress: Progressing = Shown.auto,
) -> None:
    """Train C-PTP from scratch without a teacher, beside an AR model, and compare them."""
    from training import inverse

    with _usage():
        found = inverse.main(
            recipe,
            output or RESULTS / "inverse",
            num_steps=num_steps,
            resume=not restart,
            progress=progress.value,
        )
    typer.echo(str(found))


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
    from training import import_ptp as ptp

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
    from training import import_idlm as idlm

    with _usage():
        typer.echo(idlm.import_idlm(checkpoint, output, base=base, stride=stride, mask_id=mask_id))
