"""Train C-PTP from scratch on unlabelled text (inverse autoregressive), and an AR model.

Two models of the same size are trained one after the other, on the same rows in the same steps. The
AR model learns the next token of every row. So does C-PTP, because the context predicts a window's
first token. C-PTP also learns the later tokens of windows, given uniforms of its own distributions
(`training.inverse.windows`). ``OUTPUT/inverse.json`` compares the two models.
Source: PTP, arXiv 2512.21323, section 3 (inverse autoregressive training).

The comparison gives perplexities by slot n, on the same held-out windows: of the AR model given the
tokens before; of C-PTP given the context and the window's earlier *uniforms* (drawn from its own
intervals, averaged over draws); and the source's bound (`training.inverse.data`). The mean of
-log p over draws is an upper bound on the -log likelihood of C-PTP as a sampler (Jensen); Theorem 2
of PTP says that the bound is tight at the optimum. For acceptance, C-PTP drafts in one call, and
the AR model picks tokens with the same uniforms. A draft is accepted if it and all earlier drafts
equal the AR model's picks.

Letters: B rows, W windows of a row, N tokens of a window, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.inverse.data import Trips, TripSettings
from training.inverse.windows import (
    ModelSettings,
    Read,
    SlotTransformer,
    TextWindows,
    draw_text,
    picked,
)
from training.loop import Piece, fingerprint, muon_and_adamw
from training.recipe import Count, LoopTable, NotNegative, Rate, Recipe, Seed, Share
from training.reporter import TrainingProgress
from training.run import Build, JobContext, TrainingOptions, train_jobs
from training.workers import worker

SLOTS = (1, 2, 4, 8, 16)
EVAL_SEED = 20_512


def held_out_text(trips: Trips, rows: int, **sizes: int) -> list[TextWindows]:
    """Draw fixed held-out windows of `sizes` (see `draw_text`), split into parts of rows."""
    whole = draw_text(trips, np.random.default_rng(EVAL_SEED), rows=rows, **sizes)
    return [whole.part(slice(start, start + 32)) for start in range(0, rows, 32)]


@torch.no_grad()
def ar_nats(model: SlotTransformer, text: list[TextWindows]) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens given the tokens before."""
    return _nats(lambda windows: Read(model, windows).window_logits(), text)


