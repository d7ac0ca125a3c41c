"""Answer lm-eval's own tasks with one of our decoders (`bench eval`).

A folder ``results/eval-DECODER-UTC`` keeps ``config.toml``, every answer as soon as it is complete
(``answers.jsonl``), lm-eval's ``results.json`` and its ``samples_TASK.jsonl``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, UnavailableError, UsageError, optional
from bench.progress import Progress
from bench.records.files import append_text, write_text
from bench.records.run_folder import CONFIG, create_run_dir
from bench.settings.config import RunConfig
from decoders.core.nearest import nearest

if TYPE_CHECKING:
    from bench.plan.setup import Opener

ANSWERS, RESULTS = "answers.jsonl", "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """Request tasks or groups from lm-eval, and a `folder` with the user's own task files.

    `limit` counts documents per task, `num_fewshot` examples before each; `plain` leaves out the
    chat template; `sampling` has options, by lm-eval's names, that override the task's.
    """

    tasks: Sequence[str]
    folder: Path | None = None
    limit: int | None = None
    num_fewshot: int | None = None
    plain: bool = False
    sampling: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Hold lm-eval's results, their folder, and notes about them."""

    results: Mapping[str, Any]
    folder: Path
    notes: Sequence[str]

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return task, metric, answer filter, and value with standard error, all as text."""
        rows = []
        for task, scores in (self.results.get("results") or {}).items():
            for name, value in scores.items():
                metric, comma, kind = name.partition(",")
                if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                    continue
                error = scores.get(f"{metric}_stderr,{kind}")
                spread = f" ± {error:.4f}" if isinstance(error, float) else ""
                rows.append((task, metric, kind, f"{value:.4f}{spread}"))
        return rows


def evaluate(
    config: RunConfig,
    request: EvalRequest,
    parent: Path,
    progress: Progress,
    opener: Opener | None = None,
) -> Evaluation:
    """Answer tasks with one decoder, and let lm-eval score the answers.

    Args:
        config: names the decoder, the only one, and its models.
        request: the tasks, and the options that override theirs.
        parent: where the new folder is made.
        progress: shows a step for each answer; the caller closes it.
        opener: opens the models; None: those that `config` names.

    Raises:
        BenchError: lm_eval or data are missing (exit 5); the task is unknown, no decoder can answer
            it, or `config` does not name exactly one decoder (2); or an answer failed (1).
    """
    harness = optional("lm_eval", "eval", "bench eval")
    cells = list(config.decoders or {})
    if len(cells) != 1:
        raise UsageError(f"--decoder names {len(cells)} decoders; evaluate them one at a time")
    cell = cells[0]
    tasks = _known_tasks(request)
    from bench.extras.lm_eval.model import DecoderLM
    from bench.plan.checks import check_first
    from bench.plan.make import batch_size
    from bench.plan.setup import open_setup

    run = check_first(config, progress.note, brings_models=opener is not None, reads_tasks=False)
    setup = (opener or open_setup)(run)
    is_set = "batch_size" in config.model_fields_set
    templated = bool(setup.tokenizer.chat_template) and not request.plain
    stem = f"eval-{cell.partition(':')[0].replace('/', '-')}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = create_run_dir(parent, stem, {CONFIG: setup.config.to_toml().encode()})
    progress.note(f"writing to {folder}")

    def write(answer: Mapping[str, Any]) -> None:
        append_text(folder / ANSWERS, json.dumps(answer, ensure_ascii=False) + "\n")

    model = DecoderLM(
        setup,
        cell,
        templated=templated,
        batch_size=config.batch_size if is_set else batch_size(setup),
        write=write,
        progress=progress,
    )
    try:
        results = harness.simple_evaluate(
            model=model,
            tasks=list(request.tasks),
            task_manager=tasks,
            num_fewshot=request.num_fewshot,
            limit=request.limit,
            gen_kwargs=dict(request.sampling) or None,
            apply_chat_template=templated,
            log_samples=True,
        )
    except BenchError:
        raise
    except Exception as error:  # third-party tasks and data may raise anything
        raise UnavailableError(f"lm-eval: {type(error).__name__}: {error}"[:500]) from error
    facts = {"decoder": cell, "chat_template": templated, "models": asdict(setup.facts)}
    kept = {name: value for name, value in results.items() if name != "samples"}
    text = json.dumps({**kept, "decoding_bench": facts}, indent=1, default=str)
    write_text(folder / RESULTS, text + "\n")
    for task, samples in (results.get("samples") or {}).items():
        lines = [json.dumps(sample, ensure_ascii=False, default=str) for sample in samples]
        write_text(folder / f"samples_{task}.jsonl", "".join(line + "\n" for line in lines))
    notes = [] if not model.num_cut else [f"prompts left-truncated to fit: {model.num_cut}"]
    if cell != setup.baseline and setup.arms[cell].cell.guarantee == "none":
        notes.append(f"{cell} is not lossless: these are its scores, not the model's")
    return Evaluation(results=results, folder=folder, notes=notes)


def _known_tasks(request: EvalRequest) -> Any:
    """Return lm-eval's task index, or refuse a request whose tasks are not all in it."""
    if request.folder is not None and not request.folder.is_dir():
        raise UsageError(f"--include {request.folder}: there is no such folder")
    folder = None if request.folder is None else str(request.folder)
    manager = importlib.import_module("lm_eval.tasks").TaskManager(include_path=folder)
    if not request.tasks:
        raise UsageError("no task is named; lm-eval ls tasks lists them")
    for name in request.tasks:
        if name not in manager.all_tasks:
            hint = f"{nearest(name, manager.all_tasks)}lm-eval ls tasks lists them"
            raise UsageError(f"lm-eval has no task {name!r}; {hint}")
    return manager
