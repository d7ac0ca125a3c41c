"""Tables of methods written against the public interface, and of decoders that are wrong."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from docs.generate.places import ROOT, text_of
from docs.generate.tables import code, table


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the literature: the files that have it whole, and the interface that it needs."""

    name: str
    files: tuple[str, ...]
    needs: str


_TESTS = "tests/methods"
METHODS = (
    Method("suffix decoding", (f"{_TESTS}/suffix.py",), "`propose`, a memory of earlier answers"),
    Method("block verification", (f"{_TESTS}/block.py",), "a `Rule` that is `fresh`"),
    Method(
        "cascade",
        (f"{_TESTS}/cascade.py",),
        "`draft` as a coroutine, a draft model, a named further model",
    ),
    Method(
        "Token Recycling, whole tree",
        (f"{_TESTS}/recycling.py",),
        '`DraftTree`, `outputs="topk:N"`, `observe`',
    ),
    Method("typical acceptance", (f"{_TESTS}/typical.py",), "a lossy `Rule`"),
    Method(
        "block diffusion: BD3LM, LLaDA",
        (f"{_TESTS}/bd3lm.py", f"{_TESTS}/llada.py"),
        '`steps`, `target_kind = "masked"`, masks and reads of a call, `output="draws"`',
    ),
    Method(
        "confidence-driven drafts",
        ("examples/sure.py",),
        "a network built from the target, states of a verdict",
    ),
    Method(
        "contrastive decoding, grammar, best-of-n, beam search",
        (
            f"{_TESTS}/contrastive.py",
            f"{_TESTS}/grammar.py",
            "examples/best_of_n.py",
            "examples/beam.py",
        ),
        '`output="logits"`; a law; `session.fork`, uniforms of a step',
    ),
    Method(
        "MTP head",
        (f"{_TESTS}/mtp_head.py",),
        "a network with weights of its own, `TreeDrafter`",
    ),
    Method(
        "installed package",
        tuple(f"tests/outside/toydraft/{name}.py" for name in ("decoder", "network", "trainer")),
        "entry points for decoder, network and trainer",
    ),
)


def methods() -> str:
    """Return a Markdown table of the methods."""
    lines = ["| method | files, with their lines | needs |", "| --- | --- | --- |"]
    for method in METHODS:
        files = ", ".join(
            f"[`{file}`](../{file}) {len((ROOT / file).read_text(encoding='utf-8').splitlines())}"
            for file in method.files
        )
        lines.append(f"| {method.name} | {files} | {method.needs} |")
    return "\n".join(lines)


def controls() -> str:
    """Return a table of the decoders of ``examples/wrong.py``, from their docstrings."""
    classes = [
        node
        for node in ast.parse(text_of("examples/wrong.py")).body
        if isinstance(node, ast.ClassDef) and ast.get_docstring(node)
    ]
    first = [(ast.get_docstring(node) or "").partition("\n")[0] for node in classes]
    rows = zip((code(node.name) for node in classes), first, strict=True)
    return table(("decoder", "what it does"), rows)
