"""Read and write ``env.json``: the machine, software and models of a run.

`bench.machine.env` fills in the fields. Unknown fields are None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from bench.records.files import parse, read_json, validator, write_json
from bench.settings.bounds import Bytes, Num, Real, RealOrInt, allowed

ENV = "env.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownFacts:
    """Facts of a model or a GPU by which readers compute, besides facts that are only shown."""

    name: str | None = None
    driver: str | None = None
    parameters: Bytes | None = None
    read_bytes: Bytes | None = None
    weights_sha256: str | None = None
    quantized: str | None = None
    compiled: bool | None = None
    notes: tuple[str, ...] = ()


def _facts(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        validator(_KnownFacts).validate_python(dict(facts))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"its {first['loc'][0]}: {allowed(first)}") from error
    return facts


Facts = Annotated[Mapping[str, Any], AfterValidator(_facts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processor with its wide `instructions`, and memory, both with the limits of a cgroup."""

    system: str | None = None
    release: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    instructions: tuple[str, ...] | None = None
    physical_cores: Num | None = None
    logical_cores: Num | None = None
    affinity: Num | None = None
    governor: str | None = None
    load_average: tuple[Real, ...] | None = None
    memory_bytes: Bytes | None = None
    cgroup_cpus: Real | None = None
    cgroup_memory_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of torch, and as `attention` the SDPA kernels that are enabled on a GPU.

    Graphs of calls of up to `product_rows` rows give a row the same bits. The extra cost is at most
    `product_price` (if measured): on a CPU in products of one row, on a GPU in calls of one row.
    """

    threads: Num | None = None
    interop_threads: Num | None = None
    deterministic_algorithms: bool | None = None
    matmul_precision: str | None = None
    cuda: str | None = None
    cudnn_benchmark: bool | None = None
    attention: tuple[str, ...] | None = None
    product_rows: Num | None = None
    product_price: Real | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """State of the git checkout. `branch` is None if HEAD is detached."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """Size of an adapter, the roles of the `models` it is attached to, its training settings."""

    variant: str | None = None
    rank: Num | None = None
    slots: Num | None = None
    parameters: Bytes | None = None
    code: str | None = None
    weights_sha256: str | None = None
    models: tuple[str, ...] = ()
    temperatures: tuple[RealOrInt, ...] | None = None
    top_ps: tuple[RealOrInt, ...] | None = None
    top_k: Num | None = None
    greedy: bool | None = None
    masked: bool | None = None
    base_weights_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of models (architecture, sizes, hash of weights), and of adapters by name."""

    target: Facts | None = None
    draft: Facts | None = None
    models: Mapping[str, Facts] | None = None
    adapters: Mapping[str, AdapterFacts] | None = None

    @property
    def by_role(self) -> Mapping[str, Facts]:
        """Facts of ``target``, of ``draft`` if there is one, and of each further ``model NAME``."""
        named = {f"model {name}": facts for name, facts in (self.models or {}).items()}
        draft = {"draft": self.draft} if self.draft else {}
        return {"target": self.target or {}, **draft, **named}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the models for readers, one line each."""
        roles = self.by_role.items()
        return tuple(f"{role}: {n}" for role, facts in roles for n in facts.get("notes", ()))

    def weights_hash(self, role: str) -> str | None:
        """Return the hash of the weights of a model by its role (`by_role`)."""
        return self.by_role.get(role, {}).get("weights_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Resources of the measuring process."""

    peak_rss_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The content of env.json.

    `gpu` has facts from the driver (`bench.machine.gpu`), `packages` has versions by name, and
    `environment` the allowed environment variables. `git` is the benchmark's commit, `repository`
    that of decoders from another repository. `process` is None until the run ends.
    """

    schema: Num | None = None
    device: str | None = None
    dtype: str | None = None
    machine: Machine = Machine()
    gpu: Facts | None = None
    python: str | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)
    torch: TorchSettings = TorchSettings()
    environment: Mapping[str, str] = field(default_factory=dict)
    git: GitState = GitState()
    repository: GitState | None = None
    models: ModelFacts = ModelFacts()
    comparability_key: str | None = None
    process: Process | None = None

    @property
    def gpu_name(self) -> str | None:
        """Name of the GPU."""
        return (self.gpu or {}).get("name")

    @property
    def gpu_driver(self) -> str | None:
        """Version of the GPU driver."""
        return (self.gpu or {}).get("driver")

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, without ``process`` and ``repository`` if they are None."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists
        late = ("process", "repository")
        return {key: value for key, value in data.items() if key not in late or value is not None}


def read_environment(run_dir: Path) -> Environment:
    """Read env.json, or return unknown fields if it is missing (raises as `parse`)."""
    file = run_dir / ENV
    return parse_environment(read_json(file) or {}, file)


def parse_environment(data: Mapping[str, Any], source: Path | str) -> Environment:
    """Build an environment from JSON data (raises as `parse`)."""
    stated = {key: value for key, value in data.items() if value is not None}
    return parse(Environment, stated, source)


def write_environment(run_dir: Path, env: Environment) -> None:
    """Replace env.json (`BenchError` if writing fails)."""
    write_json(run_dir / ENV, env.to_json())
