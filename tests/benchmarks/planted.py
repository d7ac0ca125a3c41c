"""What `bench ab` says of a change that is known: none, a slow-down, fewer accepted tokens.

By hand, on an idle machine (a try takes some three minutes, of `fewer` half a minute):

    python -m tests.benchmarks.planted none 20 OUTPUT
    python -m tests.benchmarks.planted slower 10 OUTPUT
    python -m tests.benchmarks.planted fewer 10 OUTPUT

Two clones of HEAD, of which the second has the change; try t runs with seed t at the defaults of
`bench ab`, `fewer` in one repeat of 12 conversations. OUTPUT keeps every comparison as JSON, and
tries that are there already are not run again.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]

SLOWER = """            began = time.perf_counter()
            result = yield target.call((token,))
            until = time.perf_counter() + 0.083 * (time.perf_counter() - began)
            while time.perf_counter() < until:  # asleep the cores would also lose their warmth
                pass
"""
"""8 % of the time per token: calls are 97 % of it."""


@dataclass(frozen=True)
class Change:
    """A change to one file, and the options of the comparison that should tell it."""

    file: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()


CHANGES = {
    "none": Change(options=("--decoders", "ar")),
    "slower": Change(
        "decoders/ar.py",
        (
            ("            result = yield target.call((token,))\n", SLOWER),
            ("from dataclasses", "import time\nfrom dataclasses"),
        ),
        ("--decoders", "ar"),
    ),
    # one draft less in an eighth of the rounds: some 2 % fewer accepted tokens, the same text
    "fewer": Change(
        "decoders/spec.py",
        (("min(self.k, left - 1))", "min(self.k - (len(sequence) % 8 == 0), left - 1))"),),
        ("--decoders", "ar,spec", "--repeats", "1", "--limit", "12", "--gate", "counters.toml"),
    ),
}
"""By name; `fewer` is judged by a gate that has no timing in it."""
COUNTERS = "[time]\nfail = false\n"


def plant(tree: Path, change: Change) -> None:
    """Make the edits; each must fit exactly once."""
    for old, new in change.edits:
        path = tree / change.file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{change.file} has {text.count(old)} of {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")


def attempt(trees: list[Path], seed: int, options: tuple[str, ...], report: Path) -> None:
    """One `bench ab`."""
    base, head = map(str, trees)
    command = [sys.executable, str(ROOT / "cli.py"), "ab", "--base", base, "--head", head]
    command += [*options, "--seed", str(seed), "--progress", "none"]
    command += ["--output", str(report.parent), "--json", str(report)]
    ended = subprocess.run(command, cwd=report.parent, capture_output=True, text=True, check=False)
    if not report.is_file():
        raise SystemExit(ended.stdout + ended.stderr)


def told(cell: dict[str, Any]) -> str:
    """A decoder's verdict with every measure that changed, in percent; time with its interval."""
    changed = [measure for measure in cell["measures"] if measure["change"]]
    parts = [f"{m['name']} {100 * m['change']:+.1f}{interval(m)}" for m in changed]
    return " ".join([cell["cell"], cell["verdict"], *parts])


def interval(measure: dict[str, Any]) -> str:
    """Its interval in percent, where it has one."""
    ends = measure["low"], measure["high"]
    return "" if None in ends else f" [{100 * ends[0]:+.1f}, {100 * ends[1]:+.1f}]"


def main(name: str, tries: int, output: Path) -> None:
    """Run what is missing of the tries and print each with its verdict, then their number."""
    change = CHANGES[name]
    output.mkdir(parents=True, exist_ok=True)
    (output / "counters.toml").write_text(COUNTERS, encoding="utf-8")
    verdicts: Counter[str] = Counter()
    with TemporaryDirectory() as scratch:
        trees = [Path(scratch) / side for side in ("base", "head")]
        for tree in trees:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
        plant(trees[1], change)
        for seed in range(tries):
            report = output / f"{name}-{seed}.json"
            if not report.is_file():
                attempt(trees, seed, change.options, report)
            found = json.loads(report.read_text(encoding="utf-8"))
            verdicts[found["verdict"]] += 1
            print(seed, found["verdict"], *map(told, found["cells"]), sep="\t", flush=True)
    print(dict(verdicts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve())
