"""Facts about runs for a paper's texts: a sentence or two of LaTeX per subject.

Facts come from env.json, config.toml, run.json and the summary. Values that all runs share are
stated once; other values name their runs. Unknown values are left out, or stated as unknown if a
paper must state them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from bench.plan.named_models import named
from bench.records.plan import BASELINE
from bench.report.paper import citations
from bench.report.tables.setting import hardware, model_of
from bench.report.together import NamedRun
from bench.stats.intervals import LEVEL
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.stats.summary_row import rows_of
from bench.text import counted, latex, portable
from specbench_tasks.registry import list_tasks

Members = Sequence[NamedRun]
_PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy", "scipy"),
    *("pandas", "sacrebleu", "rouge-score"),
)
_OWN = "Apache-2.0"
"""The licence of this harness, its embedded models and its tasks."""
_UNRECORDED = "licence not recorded (state it)"


def merge_statements(members: Members, statement: Callable[[NamedRun], str | None]) -> str:
    """Return as LaTeX one statement for all runs, or one per group of runs; "" if unknown."""
    groups: dict[str, list[str]] = {}
    for member in members:
        if text := statement(member):
            groups.setdefault(text, []).append(member.label)
    if len(groups) == 1 and len(members) == len(*groups.values()):
        return latex(portable(*groups))
    return "; ".join(
        f"{latex(portable(text))} ({latex(', '.join(labels))})" for text, labels in groups.items()
    )


def _joined(parts: Iterable[str | None]) -> str | None:
    return ", ".join(filter(None, parts)) or None


def models(members: Members) -> str:
    """State target, draft model and adapters with their sizes and short hashes."""
    target = merge_statements(
        members, lambda run: f"{model_of(run.side)}{_weights(run.side, 'target')}"
    )
    others = {
        "Draft": merge_statements(members, lambda run: _draft(run.side)),
        "Adapters": merge_statements(members, lambda run: _adapters(run.side)),
    }
    return f"Target: {target}." + "".join(f" {k}: {v}." for k, v in others.items() if v)


def _weights(side: RunSnapshot, role: str) -> str:
    digest = side.env.models.weights_of(role)
    return f", weights {digest.rpartition(':')[2][:12]}" if digest else ""


def _draft(side: RunSnapshot) -> str | None:
    facts = side.env.models.draft
    if not facts:
        return None
    size = facts.get("parameters")
    name = portable(str(side.config.get("draft") or "a draft model"))
    return name + (f", {size / 1e6:.2f}M parameters" if size else "") + _weights(side, "draft")


def _adapters(side: RunSnapshot) -> str | None:
    parts = []
    for name, facts in (side.env.models.adapters or {}).items():
        size = f", {facts.parameters / 1e6:.2f}M parameters" if facts.parameters else ""
        digest = f", weights {facts.weights_sha256[:12]}" if facts.weights_sha256 else ""
        parts.append(f"{name}{size}{digest}")
    return "; ".join(parts) or None


def decoders(members: Members) -> str:
    """Name the decoders, each with its citations."""
    cited: dict[str, dict[str, None]] = {}
    for member in members:
        for cell, options in member.side.cells.items():
            cited.setdefault(cell, {}).update(dict.fromkeys(citations.of_decoder(cell, options)))
    names = ", ".join(rf"\texttt{{{latex(cell)}}}{_cite(keys)}" for cell, keys in cited.items())
    return (
        f"Decoders: {names}. All options of each are in the configuration files of the runs "
        r"(\texttt{config.toml})."
    )


def _cite(keys: Iterable[str]) -> str:
    joined = ",".join(keys)
    return rf"~\citep{{{joined}}}" if joined else ""


def data(members: Members) -> str:
    """State the tasks, and the numbers of timed and scored prompts."""
    keys = [key for run in members for key in citations.of_tasks(run.side.config.get("tasks"))]
    return f"Prompts{_cite(dict.fromkeys(keys))}: {merge_statements(members, _sizes)}."


def _sizes(member: NamedRun) -> str:
    tasks = portable(str(member.side.config.get("tasks") or "tasks not recorded"))
    text = f"{_most(member, 'prompts')} timed of {tasks}"
    if clusters := _most(member, "clusters"):
        text += f" in {counted(clusters, 'conversation')}"
    of_ar = [row for row in rows_of(member.summary, None) if row.decoder == BASELINE]
    timed = sum(row.family != ALL and bool(row.prompts) for row in of_ar)
    text += f", {counted(timed, 'family')}" if timed else ""
    scored = _most(member, "quality_prompts")
    return text + (f", and {scored} held-out ones scored" if scored else ", none scored")


def _most(member: NamedRun, column: str) -> int:
    rows = rows_of(member.summary, ALL)
    return int(max((row.value(column) or 0 for row in rows), default=0))


def sampling(members: Members) -> str:
    """State temperature, truncation and length of the answers."""
    return f"Sampling: {merge_statements(members, _sampling)}."


def _sampling(member: NamedRun) -> str:
    config = member.side.config
    temperature = config.get("temperature")
    if temperature is None:
        text = "temperature not recorded"
    elif temperature == 0:
        text = "greedy (temperature 0)"
    else:
        top_p, top_k = config.get("top_p", 1.0), config.get("top_k", 0)
        text = f"temperature {temperature:g}, top-p {top_p:g}, top-k {top_k or 'off'}"
    text += f", at most {config['max_new_tokens']} new tokens" if "max_new_tokens" in config else ""
    return text + (", end-of-sequence ignored" if config.get("fixed_length") else "")


def seeds(members: Members) -> str:
    """State the random seeds."""
    known = merge_statements(members, _seed)
    if not known:
        return "Seeds are not recorded."
    return (
        f"Seeds: {known}; the same seed draws the subset of prompts. Every output position has its "
        "own random number, shared by all decoders."
    )


def _seed(member: NamedRun) -> str | None:
    seed, repeats = (member.side.config.get(key) for key in ("seed", "repeats"))
    if seed is None or repeats in (None, 1):
        return seed if seed is None else f"{seed}"
    return f"{seed} to {seed + repeats - 1}, one per repeat"


def protocol(members: Members) -> str:
    """State how times were measured."""
    how = merge_statements(members, _protocol)
    return (
        f"All decoders answer every prompt directly one after another, in random order"
        f"{f', {how}' if how else ''}; a request is timed from its start to its last token. "
        "Times are compared only within a run."
    )


def _protocol(member: NamedRun) -> str | None:
    config = member.side.config
    kind = config.get("protocol")
    return _joined(
        [
            counted(config["repeats"], "repeat") if "repeats" in config else "",
            f"batch size {config['batch_size']}" if "batch_size" in config else "",
            str(member.side.env.dtype or config.get("dtype") or ""),
            kind and f"the questions and counting of {kind}",
        ]
    )


def machine(members: Members) -> str:
    """State processor or GPU, threads and memory."""
    return f"Hardware: {merge_statements(members, _machine) or 'not recorded'}."


def _machine(member: NamedRun) -> str | None:
    env, name = member.side.env, hardware(member.side)
    memory = env.machine.cgroup_memory_bytes or env.machine.memory_bytes
    return name and _joined(
        [
            name,
            env.gpu_driver and f"driver {env.gpu_driver}",
            counted(env.torch.threads, "thread") if env.torch.threads else "",
            f"{memory / 2**30:.0f} GiB of memory" if memory else "",
            "" if env.gpu_name else "no GPU",
        ]
    )


def software(members: Members) -> str:
    """State the versions of the system, Python and packages."""
    return f"Software: {merge_statements(members, _software) or 'versions not recorded'}."


def _software(member: NamedRun) -> str | None:
    env = member.side.env
    release = env.machine.release
    return _joined(
        [
            env.python and f"Python {env.python}",
            *(f"{name} {env.packages[name]}" for name in _PACKAGES if env.packages.get(name)),
            env.torch.cuda and f"CUDA {env.torch.cuda}",
            release and f"{env.machine.system} {release}",
        ]
    )


def code(members: Members) -> str:
    """State the version and commit of this harness, and how to repeat the measurement."""
    version = merge_statements(members, lambda run: run.side.env.packages.get("decoding-bench"))
    commit = merge_statements(members, lambda run: run.side.code and f"commit {run.side.code}")
    return (
        rf"Measured with \texttt{{decoding-bench}}{f' {version}' if version else ''}"
        rf"~\citep{{{citations.HARNESS}}}, {commit or 'commit unknown'}; "
        r"\texttt{bench run -{}-config config.toml} measures it again."
    )


def compute(members: Members) -> str:
    """State hardware, wall time and memory of the runs."""
    spent = merge_statements(members, _spent)
    return f"{machine(members)} {f'Wall time: {spent}.' if spent else 'Wall time not recorded.'}"


def _spent(member: NamedRun) -> str | None:
    status, process = member.side.status, member.side.env.process
    if None in (status.started_utc, status.finished_utc):
        return None
    try:
        ends = (status.finished_utc, status.started_utc)
        ended, begun = (datetime.fromisoformat(str(end)) for end in ends)
    except ValueError:
        return None
    minutes = (ended - begun).total_seconds() / 60
    text = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    text += ", interruptions included" if (status.attempts or 1) > 1 else ""
    peak = process and process.peak_rss_bytes
    return text + (f", peak memory {peak / 2**30:.1f} GiB" if peak else "")


def statistics(members: Members) -> str:
    """Define the error bars."""
    sizes = merge_statements(members, lambda run: str(_most(run, "clusters") or ""))
    return (
        "Speed-ups are geometric means over prompts of paired ratios of time per token (median "
        f"over repeats); error bars are {latex(LEVEL)} Student-t intervals of the logarithms, "
        f"clustered by conversation{f' (clusters: {sizes})' if sizes else ''}. Intervals of tokens "
        f"per step are {latex(LEVEL)} jackknife intervals over conversations."
    )


def limits(members: Members) -> str:
    """State what intervals do not cover, and the runs' reasons and warnings."""
    text = "Intervals are over prompts of this session; another session can differ by more."
    for member in members:
        side = member.side
        lines = [f"{side.verdict}: {line}" for line in side.reasons]
        lines += [f"Warning: {line}" for line in side.status.warnings]
        of = f"{member.name}: " if len(members) > 1 else ""
        text += "".join(f" {latex(portable(of + line))}." for line in lines)
    return text


def licences(members: Members) -> str:
    """State the licences of models, data and harness, as far as known."""
    of_models = merge_statements(members, _model_licences)
    of_data = merge_statements(members, _data_licence)
    return f"Models: {of_models}. Data: {of_data}. Harness: decoding-bench, {_OWN}."


def _model_licences(member: NamedRun) -> str:
    config = member.side.config
    names = [config.get("model"), config.get("draft"), *(config.get("adapters") or {}).values()]
    each = dict.fromkeys(portable(str(name)) for name in names if name)
    return ", ".join(f"{name} {_licence(name)}" for name in each) or _UNRECORDED


def _licence(name: str) -> str:
    model = named(name)
    return _OWN if name == "zoo" else model.licence if model else _UNRECORDED


def _data_licence(member: NamedRun) -> str:
    tasks = portable(str(member.side.config.get("tasks") or ""))
    source = tasks.partition("=")[0]
    if source in ("jsonl", "hf", ""):
        return f"{tasks or 'tasks'} {_UNRECORDED}"
    known = {info.name.partition("[")[0]: info.licence for info in list_tasks()}
    each = dict.fromkeys(known.get(name.strip(), _UNRECORDED) for name in source.split(","))
    return f"{source} {', '.join(each)}"
