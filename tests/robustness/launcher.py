"""Starts `bench` in processes that have imported everything already, and says how they ended.

Fifty runs need not import torch fifty times: this process imports it, computes nothing, and forks.
Nor need they draw every figure in every format, which are all written alike: here it is one.
Requests and answers are JSON, one a line: ``{"argv": [...], "log": FILE}`` starts the command line
and is answered by its ``{"pid": N}``; ``{"wait": N}`` by ``{"status": N}``, negative for a signal.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

import cli
from bench import runs  # noqa: F401
from bench.report.figures import canvas, dots, gallery
from decoders import ar, ptp, spec  # noqa: F401
from decoders.core.hf import model as hf  # noqa: F401
from specbench_tasks import scorers  # noqa: F401


def _one_figure(findings: Any) -> gallery.Gallery:
    figure = dots.speedup_figure(findings.summary, findings.floor)
    drawn = {} if figure is None else {"speedup": figure}
    return gallery.Gallery(plots=drawn, captions={"speedup": "Speed-up."}, left_out=())


def _one_format(figure: Any, kinds: Sequence[str] = ()) -> dict[str, bytes]:
    del kinds
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return {"svg": buffer.getvalue()}


def start(argv: list[str], log: str) -> int:
    """The process id of `bench` with these arguments, its output in `log`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["bench", *argv]
        gallery.draw_all, canvas.render = _one_figure, _one_format
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Answer until stdin ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    channel.write(json.dumps({"ready": True}) + "\n")
    channel.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"pid": start(asked["argv"], asked["log"])}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
