"""Plant every mutant in a copy of the tree and count those that the tests notice.

    python -m tests.mutants [--only ID ...] [--jobs N] [--time-limit S]

Exit codes: 0 all were caught; 1 some could not be planted or judged; 2 usage; 3 one survived.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.planting import (
    FOLDER,
    NOTICED,
    ROOT,
    Mutant,
    Result,
    copy_tree,
    judge,
    load_mutants,
    why_unfit,
)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, folder: Path = FOLDER) -> int:
    """Run the mutants of `folder` in copies of `root`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", metavar="ID", help="these mutants alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    parser.add_argument("--time-limit", type=float, default=600, metavar="S", help="per mutant")
    options = parser.parse_args(arguments)
    mutants = load_mutants(folder)
    if unknown := set(options.only or ()) - {mutant.id for mutant in mutants}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; it must be 1 or above")
    chosen = [
        mutant
        for mutant in mutants
        if (mutant.id in options.only if options.only else not mutant.equivalent)
    ]
    unfit, results = _run(chosen, root, options.jobs, options.time_limit)
    for line in unfit:
        print(line, file=sys.stderr)
    if unfit:
        return 1
    _report(results, num_equivalent=sum(bool(mutant.equivalent) for mutant in mutants))
    outcomes = {result.outcome for result in results}
    return 3 if "survived" in outcomes else int(not outcomes <= set(NOTICED))


def _run(
    mutants: Sequence[Mutant], root: Path, jobs: int, time_limit_s: float
) -> tuple[list[str], list[Result]]:
    """Why test files can judge nothing (then nothing is planted), and the mutants' results."""
    with ExitStack() as stack:
        trees: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
            trees.put(copy_tree(root, Path(folder)))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))

        def examined(test: str) -> str:
            tree = trees.get()
            try:
                return why_unfit(test, tree)
            finally:
                trees.put(tree)

        def judged(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                result = judge(mutant, tree, time_limit_s)
            finally:
                trees.put(tree)
            print(f"{result.outcome:11} {result.seconds:5.0f} s  {mutant.id}", flush=True)
            return result

        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        unfit = [why for why in pool.map(examined, tests) if why]
        return unfit, [] if unfit else list(pool.map(judged, mutants))


def _report(results: Sequence[Result], num_equivalent: int) -> None:
    """The count, and a row for every mutant that was not caught."""
    counts = Counter(result.outcome for result in results)
    left = [result for result in results if result.outcome not in NOTICED]
    if left:
        print("\n| mutant | file | outcome | what it breaks |\n|---|---|---|---|")
    for result in left:
        mutant = result.mutant
        print(f"| {mutant.id} | {mutant.file} | {result.outcome} | {mutant.breaks} |")
    for result in left:
        if result.why:
            print(f"\n{result.mutant.id}: {result.why}")
    said = ", ".join(f"{num} {outcome}" for outcome, num in sorted(counts.items()))
    print(f"\n{len(results)} mutants planted: {said}; {num_equivalent} equivalent, not counted")


if __name__ == "__main__":
    sys.exit(main())
