"""Define the verb `bench export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli import options
from bench.cli.read import PANEL
from bench.errors import UsageError, as_error

app = typer.Typer()
_Format = Literal["github-action-benchmark", "csv", "parquet"]
_Service = Literal["acceptance", "mlflow", "reference", "peft"]


@app.command(rich_help_panel=PANEL)
def export(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN", help="A run or `latest`; for peft an adapter folder.")
    ],
    to: Annotated[Literal[_Format, _Service], typer.Option("--to", help="Format.")],
    folder: Annotated[Path | None, typer.Option(help="[default: in RUN/export]")] = None,
    figures: Annotated[
        list[str] | None,
        typer.Option("--figure", metavar="NAME", help="reference: a figure to keep. Repeatable."),
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Export a run to another tool, a tracker or a repository, or an adapter to PEFT."""
    from bench.extras.exports.export import export as write
    from bench.records.files import refuse_links
    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings

    if figures and to != "reference":
        raise UsageError(f"--figure is for --to reference, not for {to}; leave it out")
    if to == "peft":
        from decoders.extras.library.peft import to_peft

        adapter = Path(run_dir).expanduser()
        target = folder or adapter / "export" / "peft"
        if folder is None:
            refuse_links(adapter, target)
        for path in target.glob("*"):
            refuse_links(target, path)
        with as_error(UsageError):
            files = to_peft(adapter, target)
        for file in files:
            typer.echo(file)
        return
    findings = Findings(load_run(find_run(run_dir, output)))
    for written in write(findings, to, folder, figures or ()):
        typer.echo(written)
    for line in findings.validity.reasons:
        typer.echo(f"bench: {findings.name} is {findings.verdict}: {line}", err=True)
