"""Configure a run by `RunConfig`, from defaults, a TOML file and the command line.

The command line overrides the file, and the file overrides the defaults. An unknown key is an
error. The resolved configuration, ``config.toml`` in the run folder, describes the same run.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, field_validator

from bench.errors import UsageError, did_you_mean
from bench.settings import bounds
from bench.settings.protocol import SPECBENCH, published
from bench.settings.setting import PANELS, parse_arguments, parse_models, parse_pairs, setting
from decoders.core import registry
from decoders.core.types import DecoderSpec
from specbench_tasks.task import EMBEDDED

ZOO = "zoo"
"""Name of the embedded default for `--model`, `--draft` and `--tasks`."""
_ZOO_LIMITS = {"limit": 24, "quality_limit": 20}
"""Defaults for the zoo's tasks: the main job must end within two minutes."""

Options = dict[str, str]
_AS_KEYS: Mapping[str, str] = MappingProxyType({})
Numerics = Literal["fast", "invariant"]
NUMERICS: tuple[Numerics, ...] = get_args(Numerics)
FAST: Numerics = "fast"
INVARIANT: Numerics = "invariant"

_compared, _amount, _sampling, _devices, _results = (partial(setting, panel=p) for p in PANELS)


class RunConfig(BaseModel):
    """All settings that determine what a run measures.

    None means that the value is chosen once the models are open. A field declares everything about
    a setting: type and bounds, default, help and heading of its option, and below the field the
    text that only the documentation of files has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    decoders: dict[bounds.Text, Options] | None = _compared(
        None, "NAME[@LABEL][:option=value]…, comma-separated.", "-d"
    )
    """A table maps each cell (NAME or NAME@LABEL) to its options as text; None: those of
    a named model, else every built-in decoder, whose requirements are met."""
    primary: bounds.Text | None = _compared(
        None, "Decoder of the primary comparison, or none. [default: the first]"
    )
    """All other speed-ups over the baseline are exploratory; with ``none``, all are."""
    baseline: bounds.Text | None = _compared(
        None, "Cell to which speed-ups refer. [default: ar; without ar, the first]"
    )
    """Tokens and likelihoods are always compared with ar's."""
    model: bounds.Text = _compared(ZOO, "Folder, file.gguf, hub id or name.", "-m")
    draft: bounds.Text | None = _compared(None, "Draft model. [default: the zoo's, for the zoo]")
    adapters: dict[bounds.Text, bounds.Text] = _compared(
        {}, "NAME=PATH; repeatable.", name="adapter", parse=parse_pairs
    )
    """A table maps an adapter's name to its folder, or to ``zoo`` for the embedded one."""
    models: dict[bounds.Text, bounds.Text] = _compared(
        {}, "Further models that decoders need by name, NAME=PATH; repeatable.", parse=parse_models
    )
    tasks: bounds.Text = _compared(
        ZOO, "zoo, families of it (qa,rag), specbench[=PATH], PATH, hf=ID, or gsm8k=PATH,….", "-t"
    )
    columns: dict[bounds.Text, bounds.Text] = setting(
        {}, "A table maps a prompt's fields to columns of a file or dataset."
    )
    split: Literal["tune", "test"] | None = _amount(
        None, "tune (to choose options by) or test (to report). [default: both]"
    )
    """It selects a part of the conversations (`specbench_tasks.registry.tuning_split`)."""
    limit: bounds.Count | None = _amount(None, "Conversations to time. [default: zoo 24]", "-L")
    quality_limit: bounds.Num = _amount(
        40, "Held-out prompts per family to score. [default: 40, zoo 20]"
    )
    """0: no quality pass."""
    phase_limit: bounds.Num = _amount(6, "Prompts to run again with instrumentation.")
    """Their time is split by phase; 0: none."""
    repeats: bounds.Repeats = _amount(3, "Timed answers per prompt.")
    batch_size: bounds.BatchSize = _amount(1, "Sequences per batch.")
    max_new_tokens: bounds.MaxNewTokens = _sampling(256, "Maximum tokens per answer.")
    temperature: bounds.Temperature = _sampling(0.0, "0 is greedy.")
    top_p: bounds.TopP = _sampling(1.0, "1 is off.")
    top_k: bounds.Num = _sampling(0, "0 is off.")
    seed: bounds.Seed = _sampling(0, "Repeat r uses seed + r.")
    law: bounds.Text | None = _sampling(
        None, "FILE.py:NAME of a law of the target's logits, e.g. a grammar. [default: none]"
    )
    """``NAME(tokenizer)`` is a function of an answer's ids so far and the logits after them
    (docs/interface.md)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = _devices(
        None,
        "float32, bfloat16 or float16. "
        "[default: bfloat16 on CUDA, or above 50M weights if the CPU has it; else float32]",
    )
    device: bounds.Text | None = _devices(None, "cpu, cuda, cuda:1. [default: cuda if available]")
    threads: bounds.Threads | None = _devices(None, "CPU threads. [default: cores]")
    compile: bool | None = _devices(
        None, "Compile calls, on a GPU to CUDA graphs. [default: on a CPU, where possible]"
    )
    """None: runs compile if they can (`bench.plan.compiling`)."""
    quantize: Literal["int8", "int4"] | None = _devices(
        None, "Pack weights to int8 or int4, on a CPU. [default: not packed]"
    )
    numerics: Numerics | None = _devices(
        None, "invariant: a row's bits depend only on its own text. [default: fast]"
    )
    """It selects how rows are computed (`bench.plan.numerics`)."""
    tile: Literal[8, 16, 32] | None = _devices(
        None, "Rows per product if invariant: 8, 16 or 32. [default: measured]"
    )
    pad_rows: bounds.Count | None = _devices(
        None, "Minimum rows of a GPU's captured calls. [default: 16 where that is cheap, else 1]"
    )
    """A row then has the same bits in calls of one and of up to as many rows."""
    reuse_prefix: bool = _devices(False, "Later turns reuse the KV cache of the turn before.")
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = _devices(
        None, "Place the target's layers on several devices by accelerate, e.g. auto."
    )
    self_check: bool = _devices(
        True, "First compare models with transformers' own forward pass. [default: self-check]"
    )
    """Every opened model is compared (`decoders.core.hf.self_check`)."""
    fixed_length: bool = _amount(False, "Ignore EOS: all answers are equally long.")
    timeout: bounds.Seconds | None = _amount(
        None, "Limit of seconds per answer. [default: 300, plus 5 per token]"
    )
    """The default is more than any working decoder needs (`bench.machine.deadline`)."""
    overlong: Literal["skip", "truncate"] = _amount(
        "skip", "Prompts longer than the context: skip or truncate."
    )
    template_args: dict[bounds.Text, JsonValue] = _amount(
        {},
        "NAME=VALUE for the chat template, e.g. enable_thinking=false; repeatable.",
        parse=parse_arguments,
    )
    date: bounds.Day | None = _amount(
        None, "Date for chat templates that write it. [default: today, UTC]"
    )
    """None: today, if the template asks (`bench.plan.template`)."""
    session: bounds.Count | None = _amount(None, "Number of a job's session: decides the order.")
    prompt_tokens: bounds.Count | None = _amount(
        None, "Pad (with other prompts) or cut every prompt to N tokens."
    )
    """It makes times and counts comparable between context lengths, and scores meaningless
    (`bench.plan.tokenise.to_length`)."""
    cost: bounds.Text | None = _results(
        None, "`bench cost` folder, for costs set to auto and for ar's limit."
    )
    """The run reports ar's share of the machine's limit."""
    protocol: Literal["specbench"] | None = _results(
        None, "specbench: Spec-Bench's questions, template and counting."
    )
    """It sets values not set otherwise (`bench.settings.protocol`)."""
    reference: str | None = _results(None, "Also show published numbers, e.g. specbench-a100-7b.")
    """The report prints them next to the run's (`bench.extras.sections.published`)."""
    run_name: bounds.RunName | None = _results(None, "Part of the run folder's name.")

    @field_validator("reference")
    @classmethod
    def _published(cls, value: str | None) -> str | None:
        if value is not None and value not in (names := published()):
            raise ValueError(f"no reference {value!r}; {did_you_mean(value, names)}")
        return value

    @field_validator("decoders", mode="before")
    @classmethod
    def _cells(cls, value: object) -> object:
        """Return a table of options as text, from a list of specs or from such a table."""
        if value is None:
            return None
        cells: dict[str, Options] = {}
        if isinstance(value, Mapping) and value:
            for cell, options in value.items():
                if not isinstance(options, Mapping):
                    raise ValueError(f"decoder {cell!r} needs a table of options, e.g. {{k = 4}}")
                written = {key: as_text(option) for key, option in options.items()}
                cells[cell] = dict(cell_spec(cell, written).options)
            return cells
        texts = [value] if isinstance(value, str) else value or []
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            raise ValueError("write decoders as NAME,NAME or as tables of options")
        specs = [spec for text in texts for spec in registry.parse_specs(text)]
        if not specs:
            raise ValueError("no decoder is named; write NAME,NAME, or leave it out for all")
        cells = {spec.cell: dict(spec.options) for spec in specs}
        if len(cells) < len(specs):
            names = [spec.cell for spec in specs]
            twice = next(spec for spec in specs if names.count(spec.cell) > 1)
            line = f"two cells are called {twice.cell!r}; give one a label of its own"
            raise ValueError(f"{line}: {twice.name}@LABEL")
        return cells

    @property
    def specs(self) -> tuple[DecoderSpec, ...]:
        """Named decoders, in order (empty if none is named)."""
        return tuple(cell_spec(cell, options) for cell, options in (self.decoders or {}).items())

    @property
    def hash(self) -> str:
        """Hash of the configuration: four hexadecimal digits."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:4]

    def to_toml(self) -> str:
        """Return TOML without keys that are None, which will resolve to the same values."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def with_values(self, **values: object) -> RunConfig:
        """Return a validated copy with some values replaced."""
        return _validated({**self.model_dump(exclude_unset=True), **values})


