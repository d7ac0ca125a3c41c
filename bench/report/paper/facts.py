"""What is known of runs, each subject in a sentence or two of LaTeX, for a paper's texts.

Everything comes from env.json, config.toml, run.json and the summary. What several runs share is
said once; where they differ, each value stands with the runs it is of. What is not known is left
out, or said to be unknown where a paper must state it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from bench.plan.named_models import named
from bench.records.plan import BASELINE
from bench.report.paper import citations
from bench.report.tables.setting import hardware, model_of
from bench.report.together import NamedRun
from bench.stats.intervals import LEVEL
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
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


def merge_statements(members: Members, what: Callable[[RunSnapshot], str | None]) -> str:
    """What is so of all runs, or of which runs each; empty where nothing is known. As LaTeX."""
    groups: dict[str, list[str]] = {}
    for member in members:
        text = what(member.side)
        if text:
            groups.setdefault(text, []).append(member.label)
    if len(groups) == 1 and len(members) == len(*groups.values()):
        return latex(portable(*groups))
    return "; ".join(
        f"{latex(portable(text))} ({latex(', '.join(labels))})" for text, labels in groups.items()
    )


# ---------------------------------------------------------------- what was run


def models(members: Members) -> str:
    """Target, draft and adapters with their sizes and the beginnings of their hashes."""
    target = merge_statements(members, lambda side: f"{model_of(side)}{_hash(side, 'target')}")
    draft = merge_statements(members, _draft)
    adapters = merge_statements(members, _adapters)
    text = f"Target: {target}."
    text += f" Draft: {draft}." if draft else ""
    return text + (f" Adapters: {adapters}." if adapters else "")


def _hash(side: RunSnapshot, role: str) -> str:
    digest = side.env.models.weights_of(role)
    return f", weights {digest.rpartition(':')[2][:12]}" if digest else ""


def _draft(side: RunSnapshot) -> str | None:
    facts = side.env.models.draft
    if not facts:
        return None
    size = facts.get("parameters")
    name = portable(str(side.config.get("draft") or "a draft model"))
    return name + (f", {size / 1e6:.2f}M parameters" if size else "") + _hash(side, "draft")


def _adapters(side: RunSnapshot) -> str | None:
    parts = []
    for name, facts in (side.env.models.adapters or {}).items():
        size = f", {facts.parameters / 1e6:.2f}M parameters" if facts.parameters else ""
        digest = f", weights {facts.weights_sha256[:12]}" if facts.weights_sha256 else ""
        parts.append(f"{name}{size}{digest}")
    return "; ".join(parts) or None


def decoders(members: Members) -> str:
    """The decoders, each with what it is cited by."""
    cells = dict.fromkeys(cell for member in members for cell in member.side.cells)
    parts = []
    for cell in cells:
        keys: dict[str, None] = {}
        for member in members:
            if cell in member.side.cells:
                keys |= dict.fromkeys(citations.of_decoder(cell, member.side.cells[cell]))
        cited = rf"~\citep{{{','.join(keys)}}}" if keys else ""
        parts.append(rf"\texttt{{{latex(cell)}}}{cited}")
    return (
        f"Decoders: {', '.join(parts)}. All options of each are in the configuration files of the "
        "runs (\\texttt{config.toml})."
    )


def data(members: Members) -> str:
    """How many prompts of which tasks, timed and scored."""
    keys = dict.fromkeys(
        key for member in members for key in citations.of_tasks(member.side.config.get("tasks"))
    )
    cited = rf"~\citep{{{','.join(keys)}}}" if keys else ""
    sizes = {id(member.side): _sizes(member) for member in members}
    return f"Prompts{cited}: {merge_statements(members, lambda side: sizes[id(side)])}."


def _sizes(member: NamedRun) -> str:
    rows = rows_of(member.summary, ALL)
    tasks = portable(str(member.side.config.get("tasks") or "tasks not recorded"))
    text = f"{_most(rows, 'prompts')} timed of {tasks}"
    if clusters := _most(rows, "clusters"):
        text += f" in {counted(clusters, 'conversation')}"
    of_ar = [row for row in rows_of(member.summary, None) if row.decoder == BASELINE]
    timed = sum(row.family != ALL and bool(row.prompts) for row in of_ar)
    text += f", {counted(timed, 'family')}" if timed else ""
    scored = _most(rows, "quality_prompts")
    return text + (f", and {scored} held-out ones scored" if scored else ", none scored")


def _most(rows: Sequence[SummaryRow], column: str) -> int:
    return int(max((row.value(column) or 0 for row in rows), default=0))


def sampling(members: Members) -> str:
    """Temperature, truncation and length of the answers."""
    return f"Sampling: {merge_statements(members, _sampling)}."


def _sampling(side: RunSnapshot) -> str:
    config = side.config
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
    """What is random, and from which seeds."""
    known = merge_statements(members, _seed)
    if not known:
        return "Seeds are not recorded."
    return (
        f"Seeds: {known}; the same seed draws the subset of prompts. Every output position has its "
        "own random number, shared by all decoders."
    )


def _seed(side: RunSnapshot) -> str | None:
    seed, repeats = side.config.get("seed"), side.config.get("repeats")
    if seed is None:
        return None
    return f"{seed}" if repeats in (None, 1) else f"{seed} to {seed + repeats - 1}, one a repeat"


def protocol(members: Members) -> str:
    """How times were taken."""
    how = merge_statements(members, _protocol)
    return (
        f"Every prompt is answered by all decoders one directly after another, in random order"
        f"{f', {how}' if how else ''}; a request is timed from its start to its last token. "
        "Times are compared within a run only."
    )


def _protocol(side: RunSnapshot) -> str | None:
    config = side.config
    parts = [
        counted(config["repeats"], "repeat") if "repeats" in config else "",
        f"batch size {config['batch_size']}" if "batch_size" in config else "",
        str(side.env.dtype or config.get("dtype") or ""),
        f"the questions and counting of {config['protocol']}" if config.get("protocol") else "",
    ]
    return ", ".join(part for part in parts if part) or None


# ---------------------------------------------------------------- on what


def machine(members: Members) -> str:
    """Processor or GPU, threads and memory."""
    known = merge_statements(members, _machine)
    return f"Hardware: {known or 'not recorded'}."


def _machine(side: RunSnapshot) -> str | None:
    env = side.env
    name = hardware(side)
    if name is None:
        return None
    parts = [name, f"driver {env.gpu_driver}" if env.gpu_driver else ""]
    parts.append(counted(env.torch.threads, "thread") if env.torch.threads else "")
    memory = env.machine.cgroup_memory_bytes or env.machine.memory_bytes
    parts.append(f"{memory / 2**30:.0f} GiB of memory" if memory else "")
    return ", ".join([*filter(None, parts), *([] if env.gpu_name else ["no GPU"])])


def software(members: Members) -> str:
    """Versions of system, Python and packages."""
    return f"Software: {merge_statements(members, _software) or 'versions not recorded'}."


def _software(side: RunSnapshot) -> str | None:
    env = side.env
    parts = [f"Python {env.python}" if env.python else ""]
    parts += [f"{name} {env.packages[name]}" for name in _PACKAGES if env.packages.get(name)]
    parts.append(f"CUDA {env.torch.cuda}" if env.torch.cuda else "")
    parts.append(f"{env.machine.system} {env.machine.release}" if env.machine.release else "")
    return ", ".join(filter(None, parts)) or None


def code(members: Members) -> str:
    """Which version and commit of this harness measured, and how to do it again."""
    version = merge_statements(members, lambda side: side.env.packages.get("decoding-bench"))
    commit = (
        merge_statements(members, lambda side: side.code and f"commit {side.code}")
        or "commit unknown"
    )
    return (
        rf"Measured with \texttt{{decoding-bench}}{f' {version}' if version else ''}"
        rf"~\citep{{{citations.HARNESS}}}, {commit}; "
        r"\texttt{bench run -{}-config config.toml} measures it again."
    )


def compute(members: Members) -> str:
    """Hardware, wall time and memory of the runs."""
    spent = merge_statements(members, _spent)
    return f"{machine(members)} {f'Wall time: {spent}.' if spent else 'Wall time not recorded.'}"


def _spent(side: RunSnapshot) -> str | None:
    """Wall time from start to end, and the most memory the process took."""
    ends = (side.status.started_utc, side.status.finished_utc)
    if None in ends:
        return None
    try:
        begun, ended = (datetime.fromisoformat(str(end)) for end in ends)
    except ValueError:
        return None
    minutes = (ended - begun).total_seconds() / 60
    text = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    if (side.status.attempts or 1) > 1:
        text += ", interruptions included"
    peak = side.env.process and side.env.process.peak_rss_bytes
    return text + (f", peak memory {peak / 2**30:.1f} GiB" if peak else "")


# ---------------------------------------------------------------- what the numbers claim


def statistics(members: Members) -> str:
    """What the error bars are, and what they do not cover."""
    level = latex(LEVEL)
    clusters = {id(m.side): _most(rows_of(m.summary, ALL), "clusters") for m in members}
    sizes = merge_statements(
        members, lambda side: str(clusters[id(side)]) if clusters[id(side)] else None
    )
    return (
        "Speed-ups are geometric means over prompts of paired ratios of time per token (median "
        f"over repeats); error bars are {level} Student-t intervals of the logarithms, clustered "
        f"by conversation{f' (clusters: {sizes})' if sizes else ''}. Intervals of tokens per step "
        f"are {level} jackknife intervals over conversations."
    )


def limits(members: Members) -> str:
    """What intervals do not cover, and what qualifies the runs."""
    text = "Intervals cover the choice of prompts and not another session of the machine."
    for member in members:
        side = member.side
        lines = [
            *(f"{side.verdict}: {line}" for line in side.reasons),
            *(f"Warning: {line}" for line in side.status.warnings),
        ]
        of = f"{member.name}: " if len(members) > 1 else ""
        text += "".join(f" {latex(portable(of + line))}." for line in lines)
    return text


def licences(members: Members) -> str:
    """The licences of models, data and harness, as far as they are known here."""
    of_models = merge_statements(members, _model_licences)
    of_data = merge_statements(members, _data_licence)
    return f"Models: {of_models}. Data: {of_data}. Harness: decoding-bench, {_OWN}."


def _model_licences(side: RunSnapshot) -> str:
    adapters = side.config.get("adapters") or {}
    names = [side.config.get("model"), side.config.get("draft"), *adapters.values()]
    each = dict.fromkeys(portable(str(name)) for name in names if name)
    return ", ".join(f"{name} {_licence(name)}" for name in each) or _UNRECORDED


def _licence(name: str) -> str:
    if name == "zoo":
        return _OWN
    model = named(name)
    return model.licence if model else _UNRECORDED


def _data_licence(side: RunSnapshot) -> str:
    tasks = portable(str(side.config.get("tasks") or ""))
    source = tasks.partition("=")[0]
    if source in ("jsonl", "hf", ""):
        return f"{tasks or 'tasks'} {_UNRECORDED}"
    known = {info.name.partition("[")[0]: info.licence for info in list_tasks()}
    each = dict.fromkeys(known.get(name.strip(), _UNRECORDED) for name in source.split(","))
    return f"{source} {', '.join(each)}"
