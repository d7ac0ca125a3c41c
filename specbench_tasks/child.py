"""Answer questions about untrusted text in a process with limits of time and memory.

Python code cannot stop a power of large numbers or a text of a billion characters. So a child
does such work. The system ends a child beyond its limits; the next question starts another.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[1])
_READY = "ready"
_WALL_S = 120
"""Limit of seconds by the clock for one question."""
_BYTES = 4 << 30
"""Limit of memory in bytes."""


class Ended(Exception):
    """Report that the child reached a limit."""


class Child:
    """Run a process that imports `module` and calls ``serve``, which calls `answer_questions`."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def ask(self, cpu_s: int, *question: Any) -> Any:
        """Return the child's answer to a question. Both have JSON's types.

        `cpu_s` limits the processor's seconds, so that a busy machine changes no answer.

        Raises:
            Ended: the child reached a limit.
            RuntimeError: the child did not start.
        """
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([cpu_s, *question]) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith("\n"):
            self.close()
            raise Ended(f"it took more than {cpu_s} s or {_BYTES >> 30} GB")
        return json.loads(line)

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError):
                process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        code = f"import sys; sys.path.insert(0, {_ROOT!r}); import {self.module} as m; m.serve()"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            _, reason = process.communicate()
            last = (reason.splitlines() or ["it did not start"])[-1]
            raise RuntimeError(f"{self.module}: {last}")
        return process


def ask(module: str, cpu_s: int, *question: Any) -> Any:
    """Ask this process's child for a module (raises as `Child.ask`). Each fork has its child."""
    return _child(module, os.getpid()).ask(cpu_s, *question)


@cache
def _child(module: str, _process_id: int) -> Child:
    return Child(module)


def answer_questions(answer: Callable[..., Any]) -> None:
    """Answer questions in the child, one per line, until the parent ends."""
    import resource
    import signal

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, limit_s = resource.getrlimit(resource.RLIMIT_CPU)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    answers.write(f"{_READY}\n")
    answers.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):  # a library's prints are no answers, and may block
        os.dup2(nothing, stream.fileno())
    for line in sys.stdin:
        cpu_s, *question = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (until, limit_s))
        signal.alarm(_WALL_S)
        answers.write(json.dumps(answer(*question)) + "\n")
        answers.flush()
        signal.alarm(0)
