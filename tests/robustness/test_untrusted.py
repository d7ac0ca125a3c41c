"""Files of strangers: nothing in a record or a checkpoint is run, or shown as anything but text."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from bench import runs as bench_run
from bench.cli.listing import facts_table
from bench.compare.compare import compare
from bench.compare.gate import load_gate
from bench.compare.show import to_markdown
from bench.errors import BenchError, Exit
from bench.extras.paper.table import PaperLayout
from bench.extras.paper.write import write_paper
from bench.extras.show.show import show_run
from bench.extras.together.page import write_joint
from bench.extras.together.runs import load_members, name_runs
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.write import print_findings, write_report
from bench.stats.side import load_side
from bench.text import latex, markdown, printable
from decoders.core.hf.model import HFModel, load_tokenizer
from tests.bench.conftest import make_record, write_run
from tests.conftest import only_svg

HOSTILE = (
    "spec@<script>alert(1)</script>",
    "spec@<img/src=x/onerror=alert(1)>",
    'spec@"onload="alert(1)',
    "spec@a|b`c`[d](javascript:alert(1))",
    r"spec@\input{/etc/passwd}$\frac{$%&#_^~{}",
    "spec@{{7*7}}{%raw%}",
)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202eabc\x9b31m"


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.scripts += [""] * (tag == "script")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose every text is an attack."""
    path = write_run(
        tmp_path_factory.mktemp("hostile") / "run",
        dict.fromkeys(HOSTILE, 3.0),
        conversations=3,
        repeats=1,
        quality=2,
        env={"device": HOSTILE[0], "gpu": {"name": HOSTILE[4]}, "note|": HOSTILE[3] + ESCAPES},
    )
    bad = [
        make_record(
            HOSTILE[0],
            kind="quality",
            block=-1,
            conversation=f"{HOSTILE[1]}{ESCAPES}{n}",
            error=f"ValueError: {text}{ESCAPES}\n# heading",
        )
        for n, text in enumerate(HOSTILE)
    ]
    rows = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    failed = next(row for row in rows if row["decoder"] == HOSTILE[0] and row["kind"] == "timing")
    failed |= {"error": "late", "tokens": None, "text": None, "steps": None}  # captions name it
    with (path / "samples.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.writelines(record.to_json() + "\n" for record in bad)
    pieces = {str(i): f"{ESCAPES}[bold]<b>" for i in range(80)}
    (path / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")
    config = {"model": HOSTILE[0], "run_name": HOSTILE[3]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    (path / "config.toml").write_text("max_new_tokens = 256\n" + "\n".join(lines) + "\n")
    status = {"status": "complete", "verdict": HOSTILE[0], "reasons": [HOSTILE[1] + "\n- x"]}
    (path / "run.json").write_text(json.dumps(status | {"warnings": [*HOSTILE, ESCAPES]}))
    with only_svg():
        write_report(path)
    return path


def test_the_page_holds_no_tag_or_handler_of_a_record(hostile_run: Path) -> None:
    page = (hostile_run / "report.html").read_text(encoding="utf-8")
    found = Tags()
    found.feed(page)
    assert not found.tags & {"img", "iframe", "object", "b"}
    *chunks, code = found.scripts
    assert chunks
    assert all(re.fullmatch(r"[A-Za-z0-9+/]+=*", chunk) for chunk in chunks), "data, and no code"
    assert not re.search(r"alert|spec@|owned", code), "the page's own code holds no record"
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    places = [value for name, value in found.attributes if name != "aria-label"]  # which is text
    assert not [value for value in places if "javascript:" in value.lower()]
    assert "&lt;script&gt;" in page
    assert "{{7*7}}" in page, "nothing is rendered as a template"


def test_drawings_hold_names_as_text(hostile_run: Path) -> None:
    drawing = (hostile_run / "figures" / "speedup.svg").read_text(encoding="utf-8")
    found = Tags()
    found.feed(drawing)
    assert not found.tags & {"script", "img", "image", "foreignobject"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_markdown_holds_no_tag_link_or_cell_of_a_record(hostile_run: Path) -> None:
    head = load_side(str(hostile_run), hostile_run.parent)
    written = [
        (hostile_run / "report.md").read_text(encoding="utf-8"),
        to_markdown(compare(head, head, load_gate(None))),
    ]
    for text in written:
        assert not re.search(r"<(script|img|b)\b", text)
        assert "](javascript" not in text
        assert "\n# heading" not in text
        assert "\x1b" not in text
        tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
        assert any(line.startswith("| spec@") for table in tables for line in table.splitlines())
        for table in tables:  # as many cells in every row as in the heading
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_latex_holds_no_command_of_a_record(hostile_run: Path, tmp_path: Path) -> None:
    side = load_side(str(hostile_run), hostile_run.parent)
    write_paper(name_runs([side]), tmp_path / "paper", PaperLayout(venue="neurips"))
    names = ("main.tex", "references.bib")
    written = [*(tmp_path / "paper" / name for name in names)]
    for file in written:
        text = file.read_text(encoding="utf-8")
        assert "\\input" not in text
        assert "\\frac" not in text
        assert "textbackslash" in text or file.suffix == ".bib"
        assert "\x1b" not in text


def test_a_report_of_several_runs_escapes_the_text_of_records(
    hostile_run: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "<b>other</b>", {"spec": 3.0}, conversations=3, repeats=1)
    status = json.loads((hostile_run / "run.json").read_text(encoding="utf-8"))
    valid = tmp_path / "valid"
    shutil.copytree(hostile_run, valid)
    (valid / "run.json").write_text(json.dumps(status | {"verdict": "VALID"}), encoding="utf-8")
    write_joint(load_members([str(valid), str(other)], tmp_path), tmp_path / "joint")
    found = Tags()
    found.feed((tmp_path / "joint" / "report.html").read_text(encoding="utf-8"))
    assert not found.tags & {"img", "iframe", "object", "b"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not [value for _, value in found.attributes if "javascript:" in value.lower()]
    text = (tmp_path / "joint" / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"<(script|img|b)\b", text)
    assert "](javascript" not in text
    assert "\x1b" not in text
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_the_terminal_gets_no_control_sequences_of_a_record(
    hostile_run: Path, colours: Any
) -> None:
    console = Console(width=200, color_system=colours, force_terminal=colours is not None)
    with console.capture() as capture:
        print_findings(Findings(load_run(hostile_run)), console)
        show_run(hostile_run, console)
        show_run(hostile_run, console, prompt=None, decoders=[HOSTILE[0]])
        console.print(facts_table("runs", hostile_run.parent))
    shown = capture.get()
    assert "\x1b]0;" not in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown, "markup of a record is text"


def test_text_is_escaped_for_the_terminal_markdown_and_latex() -> None:
    assert printable("a\x1b[1m\tb\nc\x7f\x85\u202e") == "a␛[1m\tb\nc␡\ufffd\ufffd"
    assert markdown("a|b\n<i> [x](y) `z`") == "a\\|b &lt;i> [x]\\(y) \\`z\\`"
    assert latex("50% of $x_1$ \\ {~^}\n#&") == (
        "50\\% of \\$x\\_1\\$ \\textbackslash{} \\{\\textasciitilde{}\\textasciicircum{}\\} \\#\\&"
    )
    assert BenchError("no \x1b[2J").message == "no ␛[2J"


# ---------------------------------------------------------------- code


POISON = "from pathlib import Path\nPath({ran!r}).touch()\nraise SystemExit('it ran')\n"


@pytest.fixture
def poison(tmp_path: Path) -> tuple[Path, Path]:
    """A decoder's file that leaves a mark where it is imported, and the mark."""
    file, mark = tmp_path / "poison.py", tmp_path / "ran"
    file.write_text(POISON.format(ran=str(mark)))
    return file, mark


@pytest.mark.slow
def test_a_decoder_file_runs_only_if_the_command_names_it(
    poison: tuple[Path, Path],
    small: Any,
    opener: Any,
    progress: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, mark = poison
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    run = write_run(tmp_path / "run", {f"{file}:Mine": 3.0}, conversations=2, quality=1)
    (run / "config.toml").write_text(
        f'max_new_tokens = 256\n[decoders."{file}:Mine"]\n[decoders."poison.py:Mine"]\n'
    )
    write_report(run)
    console = Console(file=None, quiet=True)
    print_findings(Findings(load_run(run)), console)
    show_run(run, console)
    console.print(facts_table("runs", tmp_path))
    console.print(facts_table("decoders", tmp_path))
    compare(load_side(str(run), tmp_path), load_side(str(run), tmp_path), load_gate(None))
    assert Findings(load_run(run)).headline.rows
    ended = bench_run.run(small(decoders=None, limit=2, repeats=1, quality_limit=0), tmp_path / "r",
                        progress(), opener, report=None)  # fmt: skip
    assert ended.exit_code == Exit.DONE
    assert not mark.exists()
    with pytest.raises(BenchError, match="cannot be imported: SystemExit: it ran"):
        bench_run.run(
            small(decoders=f"{file}:Mine"), tmp_path / "r", progress(), opener, report=None
        )
    assert mark.exists(), "so the mark works"


# ---------------------------------------------------------------- checkpoints


class Payload:
    """Unpickled without restriction, this makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (str(self.mark),)


def load(folder: Path) -> HFModel:
    return HFModel.load(folder, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickled_checkpoint_is_refused_and_runs_nothing(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Payload(mark)}, folder / name)
    with pytest.raises(
        ValueError, match=r"cannot be loaded|its weights are a pickle .* not read"
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    shutil.copy(folder / name, tmp_path / "pickle")
    torch.load(tmp_path / "pickle", weights_only=False)
    assert mark.exists(), "so the mark works"


def test_a_pickle_beside_safetensors_is_not_even_read(tiny_model: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_model, folder)
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "adapter_model.bin"):
        torch.save(Payload(mark), folder / name)
    assert load(folder).vocab_size
    assert load_tokenizer(folder).eos_token_id is not None
    assert not mark.exists()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_a_model_beside_a_peft_adapter_is_refused(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_model, folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1}')
    torch.save({"weights": Payload(mark)}, folder / name)
    with pytest.raises(ValueError, match="has an adapter of PEFT; merge it"):
        load(folder)
    assert not mark.exists()


def test_a_checkpoint_with_missing_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    lost = [name for name in weights if "down_proj" in name or "model.norm" in name]
    kept = {name: value for name, value in weights.items() if name not in lost}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks weights of its architecture .{min(lost)}"):
        load(folder)


def test_code_beside_a_checkpoint_is_not_run(tiny_model: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_model, folder)
    (folder / "modeling_x.py").write_text(POISON.format(ran=str(mark)))
    classes = {"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M"}
    for name, extra in (
        ("config.json", {"auto_map": classes, "model_type": "x", "architectures": ["M"]}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["modeling_x.T", None]}}),
    ):
        data = json.loads((folder / name).read_text())
        if name == "tokenizer_config.json":
            data.pop("tokenizer_class", None)
        (folder / name).write_text(json.dumps(data | extra))
    with pytest.raises(ValueError, match=r"cannot be loaded.*") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_tokenizer(folder)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04.", b"\0" * 64])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_checkpoint_is_refused_in_one_line(
    tiny_model: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        load_tokenizer(folder) if name == "tokenizer.json" else load(folder)
    assert "\n" not in str(caught.value)
