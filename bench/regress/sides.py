"""One side of a comparison: a run folder, or a stored reference, which has no records.

A reference (``results/reference/NAME``) keeps a run's summary.csv, env.json, config.toml and
run.json. Its prompts cannot be checked one by one: they are taken to be the same where everything
that chooses them is. No torch here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config import as_text
from bench.errors import BenchError, Exit
from bench.plan import SAME_TOKENS, SECOND_BASELINE, WRONG, guarantees
from bench.records import SampleRecord
from bench.rundir import CONFIG, ENV, STATUS, find_run, load_run
from bench.scores import Gold, gold_answers
from bench.summary import ALL
from bench.validity import VALID, judge, wrong_cells

SUMMARY = "summary.csv"
PAIR = "ab"
"""Key of run.json: runs with the same value were measured interleaved by `bench ab`."""
REVISION = "revision"
"""Key of run.json: the git revision that `bench ab` was asked to check out."""
SHORT = 9
"""Digits of a commit that are shown."""
_LAW = ("temperature", "top_p", "top_k", "max_new_tokens", "fixed_length")
"""What decides the answers to a prompt, beside the decoder (and the seed, when sampling)."""
_PROMPTS = ("tasks", "columns", "limit", "overlong", "seed")
"""What chooses the prompts."""
_SHAPE = ("architecture", "layers", "hidden_size", "vocab_size", "parameters")
"""What a run records of a model beside the hash of its weights."""
FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run as a comparison sees it; exactly one of `records` and `summary` is there.

    `cells` maps each decoder to its options as text; `same_as_ar` holds those that promise the
    baseline's very tokens (a reference keeps no promises: those that kept to them throughout).
    `passes` are those planned (``timing``, ``quality``); `planned` holds the cells as the
    manifest has them. `verdict` is the run's, with its `reasons`.
    """

    path: Path
    config: Mapping[str, Any]
    env: Mapping[str, Any]
    status: Mapping[str, Any]
    cells: Mapping[str, Mapping[str, str]]
    same_as_ar: frozenset[str] = frozenset()
    passes: frozenset[str] = frozenset()
    records: tuple[SampleRecord, ...] | None = None
    summary: pd.DataFrame | None = None
    gold: Gold | None = None
    planned: tuple[Mapping[str, Any], ...] = ()
    verdict: str = VALID
    reasons: tuple[str, ...] = ()

    @property
    def wrong(self) -> list[str]:
        """Cells that claim to be lossless and are not."""
        return wrong_cells(self.status)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def code(self) -> str | None:
        """The code it was measured with: short commit, branch or revision; None: nobody knows."""
        git = self.env.get("git") or {}
        if not git.get("commit"):
            return None
        where = self.status.get(REVISION) or git.get("branch")
        text = str(git["commit"])[:SHORT] + (f" ({where})" if where else "")
        return f"{text} with uncommitted changes" if git.get("dirty") else text

    @property
    def key(self) -> str | None:
        """The comparability key of its machine and setup."""
        return self.env.get("comparability_key")

    @property
    def dtype(self) -> str:
        """The precision of weights and cache."""
        return str(self.env.get("dtype", FLOAT32))

    def num_wrong(self, cell: str) -> int | None:
        """Answers in which a cell left the baseline's promised tokens without a near-tie.

        None where nobody looked: nothing was promised, or the run did not come to it.
        """
        found = self._difference(cell)
        if found is not None:
            return found.get("num_wrong")
        return 0 if "differences" in self.status and cell in self.same_as_ar else None

    def near_ties_alone(self, cell: str) -> bool:
        """Whether a cell left the baseline's tokens, and at near-ties only."""
        found = self._difference(cell)
        return found is not None and found.get("num_wrong") == 0

    def _difference(self, cell: str) -> Mapping[str, Any] | None:
        found = [d for d in self.status.get("differences") or () if d.get("cell") == cell]
        return found[0] if found else None


def load_side(name: str, parent: Path) -> Side:
    """A run by path, name or ``latest``, or a folder of a stored reference.

    Errors: `BenchError` where there is neither (exit 2), or a file is damaged (4).
    """
    folder = Path(name)
    if (folder / SUMMARY).is_file() and not (folder / "manifest.json").is_file():
        return _reference(folder)
    run = load_run(find_run(name, parent))
    planned = [c for c in run.manifest.get("cells", ()) if c["cell"] != SECOND_BASELINE]
    prompts = run.manifest.get("prompts", ())
    claims, validity = guarantees(run.manifest), judge(run)
    return Side(
        path=run.path,
        config=run.config,
        env=run.env,
        status=run.status,
        cells={c["cell"]: _texts(c.get("options") or {}) for c in planned},
        same_as_ar=frozenset(c["cell"] for c in planned if claims[c["cell"]] == SAME_TOKENS),
        planned=tuple(planned),
        verdict=validity.verdict,
        reasons=validity.reasons,
        passes=frozenset(p for prompt in prompts for p in prompt.get("passes", ())),
        records=run.records,
        gold=gold_answers(run.path, run.manifest),
    )


