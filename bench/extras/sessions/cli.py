"""Define the verb `bench pool`, and the sessions of `bench run --sessions` and `bench resume`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bench.cli import options
from bench.cli.read import PANEL, TOGETHER

if TYPE_CHECKING:
    from bench.extras.sessions.sessions import Sessions
    from bench.progress import ProgressStyle
    from bench.settings.config import RunConfig

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def pool(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs of one job, or their folders.")
    ],
    folder: Annotated[
        Path | None, typer.Option(help="[default: the named folder, else OUTPUT/together]")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Pool sessions of one job from any day and machine: mean, and range of the next session."""
    folders = [path for path in (Path(runs[0]), output / runs[0]) if path.is_dir()]
    default = folders[0] if folders and len(runs) == 1 else output / TOGETHER
    raise typer.Exit(_print_pool(runs, output, folder or default))


def measure(
    config: RunConfig, num: int, every: float, output: Path, progress: ProgressStyle
) -> NoReturn:
    """Measure a configuration in `num` new processes, pool them, and exit with the worst code."""
    from bench.extras.sessions.sessions import plan_sessions

    _measure(plan_sessions(config, num, every, output), progress, [config])


def resume(folder: Path, allowed: Sequence[str], progress: ProgressStyle) -> None:
    """Complete the sessions of a folder and exit, or return at once if it holds none."""
    from bench import runs
    from bench.extras.sessions.sessions import load_sessions

    if (plan := load_sessions(folder)) is not None:
        _measure(plan, progress, [runs.trusted_config(folder, allowed)])


def _measure(plan: Sessions, progress: ProgressStyle, configs: Sequence[RunConfig]) -> NoReturn:
    from bench.extras.sessions.sessions import measure_sessions
    from bench.plan.code import code_paths

    with options.choose(progress) as shown:
        code = int(measure_sessions(plan, shown, progress, code_paths(configs)))
    if not plan.missing:
        code = max(code, _print_pool([str(plan.folder)], plan.folder, plan.folder))
    raise typer.Exit(code)


def _print_pool(runs: list[str], parent: Path, folder: Path) -> int:
    """Pool runs, write the table to a folder, print it, and return the exit code."""
    from bench.extras.sessions import pooled

    sessions = pooled.load_pool(runs, parent)
    files = pooled.write_pool(sessions, folder)
    code = pooled.print_pool(sessions, options.console())
    typer.echo("  ".join(map(str, files)))
    return int(code)