def cell_spec(cell: str, options: Mapping[str, str]) -> DecoderSpec:
    """Return the decoder spec of a cell (`ValueError` if it is not NAME[@LABEL])."""
    spec = registry.parse_spec(cell)
    return DecoderSpec(name=spec.name, label=spec.label, options={**spec.options, **options})


def load_config(
    file: Path | None, overrides: Mapping[str, object], names: Mapping[str, str] = _AS_KEYS
) -> RunConfig:
    """Return the configuration of a file, where the command line's values take precedence.

    Args:
        file: TOML file, or None.
        overrides: the command line's values; those that are None replace nothing.
        names: the user's names of overrides for errors, e.g. ``--top-p``.

    Raises:
        UsageError: a missing or malformed file, an unknown key, a value out of range.
    """
    changes = {key: value for key, value in overrides.items() if value is not None}
    values = {**(read_toml(file) if file is not None else {}), **changes}
    if values.get("protocol") == "specbench":
        values = {**SPECBENCH, **values}
    config = _validated(values, {key: names[key] for key in changes if key in names})
    if not {name.strip() for name in config.tasks.split(",")} <= EMBEDDED:
        return config
    missing = {key: value for key, value in _ZOO_LIMITS.items() if values.get(key) is None}
    return config.with_values(**missing)


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file (`UsageError` if it is unreadable or not TOML)."""
    if file.exists() and not file.is_file():  # never wait for a pipe
        raise UsageError(f"cannot read {file}: it is no ordinary file")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error


@cache
def stored_config() -> type:
    """Return a class whose fields have the types of a stored configuration's values.

    Only types and bounds count: options, references and machines may have changed since.
    """
    changed: dict[str, Any] = {"threads": bounds.Count, "decoders": dict[str, dict[str, Any]]}
    changed |= dict.fromkeys(("run_name", "reference"), str)
    kinds: dict[str, Any] = {
        key: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for key, field in RunConfig.model_fields.items()
    }
    fields = (kinds | changed).items()
    return make_dataclass("config", [(key, kind | None, None) for key, kind in fields])


def _validated(values: Mapping[str, Any], names: Mapping[str, str] = _AS_KEYS) -> RunConfig:
    unknown = [key for key in values if key not in RunConfig.model_fields]
    if unknown:
        hint = did_you_mean(unknown[0], RunConfig.model_fields)
        raise UsageError(f"unknown configuration key {unknown[0]!r}; {hint}")
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise UsageError(bounds.format_error(error, names)) from error


def as_text(value: object) -> str:
    """Return an option's value as written in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
