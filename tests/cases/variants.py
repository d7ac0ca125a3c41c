"""Variants of stories260K with one change each, as `CHANGES` names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

STORIES = Path(__file__).parents[3] / "shared" / "models" / "stories260K"
VOCAB = 512
NUM_SPECIAL = 3
"""Leading tokens that have no piece: unknown, begin and end."""
SAY = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
"""A template that writes every message on a line."""

Weights = dict[str, torch.Tensor]


def copied(folder: Path) -> Path:
    """Copy the model into a new folder, whose files may be written."""
    folder.mkdir(parents=True)
    for file in STORIES.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def edit(folder: Path, file: str, **values: Any) -> None:
    """Set keys of a JSON file of the model."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    """Replace the weights by what `change` makes of them."""
    file = folder / "model.safetensors"
    changed = {name: each.contiguous() for name, each in change(load_file(file)).items()}
    save_file(changed, file, metadata={"format": "pt"})


def template(folder: Path, text: str) -> None:
    """Give the model a chat template."""
    (folder / "chat_template.jinja").write_text(text)


def permuted(folder: Path) -> None:
    """Number the tokens in another order; the model is the same."""
    shuffled = torch.randperm(VOCAB - NUM_SPECIAL, generator=torch.Generator().manual_seed(0))
    order = torch.cat([torch.arange(NUM_SPECIAL), shuffled + NUM_SPECIAL])
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    data["model"]["vocab"] = {piece: int(order[token]) for piece, token in vocab.items()}
    path.write_text(json.dumps(data))

    def moved(held: Weights) -> Weights:
        rows = {name: each for name, each in held.items() if _of_tokens(each)}
        return held | {name: each[order.argsort()] for name, each in rows.items()}

    weights(folder, moved)


def padded(folder: Path) -> None:
    """Add 64 rows to the vocabulary, which no token of the tokenizer uses."""

    def longer(held: Weights) -> Weights:
        rows = {name: each for name, each in held.items() if _of_tokens(each)}
        zeros = {name: each.new_zeros(64, each.shape[1]) for name, each in rows.items()}
        return held | {name: torch.cat([each, zeros[name]]) for name, each in rows.items()}

    weights(folder, longer)
    edit(folder, "config.json", vocab_size=VOCAB + 64)


def _of_tokens(weight: torch.Tensor) -> bool:
    return weight.dim() == 2 and len(weight) == VOCAB


def eos_added(folder: Path) -> None:
    """Let the tokenizer add its end token to every text."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    text = {"Sequence": {"id": "A", "type_id": 0}}
    marks = [{"SpecialToken": {"id": mark, "type_id": 0}} for mark in ("<s>", "</s>")]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [marks[0], text, marks[1]],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            mark: {"id": mark, "ids": [token], "tokens": [mark]}
            for mark, token in (("<s>", 1), ("</s>", 2))
        },
    }
    path.write_text(json.dumps(data))


def biased(folder: Path) -> None:
    """Add weights that the architecture has no place for."""

    def more(held: Weights) -> Weights:
        queries = {name: each for name, each in held.items() if name.endswith("q_proj.weight")}
        biases = {
            name.replace("weight", "bias"): each[:, 0] + 0.5 for name, each in queries.items()
        }
        return held | biases

    weights(folder, more)


def quieter(held: Weights) -> Weights:
    """Return weights that give logits of a sixteenth."""
    return held | {"model.norm.weight": held["model.norm.weight"] / 16}


CHANGES: dict[str, Callable[[Path], None]] = {
    "permuted": permuted,
    "padded": padded,
    "eos_added": eos_added,
    "biased": biased,
    "short": lambda folder: edit(folder, "config.json", max_position_embeddings=48),
    "fewer": lambda folder: edit(folder, "config.json", num_hidden_layers=3),
    "small_logits": lambda folder: weights(folder, quieter),
    "sampling": lambda folder: edit(
        folder,
        "generation_config.json",
        do_sample=True,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        stop_strings=[". He"],
    ),
    "say": lambda folder: template(folder, SAY),
    "date": lambda folder: template(
        folder, SAY.replace("{%", "Today: {{ strftime_now('%d %b %Y') }}\n{%", 1)
    ),
    "drawn": lambda folder: template(folder, SAY.replace("{%", "{{ range(1000) | random }} {%", 1)),
    "constant": lambda folder: template(folder, "{{ bos_token }}Hello"),
    "closed": lambda folder: template(folder, SAY.replace("\n", "{{ eos_token }}")),
    "think": lambda folder: template(
        folder,
        SAY + "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
        "{% endif %}",
    ),
}
"""Names of variants, and what is changed in a copy of the model's folder."""