@torch.no_grad()
def c_ptp_nats(model: SlotTransformer, text: list[TextWindows], draws: int) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens given the uniforms before.

    The values are averaged over `draws` sets of uniforms from the model's own intervals.
    """
    generator = torch.Generator().manual_seed(EVAL_SEED)
    nats = []
    for windows in text:
        total = torch.zeros(windows.noise.shape)
        for _ in range(draws):
            noise = torch.rand(windows.noise.shape, generator=generator, dtype=torch.float64)
            again = TextWindows(windows.ids, windows.starts, noise)
            total += _nats(lambda part: Read(model, part).explained()[1], [again]).view_as(total)
        nats.append(total / draws)
    return torch.cat(nats).flatten(0, 1)


def blind_nats(trips: Trips, text: list[TextWindows]) -> Tensor:
    """Return the bound of independent predictors on the same windows, ``[all windows, N]``."""
    return _nats(partial(_blind, trips), text)


@torch.no_grad()
def _acceptance(
    target: SlotTransformer, draft: SlotTransformer, trips: Trips, text: list[TextWindows]
) -> tuple[list[float], list[float]]:
    """Return P(the first n drafts equal the AR model's picks) for n = 1 … N.

    The first list is for C-PTP's drafts, the second for drafts of the best independent predictor
    (blind distributions, each token picked by its own u).
    """
    coupled, independent = [], []
    for windows in text:
        u = windows.noise  # any uniforms will do
        truth = Read(target, windows).rolled(u)
        coupled.append(Read(draft, windows).drafted(u) == truth)
        independent.append(picked(_blind(trips, windows), u) == truth)
    return _survival(coupled), _survival(independent)


def compare(
    ar: SlotTransformer, c_ptp: SlotTransformer, trips: Trips, text: list[TextWindows], draws: int
) -> dict[str, Any]:
    """Return all figures of ``inverse.json``.

    Args:
        ar: the AR model.
        c_ptp: the model that sees uniforms.
        trips: source of the text, for its bound.
        text: held-out windows.
        draws: number of sets of uniforms per window.
    """
    num_rows, num_slots = sum(len(part.ids) for part in text), text[0].noise.shape[2]
    blind = blind_nats(trips, text)
    ar_values, c_values = ar_nats(ar, text), c_ptp_nats(c_ptp, text, draws)
    coupled, independent = _acceptance(ar, c_ptp, trips, text)

    def figures(columns: slice) -> dict[str, float]:
        values, truth = c_values[:, columns], ar_values[:, columns]
        excess = values - truth
        # the error is over rows, because a row's windows overlap
        rows = excess.double().view(num_rows, -1).mean(1)
        return {
            "ar": _ppl(truth),
            "c_ptp": _ppl(values),
            "ratio": round(excess.mean().exp().item(), 5),
            "ratio_error": round(rows.std().item() / num_rows**0.5, 5),
            "blind": _ppl(blind[:, columns]),
        }

    return {
        "windows": len(c_values),
        "draws": draws,
        "perplexity": figures(slice(None)),
        "slots": {str(n): figures(slice(n - 1, n)) for n in SLOTS if n <= num_slots},
        "acceptance": {
            "survival": coupled,
            "leading": round(sum(coupled), 4),
            "independent_survival": independent,
            "independent_leading": round(sum(independent), 4),
        },
    }


def _nats(logits: Callable[[TextWindows], Tensor], text: list[TextWindows]) -> Tensor:
    """Return -log p ``[all windows, N]`` of the windows' tokens under logits ``[B, W, N, V]``."""
    parts = []
    for windows in text:
        tokens, flat = windows.tokens, logits(windows).flatten(0, 2)
        nats = F.cross_entropy(flat, tokens.flatten(), reduction="none")
        parts.append(nats.view(tokens.shape))
    return torch.cat(parts).flatten(0, 1)


def _blind(trips: Trips, windows: TextWindows) -> Tensor:
    """Return the log distributions ``[B, W, N, V]`` of the best independent predictor."""
    length = windows.noise.shape[2]
    distributions = trips.blind(windows.ids.numpy(), windows.starts.numpy(), length)
    return torch.from_numpy(distributions).log()


def _survival(right: list[Tensor]) -> list[float]:
    """Return the share of windows that are right up to each token, from masks ``[B, W, N]``."""
    leading = torch.cat(right).flatten(0, 1).long().cumprod(-1)
    shares = leading.double().mean(0).tolist()
    return [round(share, 5) for share in shares]


def _ppl(nats: Tensor) -> float:
    return round(nats.double().mean().exp().item(), 5)


MODELS = ("ar", "c-ptp")


class RunSettings(LoopTable):
    """[run]: `rows` rows per step (over all workers) of `length` symbols, with windows of slots.

    The context predicts the first of a window's `slots`. The final comparison has `final_rows`
    held-out rows, and `final_draws` sets of uniforms per window.
    """

    rows: Count = 16
    length: Count = 128
    windows: Count = 8
    slots: Count = 16
    warmup_steps: NotNegative = 50
    decay: Share = 0.5
    muon_lr: Rate = 0.01
    adamw_lr: Rate = 0.003
    seed: Seed = 1
    workers: Count = 2
    eval_steps: Count = 250
    eval_rows: Count = 32
    final_rows: Count = 512
    final_draws: Count = 4

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that `draw_text` takes."""
        return {"length": self.length, "windows": self.windows, "slots": self.slots}


class InverseRecipe(Recipe):
    """Hold the source that both models learn, their sizes, and their training."""

    source: TripSettings
    model: ModelSettings
    run: RunSettings


class InverseJob:
    """Train one of the two models on the source's rows."""

    def __init__(self, name: str, recipe: InverseRecipe, context: JobContext) -> None:
        """Set up a recipe. The AR model ignores the recipe's embedding of uniforms."""
        self.name, self.run, self.reporter = name, recipe.run, context.reporter
        self.trips = Trips(recipe.source)
        self.trained = SlotTransformer(recipe.model, self.trips.num_symbols)
        self.trained.uniforms.requires_grad_(name == "c-ptp")
        self.fingerprint = fingerprint(name, recipe.decisive())
        self._held_out = held_out_text(self.trips, self.run.eval_rows, **self.run.sizes)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for the layers' matrices, AdamW for all other weights."""
        matrices = self.trained.llama.model.layers.parameters()
        return muon_and_adamw(self.trained, matrices, self.run)

    def text(self, step: int) -> TextWindows:
        """Return this worker's part of a step's rows, which are the same for both models."""
        run, (rank, world) = self.run, worker()
        rng = np.random.default_rng([run.seed, step])
        whole = draw_text(self.trips, rng, rows=run.rows, **run.sizes)
        return whole.part(slice(rank, None, world))

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the loss of this worker's rows: of every token and, for C-PTP, of every slot."""
        windows = self.text(progress.step)
        read = Read(self.trained, windows)
        targets = windows.ids[:, 1:]
        loss = _summed(self.trained.head(read.hidden), targets)
        count = targets.numel()
        if self.name == "c-ptp":
            uniforms = read.explained()[0][..., :-1]
            loss = loss + _summed(read.slot_logits(uniforms), windows.tokens[..., 1:])
            count += uniforms.numel()
        yield loss, count, count

    def evaluate(self, progress: TrainingProgress) -> None:
        """Report held-out perplexity by slot (first worker only)."""
        if worker()[0]:
            return
        if self.name == "ar":
            nats = ar_nats(self.trained, self._held_out)
        else:
            nats = c_ptp_nats(self.trained, self._held_out, 1)
        values = [round(value, 4) for value in nats.mean(0).exp().tolist()]
        shown = [f"{values[n - 1]:.3f} at {n}" for n in SLOTS if n <= len(values)]
        line = f"perplexity {nats.mean().exp():.3f}; by slot {', '.join(shown)}"
        self.reporter.evaluation(progress, line, {"perplexity_by_slot": values})

    def export(self, folder: Path) -> None:
        """Write nothing, as the run's only output is the comparison of both models."""


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def train_both(tables: dict[str, Any], output: Path, **options: Unpack[TrainingOptions]) -> None:
    """Train both models of a recipe, and compare them."""
    recipe = InverseRecipe.of(tables)
    builds: dict[str, Build] = {name: partial(InverseJob, name) for name in MODELS}
    train_jobs(builds, recipe, output, options, after=partial(_compare, recipe, tables))


def _compare(
    recipe: InverseRecipe, tables: dict[str, Any], output: Path, models: Mapping[str, Any]
) -> None:
    trips, run = Trips(recipe.source), recipe.run
    held_out = held_out_text(trips, run.final_rows, **run.sizes)
    compared = compare(models["ar"], models["c-ptp"], trips, held_out, run.final_draws)
    text = json.dumps({**compared, "recipe": tables}, indent=2) + "\n"
    (output / "inverse.json").write_text(text, encoding="utf-8")
