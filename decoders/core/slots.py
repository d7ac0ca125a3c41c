"""`SlotAdapter`: what turns a causal LM into its own parallel predictor.

A slot is a row without a token of its own. Its input is an embedded uniform (PTP), a learned vector
(a mask) or, in a block that is refined, a token that is not final. It runs through base weights + a
gated low-rank delta, while token rows run through the base weights alone. So target and parallel
student are one model with one KV cache. Saved as safetensors + JSON.

Source: PTP (arXiv 2512.21323), gated LoRA; Hu et al. 2021 (LoRA).
Letters: K slots, D hidden width, r rank.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.core.gating import layer_shapes
from decoders.core.uniform_embedding import CODES, Code, UniformEmbedding

FORMAT = 1
Variant = Literal["o-ptp", "c-ptp", "refine", "isd"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
MASKED: tuple[Variant, ...] = ("refine", "isd")
"""Variants whose slots carry no uniform."""
CONFIG_FILE, WEIGHTS_FILE = "adapter.json", "adapter.safetensors"


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """All that is not a weight.

    Attributes:
        variant: ``o-ptp``: the slot that carries u_k predicts token k; ``c-ptp``: it predicts the
            law of token k + 1. In both others a slot at a token's own place carries a mask, or in
            ``refine`` that token, and predicts the law of the token after it: ``isd`` slots see
            earlier ones, ``refine`` slots see their whole block.
        num_slots: slots of a training window (the longest block of ``refine``).
        layers: (in, out) of every gated layer of the base model.
        width: D.
        rank: r; 0 for a full-rank delta.
        alpha: the delta is scaled by alpha / r.
        code: how u is embedded.
        embedding_hidden: middle width of the embedding's network (0: one linear layer).
        conditioned: whether the embedding is told temperature and top-p.
        anchored: whether the first slot of a branch also carries the embedding of the token before
            it (not in the paper; the base row's input, so it starts from what that row computes).
        standalone: whether a branch does without the base row of the token before it, which its
            first slot stands for (`anchored`): proposing then takes slots alone. Not in the paper.
        numbered: whether slots carry a learned embedding of their number in the branch (not in the
            paper, which leaves the order to the positions).
        temperatures: lowest and highest temperature of training.
        top_ps: the nucleus sizes of training.
        top_k: of training.
        greedy: whether blank slots were trained on greedy continuations.
        order: order in which a law is accumulated by `pick`.
        base: what is known of the base model (architecture, hash of its weights).
        measured: the held-out report: per-slot accuracy, survival, calibration.
    """

    variant: Variant = "o-ptp"
    num_slots: int = 16
    layers: Mapping[str, tuple[int, int]]
    width: int
    rank: int = 64
    alpha: float = 64.0
    code: Code = "dyadic"
    embedding_hidden: int = 0
    conditioned: bool = False
    anchored: bool = False
    standalone: bool = False
    numbered: bool = False
    temperatures: tuple[float, float] = (1.0, 1.0)
    top_ps: tuple[float, ...] = (1.0,)
    top_k: int = 0
    greedy: bool = False
    order: str = "vocabulary"
    base: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """`ValueError` for a value this version does not know."""
        _demand(self.variant in VARIANTS, "variant", self.variant, ", ".join(VARIANTS))
        _demand(self.code in CODES, "code", self.code, ", ".join(CODES))
        _demand(self.order == "vocabulary", "order", self.order, "vocabulary")
        _demand(self.num_slots >= 1, "num_slots", self.num_slots, "1 or above")
        plain = self.code != "dyadic" and (self.conditioned or self.embedding_hidden)
        _demand(not plain, "code", self.code, "dyadic for conditioned or embedding_hidden")
        alone = self.standalone and not (self.anchored and self.variant == "o-ptp")
        _demand(not alone, "standalone", True, "false, unless it is an anchored o-ptp adapter")
        _demand(self.rank >= 0, "rank", self.rank, "1 or above, or 0 for full rank")
        code = "constant" if self.masked else self.code
        _demand(self.code == code, "code", self.code, f"constant where slots are {self.variant}")

    @property
    def masked(self) -> bool:
        """Whether slots carry a mask and no uniform."""
        return self.variant in MASKED

    @property
    def scale(self) -> float:
        """The factor on B A."""
        return self.alpha / self.rank if self.rank else 1.0

    def to_json(self) -> str:
        """As it stands in ``adapter.json``."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> AdapterConfig:
        """Read `to_json`'s text back.

        Errors: `ValueError` for another format, a missing or an unknown field.
        """
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"it is not an adapter configuration of format {FORMAT}")
        known = {f.name for f in dataclasses.fields(cls)}
        if strange := sorted(set(values) - known):
            raise ValueError(f"unknown field {strange[0]!r}; known are {', '.join(sorted(known))}")
        if missing := sorted({"layers", "width"} - set(values)):
            raise ValueError(f"field {missing[0]!r} is missing")
        if not isinstance(values["layers"], dict):
            raise ValueError(f"field 'layers' is {values['layers']!r}; it must be an object")
        values["layers"] = {name: tuple(shape) for name, shape in values["layers"].items()}
        for name in ("temperatures", "top_ps"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)


