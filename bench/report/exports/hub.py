"""`bench export --to hub`: a run as a dataset of the Hugging Face hub, in a folder ready to upload.

``README.md`` is the dataset card: its front matter names the tables, so that the hub's viewer and
`datasets.load_dataset` find them (https://huggingface.co/docs/hub/datasets-cards). The dataset has
no texts or ids of prompts and answers, because a run does not know who owns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.errors import BenchError, UnavailableError, optional
from bench.records.frames import parquet_bytes
from bench.report.exports.answers import answers
from bench.report.findings import Findings
from bench.report.page.render import render
from bench.text import portable

_TABLES = (
    ("summary", "data/summary.parquet", "a row per decoder and family, and one for all families"),
    ("answers", "data/answers.parquet", "a row per answer: what was counted and timed"),
    ("by_prompt", "data/by_prompt.parquet", "what speed-ups are means of, per decoder and prompt"),
)
"""Tables of the viewer (name, file, content), default first; readers expect one file type."""
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
"""The hub's size categories, each with its upper limit in rows."""
_LARGEST = "1M<n<10M"


def dataset(findings: Findings, licence: str | None, repo: str | None) -> dict[str, bytes]:
    """Return the files of the folder, including figures of the run's report.

    `licence` is an identifier of the hub such as ``cc-by-4.0``; `repo` (``OWNER/NAME``) is used in
    the card's example.
    """
    frame = answers(findings.run.records)
    frame["error"] = [portable(text) if text else text for text in frame["error"]]
    frames = (findings.summary, frame, findings.by_prompt)
    tables = {file: parquet_bytes(each) for (_, file, _), each in zip(_TABLES, frames, strict=True)}
    figures = _figures(findings.run.path)
    card = render(
        "dataset_card.md.j2",
        r=findings,
        front=_front_matter(findings, len(frame), licence),
        tables=_TABLES,
        figures=sorted(figures),
        repo=repo or "OWNER/NAME",
    )
    return {"README.md": card, **tables, **figures}


def _front_matter(findings: Findings, num_rows: int, licence: str | None) -> str:
    """Return the card's YAML: keywords of the hub, and the tables it shows."""
    size = next((name for top, name in _SIZES if num_rows < top), _LARGEST)
    data: dict[str, Any] = {
        "pretty_name": f"decoding-bench: {portable(findings.name)}",
        **({} if licence is None else {"license": licence}),
        "task_categories": ["text-generation"],
        "tags": ["benchmark", "decoding-bench", "speculative-decoding"],
        "size_categories": [size],
        "configs": [
            {
                "config_name": name,
                "data_files": [{"split": "train", "path": file}],
                **({"default": True} if name == _TABLES[0][0] else {}),
            }
            for name, file, _ in _TABLES
        ],
    }
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def _figures(run_dir: Path) -> dict[str, bytes]:
    files = sorted((run_dir / "figures").glob("*.png"))
    try:
        return {f"figures/{file.name}": file.read_bytes() for file in files}
    except OSError as error:
        raise BenchError(f"cannot read the figures of {run_dir}: {error.strerror}") from error


def upload(folder: Path, files: Sequence[Path], repo: str, message: str) -> str:
    """Commit files of a folder to a dataset repository, made private if new; return the URL.

    Raises:
        BenchError: no token (``HF_TOKEN``, ``hf auth login``) or package (exit 5); a refusal (1).
    """
    hub = optional("huggingface_hub", "hub", "export --to hub --repo")
    if hub.get_token() is None:
        line = f"no token for the Hugging Face hub, so nothing was sent to {repo}"
        advice = "set HF_TOKEN or `hf auth login`; the folder is written"
        raise UnavailableError(f"{line}; {advice}")
    api = hub.HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        commit = api.create_commit(
            repo_id=repo,
            repo_type="dataset",
            operations=[
                hub.CommitOperationAdd(file.relative_to(folder).as_posix(), str(file))
                for file in files
            ],
            commit_message=message,
        )
    except Exception as error:  # errors of the client, HTTP, names or files
        reason = f"{type(error).__name__}: {error}"
        line = f"the Hugging Face hub took nothing for {repo}: {reason}; the folder is written"
        raise BenchError(line) from error
    return str(commit.commit_url)
