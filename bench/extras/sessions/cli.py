"""Define the verb `bench pool`, and the sessions of `bench run --sessions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bench.cli import options
from bench.cli.read import PANEL, TOGETHER
from bench.errors import Exit

if TYPE_CHECKING:
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
    """Measure a configuration in new processes, pool them, and exit with the worst code.

    Args:
        config: the job.
        num: number of sessions, a process each.
        every: minimum number of minutes from the start of a session to the next one's.
        output: the parent of the folder of the sessions.
        progress: style of the progress, also of the sessions' own.
    """
    from bench.extras.sessions.sessions import make_folder, measure_sessions, num_ended

    folder = make_folder(config, output)
    with options.choose(progress) as shown:
        code = int(measure_sessions(config, num, every, folder, shown, progress))
        if num_ended(folder) < num:
            shown.note(f"all measurements are kept: bench pool {folder}")
            raise typer.Exit(code or int(Exit.FAILED))
    raise typer.Exit(max(code, _print_pool([str(folder)], folder, folder)))


def _print_pool(runs: list[str], parent: Path, folder: Path) -> int:
    """Pool runs, write the table to a folder, print it, and return the exit code."""
    from bench.extras.sessions import pooled

    sessions = pooled.load_pool(runs, parent)
    files = pooled.write_pool(sessions, folder)
    code = pooled.print_pool(sessions, options.console())
    typer.echo("  ".join(map(str, files)))
    return int(code)