def _demand(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"adapter field {name!r} is {value!r}; it must be {allowed}")


class SlotAdapter(nn.Module):
    """The trainable part: slot embedding, and A, B (or a full-rank delta) of every layer."""

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Fresh weights that leave the base model's output unchanged (B = 0)."""
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        low, high = nn.ParameterDict(), nn.ParameterDict()
        for name, (num_in, num_out) in config.layers.items():
            if not config.rank:
                high[_key(name)] = nn.Parameter(torch.zeros(num_out, num_in))
                continue
            bound = 1 / math.sqrt(num_in)
            a = torch.rand(config.rank, num_in, generator=generator) * 2 * bound - bound
            low[_key(name)] = nn.Parameter(a)
            high[_key(name)] = nn.Parameter(torch.zeros(num_out, config.rank))
        self.lora_a, self.lora_b = low, high
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # noqa: TID251 - nn.Linear draws from it; forked
            self.embedding = UniformEmbedding(
                config.code,
                config.width,
                hidden=config.embedding_hidden,
                conditioned=config.conditioned,
            )
        self.numbers: nn.Parameter | None = None
        if config.numbered:
            self.numbers = nn.Parameter(torch.zeros(config.num_slots, config.width))

    def embed(
        self,
        u: Tensor,
        warp: Tensor,
        number: Tensor,
        anchors: Tensor | None,
        shown: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Slot inputs ``[K, D]`` in the dtype of the weights.

        Args:
            u: ``[K]`` float64 in [0, 1), or `BLANK`.
            warp: ``[K, 2]`` float32, temperature and top-p.
            number: int64 ``[K]``, each slot's number in its branch, from 0.
            anchors: ``[K, D]``, embedding of the token before each slot's branch; only the first
                slot of a branch uses it, and only if the adapter is `anchored`.
            shown: embeddings of tokens ``[K, D]`` and which slots show theirs, bool ``[K]``.
        """
        embedded: Tensor = self.embedding(u, warp)
        if shown is not None:
            tokens, which = shown
            embedded = torch.where(which[:, None], tokens.to(embedded.dtype), embedded)
        if self.numbers is not None:
            embedded = embedded + self.numbers[number.clamp(max=len(self.numbers) - 1)]
        if self.config.anchored:
            assert anchors is not None, "an anchored adapter needs the tokens before its branches"
            embedded = embedded + anchors.to(embedded.dtype) * (number == 0)[:, None]
        return embedded

    @property
    def num_parameters(self) -> int:
        """How many weights are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def factors(self, dtype: torch.dtype) -> dict[str, tuple[Tensor | None, Tensor]]:
        """A ``[r, in]`` (None: full rank) and scaled B ``[out, r]`` of every layer, cast."""
        found: dict[str, tuple[Tensor | None, Tensor]] = {}
        for name in self.config.layers:
            key = _key(name)
            high = (self.lora_b[key] * self.config.scale).to(dtype)
            low = self.lora_a[key].to(dtype) if self.config.rank else None
            found[name] = (low, high)
        return found

    def check_fits(self, module: Any) -> None:
        """`ValueError` unless the module has exactly the layers this adapter was made for."""
        shapes = layer_shapes(module)
        for name, shape in self.config.layers.items():
            if shapes.get(name) != tuple(shape):
                raise ValueError(
                    f"the adapter was made for another model: its layer {name} is {tuple(shape)}, "
                    f"the model's {shapes.get(name, 'missing')}"
                )
        width = module.get_input_embeddings().weight.shape[1]
        if width != self.config.width:
            raise ValueError(
                f"the adapter was made for a model {self.config.width} wide, not {width}"
            )
        extra = sorted(set(shapes) - set(self.config.layers))
        if extra:
            raise ValueError(f"the adapter was made for another model: it lacks layer {extra[0]}")

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write ``adapter.json`` and ``adapter.safetensors``, weights cast to `dtype`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(self.config.to_json(), encoding="utf-8")
        state = {name: value.to(dtype).contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: str | Path) -> SlotAdapter:
        """Read an adapter folder, in float32 on the CPU.

        Errors: `ValueError` in one line for a folder that is missing, incomplete or malformed.
        """
        folder = Path(folder).expanduser()
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            if not (folder / name).is_file():
                raise ValueError(
                    f"adapter {str(folder)!r}: there is no {name}; give a folder written by "
                    "`bench train ptp`, `bench train idlm` or `bench import`"
                )
        try:
            config = AdapterConfig.from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            adapter = cls(config)
            state = load_file(folder / WEIGHTS_FILE)
            adapter.load_state_dict({name: value.float() for name, value in state.items()})
        except (ValueError, TypeError, RuntimeError, SafetensorError) as error:
            line = " ".join(str(error).split())
            raise ValueError(f"adapter {str(folder)!r} cannot be loaded: {line}") from error
        return adapter.eval().requires_grad_(False)


def _key(name: str) -> str:
    """A layer's name as a parameter's: dots are not allowed there."""
    return name.replace(".", "/")
