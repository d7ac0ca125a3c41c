"""Copy `bench/plan/starter.py` under a new name, and write its test, for `bench new-decoder`."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from bench.errors import UsageError
from bench.plan import starter
from bench.records.files import write_text
from decoders.core.registry import names

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TEST = '''"""{class_name} keeps the contract of decoders: `pytest test_{name}.py`."""

from pathlib import Path

import pytest

from decoders.core.checks import check_decoder
from decoders.core.registry import build
from decoders.core.types import DecoderSpec

FILE = Path(__file__).with_name("{name}.py")


def decoder(k: int):
    """Build the decoder as `bench run --decoders {name}.py:{class_name}:k=…` does."""
    return build(DecoderSpec(name=f"{{FILE}}:{class_name}", options={{"k": str(k)}}))


@pytest.mark.parametrize("k", [1, 4])
def test_it_meets_the_contract(k):
    check_decoder(decoder(k))


def test_an_option_out_of_range_is_refused():
    with pytest.raises(ValueError, match="option 'k'"):
        decoder(0)
'''


def new_decoder(name: str, folder: Path) -> tuple[list[Path], str]:
    """Write ``NAME.py`` and its test, and return both paths and the class's name (`UsageError`)."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a decoder name; use a-z, 0-9 and _, such as my_decoder")
    if keyword.iskeyword(name) or name in names() or find_spec(name) is not None:
        line = f"{name!r} is a decoder, a module or a keyword of Python already"
        raise UsageError(f"{line}; use another name, such as my_decoder")
    if not folder.is_dir():
        raise UsageError(f"--folder {folder}: there is no such folder; create it first")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    source = Path(starter.__file__).read_text(encoding="utf-8")
    texts = {
        f"{name}.py": source.replace("Starter", class_name).replace("starter", name),
        f"test_{name}.py": _TEST.format(name=name, class_name=class_name),
    }
    files = [folder / file for file in texts]
    if there := [file for file in files if file.exists()]:
        raise UsageError(f"{there[0]} exists and is not overwritten; use another NAME or --folder")
    for file, text in zip(files, texts.values(), strict=True):
        write_text(file, text)
    return files, class_name
