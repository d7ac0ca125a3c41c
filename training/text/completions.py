"""Sample completions from the teacher by the repository's own baseline, as training rows.

The sampled text depends on the seed and on the prompt's ids. To draw different texts from equal
prompts, the scheduler gets each completion's number in place of the prompt's first id, and
`_NumberedAR` restores the id before the model sees it. Uniforms, merged calls and the cut at a stop
token are as in any run.

At temperature 0 each prompt has only one completion. Further greedy completions continue random
beginnings of sampled completions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.progress import Progress
from decoders.ar import Autoregressive
from decoders.core.decoder import Request, Steps
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel, stop_ids
from decoders.core.types import Outcome, Sampling
from training.text.data import Row
from training.workers import wait_for_all, worker

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlan:
    """Hold the total number of completions over all prompts and temperatures, and the sampling.

    `max_new_tokens` includes the stop token. Completions are spread evenly over `temperatures`.
    """

    num_completions: int = 2000
    max_new_tokens: int = 256
    temperatures: tuple[float, ...] = (1.0,)
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("num_completions", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or above")
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(
                f"temperatures are {list(self.temperatures)}; give one or more different ones"
            )
        for temperature in self.temperatures:
            self.sampling(temperature, frozenset())

    def sampling(self, temperature: float, stops: frozenset[int]) -> Sampling:
        """Return the scheduler's settings for completions at one temperature."""
        return Sampling(
            temperature=temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop_ids=stops,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Hold one completion: its number in the plan, its prompt, and the teacher's tokens."""

    number: int
    temperature: float
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    def row(self, *, tempered: bool) -> Row:
        """Return a row that learns the completion, with its temperature if `tempered`."""
        learn = [False] * len(self.prompt) + [True] * len(self.tokens)
        temperature = self.temperature if tempered else None
        return Row([*self.prompt, *self.tokens], learn, temperature)

    def line(self) -> str:
        """Return the completion as one line of the file."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")) + "\n"


def read_completions(path: Path) -> dict[int, Completion]:
    """Return the completions of a file by number, without a last line that was cut off."""
    if not path.exists():
        return {}
    completions = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            ids = {name: tuple(fields[name]) for name in ("prompt", "tokens")}
            completions[fields["number"]] = Completion(**{**fields, **ids})
    return completions


def write_completions(path: Path, completions: Iterable[Completion]) -> None:
    """Replace the file with these completions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text("".join(c.line() for c in completions), encoding="utf-8")
    scratch.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Hold the model from which completions are sampled.

    `name` identifies its weights, e.g. by their SHA-256. `open` loads the model; it is called only
    if completions are missing. `shown` displays the number of sampled completions.
    """

    name: str
    open: Callable[[], HFModel]
    shown: Progress = field(default_factory=Progress)

    @classmethod
    def at(cls, path: str, device: torch.device, shown: Progress) -> Teacher:
        """Return a teacher that loads a checkpoint in float32."""
        return cls(
            name=weights_sha256(path) or path,
            open=lambda: HFModel.load(path, dtype=torch.float32, device=device),
            shown=shown,
        )


def sampled_rows(
    teacher: Teacher,
    tokenizer: Any,
    plan: CompletionPlan,
    folder: Path,
    *,
    max_tokens: int,
    prompts: Sequence[Sequence[int]] | None = None,
    tempered: bool = False,
) -> list[Row]:
    """Return the teacher's completions as rows, in which prompts are not learnt.

    Args:
        teacher: model to sample from.
        tokenizer: the teacher's.
        plan: number, length and sampling of completions.
        folder: folder of completions, which are sampled if they are not in it.
        max_tokens: limit of a row; prompts that leave no room for a completion are skipped.
        prompts: ids of prompts; None: only the BOS token.
        tempered: let rows have the temperature of their completion.

    Raises:
        ValueError: no prompt fits, the completions cannot all differ, or no text can begin (no
            prompts and no BOS token).
    """
    if prompts is None:
        if tokenizer.bos_token_id is None:
            raise ValueError("tokenizer without BOS token: give prompts by --data on-policy=FILE")
        prompts = [[tokenizer.bos_token_id]]
    room = max_tokens - plan.max_new_tokens
    fitting = [tuple(prompt) for prompt in prompts if 1 <= len(prompt) <= room]
    if not fitting:
        raise ValueError(
            f"none of {len(prompts)} prompts fits: max_tokens {max_tokens} less max_new_tokens "
            f"{plan.max_new_tokens} leaves {max(room, 0)} tokens; lower max_new_tokens"
        )
    completions = _sample(teacher, tokenizer, fitting, plan, folder)
    return [completion.row(tempered=tempered) for completion in completions]


def stored_rows(path: str, vocab_size: int, max_tokens: int) -> list[Row]:
    """Return the rows of all completion files that match the pattern `path`.

    Each row has its sampling temperature; rows longer than `max_tokens` are skipped.
    """
    pattern = Path(path).expanduser()
    files = [pattern] if pattern.is_file() else []  # its name may hold brackets
    files = files or sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    if not files:
        raise ValueError(f"path {path!r} of [data] names no file; give one, or a pattern of it")
    rows: list[Row] = []
    for file in files:
        try:
            completions = list(read_completions(file).values())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} holds no completions ({error})") from error
        new = [completion.row(tempered=True) for completion in completions]
        highest = max((max(row.ids) for row in new), default=0)
        if highest >= vocab_size:
            raise ValueError(
                f"{file} holds token {highest}, the model's vocabulary has {vocab_size}; "
                "the completions must be the model's own"
            )
        rows += new
    return [row for row in rows if len(row.ids) <= max_tokens]


def _sample(
    teacher: Teacher, tokenizer: Any, prompts: Sequence[Ids], plan: CompletionPlan, folder: Path
) -> list[Completion]:
    """Return all completions of a plan in the order of their numbers.

    Each completion is written to a file in `folder` when it ends, so a stopped run can resume.
    Among workers only the first samples. Prompts take turns. If the only temperature is 0 and there
    are fewer prompts than completions, raise `ValueError`.
    """
    distinct, total = list(dict.fromkeys(prompts)), plan.num_completions
    if not any(plan.temperatures) and total > len(distinct):
        raise ValueError(
            f"at temperature 0 each of {len(distinct)} prompts has one text, and num_completions "
            f"is {total}: lower it, give more prompts, or add a temperature above 0"
        )
    settings = dataclasses.asdict(plan)
    del settings["batch_size"]  # which decides no text
    text = json.dumps([teacher.name, distinct, settings], sort_keys=True)
    path = folder / f"completions-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    done = read_completions(path)
    if worker()[0] == 0 and len(done) < total:
        write_completions(path, done.values())  # drops an incomplete last line
        with path.open("a", encoding="utf-8") as file:

            def keep(completion: Completion) -> None:
                done[completion.number] = completion
                file.write(completion.line())
                file.flush()
                teacher.shown.step()

            teacher.shown.start("sampling answers", total, len(done))
            model, (jobs, continued) = teacher.open(), _jobs(distinct, plan)
            stops, missing = stop_ids(model, tokenizer), {*range(total)} - done.keys()
            # first above temperature 0, then greedy, then continued
            for temperature in sorted(set(plan.temperatures), reverse=True):
                part = {n: jobs[n][1] for n in jobs if jobs[n][0] == temperature and n in missing}
                _run(model, part, plan.sampling(temperature, stops), plan.batch_size, keep)
            sampled = [done[number] for number, (temperature, _) in jobs.items() if temperature]
            beginnings = {n: _beginning(sampled, plan, n) for n in continued if n in missing}
            greedy = plan.sampling(0.0, stops)
            rest = dataclasses.replace(greedy, max_new_tokens=-(-plan.max_new_tokens // 2))
            _run(model, beginnings, rest, plan.batch_size, keep)
    wait_for_all()
    done = read_completions(path)
    return [done[number] for number in range(total)]


def _jobs(
    prompts: Sequence[Ids], plan: CompletionPlan
) -> tuple[dict[int, tuple[float, Ids]], list[int]]:
    """Return temperature and prompt by number, and the numbers that continue sampled completions.

    Prompts take turns. Each cycles through the temperatures, starting one later than its neighbour.
    """
    jobs: dict[int, tuple[float, Ids]] = {}
    continued: list[int] = []
    greedy: set[Ids] = set()
    for number in range(plan.num_completions):
        turn, index = divmod(number, len(prompts))
        temperature = plan.temperatures[(turn + index) % len(plan.temperatures)]
        prompt = prompts[index]
        if temperature == 0 and prompt in greedy:
            continued.append(number)
        else:
            jobs[number] = (temperature, prompt)
            if temperature == 0:
                greedy.add(prompt)
    return jobs, continued


def _beginning(sampled: Sequence[Completion], plan: CompletionPlan, number: int) -> Ids:
    """Return a prompt and a random beginning of its completion, at most half `max_new_tokens`."""
    rng = random.Random(f"beginning {plan.seed} {number}")
    example = rng.choice(sampled)
    max_length = min(len(example.tokens) - 1, plan.max_new_tokens // 2)  # exclude the stop token
    return example.prompt + example.tokens[: rng.randint(min(1, max_length), max_length)]


def _run(
    model: HFModel,
    prompts: Mapping[int, Ids],
    sampling: Sampling,
    batch_size: int,
    keep: Callable[[Completion], None],
) -> None:
    decoder = _NumberedAR(firsts={number: prompt[0] for number, prompt in prompts.items()})
    # group prompts of similar length, because the longest one decides the size of the cache
    ordered = sorted(prompts, key=lambda number: len(prompts[number]))
    size = 4 * batch_size  # prompts that share one KV cache
    for first in range(0, len(ordered), size):
        numbers = ordered[first : first + size]

        def finish(index: int, outcome: Outcome, numbers: Sequence[int] = numbers) -> None:
            if isinstance(outcome, Exception):
                raise outcome
            number, tokens, temperature = numbers[index], outcome.tokens, sampling.temperature
            prompt = prompts[number]
            keep(Completion(number=number, temperature=temperature, prompt=prompt, tokens=tokens))

        keys = [(number, *prompts[number][1:]) for number in numbers]
        Scheduler(decoder, Models(target=model), sampling, batch_size).run(keys, on_finish=finish)


@dataclass(frozen=True, kw_only=True)
class _NumberedAR(Autoregressive):
    """Decode (AR) prompts whose first id is a number that `firsts` maps to the true id.

    It draws several texts from one prompt. It is not a registered decoder.
    """

    firsts: Mapping[int, int]

    def steps(self, request: Request) -> Steps:
        """Run AR on the prompt with its true first id."""
        number, *rest = request.prompt_ids
        text = (self.firsts[number], *rest)
        return super().steps(dataclasses.replace(request, prompt_ids=text))
