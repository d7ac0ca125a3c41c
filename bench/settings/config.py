"""Configuration of a run: `RunConfig`, from defaults, a TOML file and the command line.

The command line overrides the file, and the file overrides the defaults. An unknown key is an
error. The resolved configuration, ``config.toml`` in the run folder, reproduces the run exactly.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from bench.errors import UsageError, did_you_mean
from bench.settings import bounds
from bench.settings.protocol import PRESETS, published
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


class RunConfig(BaseModel):
    """All settings that determine what a run measures; None: chosen once the models are open.

    `adapters` maps an adapter's name to its folder, or to ``zoo`` for the embedded adapter of that
    name. `decoders` maps a cell (NAME or NAME@LABEL) to its options as text; None selects every
    built-in decoder whose requirements are met. `primary` is the cell whose speed-up over the
    baseline is not exploratory, or ``none`` (None: the first named). `split` selects a part of the
    conversations (`specbench_tasks.registry.tuning_split`; None: all). `limit` is the number of
    conversations to time, `quality_limit` the number of held-out prompts per family to score (0: no
    quality pass), and `phase_limit` the number of prompts whose time is split by phase (0: none).
    `timeout` is the time limit of an answer in seconds (None: more than any honest decoder needs,
    see `bench.machine.deadline`). `prompt_tokens` gives every prompt this length
    (`bench.plan.tokenise.to_length`), to compare times and counts between context lengths; scores
    are then meaningless. `columns` maps a prompt's fields to columns of a file or dataset.
    `template_args` are given to the chat template, and `date` is the day it is told (None: today,
    if it asks; `bench.plan.template`). `cost` is a cost folder that sets ``auto`` options and gives
    ar's share of the machine's limit. `protocol` sets values not set otherwise
    (`bench.settings.protocol`). `reference` names published numbers that the report prints next to
    the run's (`bench.report.references`). `self_check` compares every opened model with
    transformers' own forward (`decoders.core.hf.self_check`). `numerics` selects how rows are
    computed (None: ``fast``), and `tile` how many at once in ``invariant`` numerics
    (`bench.plan.numerics`). With `compile` None, runs compile if they can (`bench.plan.compiling`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decoders: dict[bounds.Text, Options] | None = None
    primary: bounds.Text | None = None
    model: bounds.Text = ZOO
    draft: bounds.Text | None = None
    adapters: dict[bounds.Text, bounds.Text] = Field(default_factory=dict)
    tasks: bounds.Text = ZOO
    columns: dict[bounds.Text, bounds.Text] = Field(default_factory=dict)
    template_args: dict[bounds.Text, JsonValue] = Field(default_factory=dict)
    date: bounds.Day | None = None
    split: Literal["tune", "test"] | None = None
    limit: bounds.Count | None = None
    quality_limit: bounds.CountOrNone = 40
    phase_limit: bounds.CountOrNone = 6
    repeats: bounds.Repeats = 3
    batch_size: bounds.BatchSize = 1
    max_new_tokens: bounds.MaxNewTokens = 256
    temperature: bounds.Temperature = 0.0
    top_p: bounds.TopP = 1.0
    top_k: bounds.CountOrNone = 0
    seed: bounds.Seed = 0
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    device: bounds.Text | None = None
    threads: bounds.Threads | None = None
    attention: Literal["sdpa", "eager"] | None = None
    compile: bool | None = None
    quantize: Literal["int8", "int4"] | None = None
    numerics: Numerics | None = None
    tile: Literal[8, 16, 32] | None = None
    reuse_prefix: bool = False
    device_map: bounds.DeviceMap | None = None
    self_check: bool = True
    fixed_length: bool = False
    timeout: bounds.Seconds | None = None
    overlong: Literal["skip", "truncate"] = "skip"
    prompt_tokens: bounds.Count | None = None
    cost: bounds.Text | None = None
    protocol: Literal["specbench"] | None = None
    reference: str | None = None
    run_name: bounds.RunName | None = None

    @field_validator("reference")
    @classmethod
    def _published(cls, value: str | None) -> str | None:
        if value is not None and value not in (known := published()):
            raise ValueError(f"no reference {value!r}; {did_you_mean(value, known)}")
        return value

    @field_validator("decoders", mode="before")
    @classmethod
    def _cells(cls, value: object) -> object:
        """Accept a list of specs or a table of options; convert options to text."""
        if value is None:
            return None
        if isinstance(value, Mapping) and value:
            return {cell: _as_text(cell, options) for cell, options in value.items()}
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
            label = f"a {'label' if twice.label is None else 'different label'}: {twice.name}@LABEL"
            raise ValueError(f"two cells are called {twice.cell!r}; give one {label}")
        return cells

    @property
    def specs(self) -> tuple[DecoderSpec, ...]:
        """Named decoders, in order (empty if none is named)."""
        return tuple(spec_of(cell, options) for cell, options in (self.decoders or {}).items())

    @property
    def hash(self) -> str:
        """Hash of the configuration: four hexadecimal digits."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:4]

    def to_toml(self) -> str:
        """Return TOML without the keys that are None, which resolve to the same values again."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def with_values(self, **values: object) -> RunConfig:
        """Return a validated copy with some values replaced."""
        return _validated({**self.model_dump(exclude_unset=True), **values})


def spec_of(cell: str, options: Mapping[str, str]) -> DecoderSpec:
    """Return the decoder spec of a cell (`ValueError` if it is not NAME[@LABEL])."""
    named = registry.parse_spec(cell)
    return DecoderSpec(name=named.name, label=named.label, options={**named.options, **options})


def load_config(
    file: Path | None, overrides: Mapping[str, object], names: Mapping[str, str] = _AS_KEYS
) -> RunConfig:
    """Return the configuration of `file`, replaced by the `overrides` that are not None.

    `names` maps overrides to the user's names for errors, e.g. ``--top-p``.

    Raises:
        UsageError: a missing or malformed file, an unknown key, a value out of range.
    """
    values = read_toml(file) if file is not None else {}
    given = {key: value for key, value in overrides.items() if value is not None}
    return config_of(values | given, {key: names[key] for key in given if key in names})


def config_of(values: Mapping[str, Any], names: Mapping[str, str] = _AS_KEYS) -> RunConfig:
    """Return the configuration of a file's values and the defaults (raises as `load_config`)."""
    values = {**PRESETS.get(str(values.get("protocol")), {}), **values}
    config = _validated(values, names)
    if not {name.strip() for name in config.tasks.split(",")} <= EMBEDDED:
        return config
    missing = {key: value for key, value in _ZOO_LIMITS.items() if values.get(key) is None}
    return config.with_values(**missing)


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file (`UsageError` if it is unreadable or not TOML)."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise UsageError(f"cannot read {file}: it is no ordinary file")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error


def wrong_value(values: Mapping[str, Any]) -> str | None:
    """Describe the first value of a stored configuration that none can have; None: all can.

    Only types and bounds count: options, references and machines may have changed since.
    """
    kinds = _stored_kinds()
    for key, value in values.items():
        try:
            if key in kinds:
                kinds[key].validate_python(value, strict=True)
        except ValidationError as error:
            return bounds.format_error(error, {"": key}).replace("\n", " ")
    return None


@functools.cache
def _stored_kinds() -> dict[str, TypeAdapter[Any]]:
    changed: dict[str, Any] = {"threads": bounds.Count, "decoders": dict[str, dict[str, Any]]}
    changed |= dict.fromkeys(("run_name", "device_map", "reference"), str)
    fields = RunConfig.model_fields.items()
    own: dict[str, Any] = {
        key: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for key, field in fields
    }
    return {key: TypeAdapter(kind) for key, kind in (own | changed).items()}


def _validated(values: Mapping[str, Any], names: Mapping[str, str] = _AS_KEYS) -> RunConfig:
    unknown = [key for key in values if key not in RunConfig.model_fields]
    if unknown:
        hint = did_you_mean(unknown[0], RunConfig.model_fields)
        raise UsageError(f"unknown configuration key {unknown[0]!r}; {hint}")
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise UsageError(bounds.format_error(error, names)) from error


def _as_text(cell: str, options: object) -> Options:
    if not isinstance(options, Mapping):
        raise ValueError(f"decoder {cell!r} needs a table of options, e.g. {{k = 4}}")
    spec = spec_of(cell, {key: as_text(value) for key, value in options.items()})
    return dict(spec.options)


def as_text(value: object) -> str:
    """Return an option's value as written in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