def _reference(folder: Path) -> Side:
    try:
        config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        env = json.loads((folder / ENV).read_text(encoding="utf-8"))
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        summary = pd.read_csv(folder / SUMMARY)
    except FileNotFoundError as error:
        line = f"{folder} is neither a run nor a reference: {Path(error.filename).name} is missing"
        raise BenchError(line, Exit.USAGE) from error
    except ValueError as error:
        raise BenchError(f"{folder} is damaged: {error}", Exit.INVALID) from error
    wrong = wrong_cells(status)
    if "guarantee" not in summary:  # one of an older version
        summary["guarantee"] = None
        summary["calls_per_step"] = summary["acceptance_length"] / summary["tpf"]
    summary.loc[summary["decoder"].isin(wrong), "guarantee"] = WRONG
    decoders: dict[str, dict[str, Any]] = config.get("decoders") or {}
    measured = list(dict.fromkeys(summary["decoder"]))
    overall = summary[summary["family"] == ALL]
    exact = overall[overall["identical_to_ar"] == 1]["decoder"]
    return Side(
        path=folder,
        config=config,
        env=env,
        status=status,
        cells={cell: _texts(decoders.get(cell, {})) for cell in measured},
        same_as_ar=frozenset(exact),
        summary=summary,
        verdict=WRONG if wrong else str(status.get("verdict") or VALID),
        reasons=tuple(map(str, status.get("reasons") or ())),
    )


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {key: as_text(value) for key, value in options.items() if value is not None}


# ---------------------------------------------------------------- two of them


def unlike(base: Side, head: Side) -> list[str]:
    """Why two runs are not about the same thing, one line each; empty where they are."""
    stored = base.records is None or head.records is None
    decisive = (*_LAW, *(_PROMPTS if stored else ()))
    if base.config.get("temperature"):
        decisive = (*dict.fromkeys((*decisive, "seed")), *(("repeats",) if stored else ()))
    lines = [
        f"{key} is {base.config[key]} in base and {head.config[key]} in head"
        for key in decisive
        if key in base.config and key in head.config and base.config[key] != head.config[key]
    ]
    return [*lines, *_other_target(base, head)]


def _other_target(base: Side, head: Side) -> list[str]:
    """Why the targets are two models: by their weights, or by name and shape where a hash lacks."""
    facts = [(side.env.get("models") or {}).get("target") or {} for side in (base, head)]
    hashes = [known.get("weights_sha256") for known in facts]
    if all(hashes):
        return ["the target model is another one"] if hashes[0] != hashes[1] else []
    old, new = (
        {"name": side.config.get("model")} | {what: known.get(what) for what in _SHAPE}
        for side, known in zip((base, head), facts, strict=True)
    )
    return [
        f"the target model is another one: {what} is {old[what]} in base and {new[what]} in head"
        for what in old
        if None not in (old[what], new[what]) and old[what] != new[what]
    ]


def held_to_ar(base: Side, head: Side) -> frozenset[str]:
    """The cells of head whose answers are demanded to be the baseline's: base's promise decides.

    A decoder cannot give a promise up unnoticed. Of a stored base head's promises count besides, as
    near-ties may hide those of base.
    """
    return base.same_as_ar | (head.same_as_ar if base.summary is not None else frozenset())


def half_precision(base: Side, head: Side) -> str | None:
    """The dtype of a side that is not float32, where equality is measured and proves nothing."""
    return next((side.dtype for side in (base, head) if side.dtype != FLOAT32), None)


def same_machine(base: Side, head: Side) -> bool:
    """Whether machine and setup are of one kind: their comparability keys are known and equal."""
    return base.key is not None and base.key == head.key


def interleaved(base: Side, head: Side) -> bool:
    """Whether both were measured together by `bench ab`."""
    pair = base.status.get(PAIR)
    return pair is not None and pair == head.status.get(PAIR)


def changes(base: Side, head: Side) -> list[str]:
    """What else differs between two comparable runs, one line each: it is told, not judged."""
    lines = []
    if base.key != head.key:
        lines.append(f"comparability key: {base.key} -> {head.key}")
    for what, read in (("", _settings), ("", _models), ("package ", _packages)):
        old, new = read(base), read(head)
        lines += [
            f"{what}{key}: {old.get(key)} -> {new.get(key)}"
            for key in dict.fromkeys([*old, *new])
            if old.get(key) != new.get(key)
        ]
    return lines


def option_changes(base: Side, head: Side, cell: str) -> list[str]:
    """The changed options of one decoder, as ``k: 4 -> 5``."""
    old, new = base.cells.get(cell, {}), head.cells.get(cell, {})
    return [
        f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _settings(side: Side) -> dict[str, Any]:
    left_out = ("decoders", "run_name", "adapters")
    return {key: value for key, value in side.config.items() if key not in left_out}


def _models(side: Side) -> dict[str, Any]:
    """Hashes of the weights by model, shortened."""
    return dict(_hashes(side.env.get("models") or {}, ""))


def _hashes(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _hashes(value, f"{prefix}{key}.")
        elif key == "weights_sha256" and value:
            kind, colon, digits = str(value).rpartition(":")
            yield f"{prefix}{key}", f"{kind}{colon}{digits[:12]}"


def _packages(side: Side) -> dict[str, Any]:
    return dict(side.env.get("packages") or {})
