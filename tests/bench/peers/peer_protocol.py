"""How the benchmark talks to one engine under test: a process that stays loaded and measures on request.

Plain standard library, because every peer runs it with the python of its own environment. A request is one
JSON line on stdin, its answer one on stdout; what else the engine prints goes to stderr. The first line,
unasked, says that the model is loaded, and which version it is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol


class Contender(Protocol):
    """One loaded engine. All times exclude loading and tokenization."""

    version: str
    compiles: bool  # whether the first call of a shape is slower than the next ones

    def prefill_s(self, prompt: list[int]) -> float:
        """From the request of one prompt, alone, to its first token."""
        ...

    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        """`steps` steps in which every prompt's sequence decodes; their prefill is not timed."""
        ...


def serve(load: Callable[[argparse.Namespace], Contender]) -> None:
    """Load, say so, and answer requests until stdin ends."""
    options = _parser().parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like
    contender = load(options)
    _answer(answers, {"version": contender.version, "compiles": contender.compiles})
    random = Random(0)
    for line in sys.stdin:
        request = json.loads(line)
        sizes = [request["prompt_tokens"]] * request["batch"]
        prompts = [random.choices(range(options.vocab_size), k=size) for size in sizes]
        if request["steps"]:
            seconds = contender.decode_s(prompts, request["steps"])
        else:
            seconds = contender.prefill_s(prompts[0])
        _answer(answers, {"seconds": seconds, "peak_rss_mb": peak_rss_mb()})


def peak_rss_mb() -> float:
    """The most memory that this process, or one that it started, has held at once."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    status = Path("/proc/self/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(own, children) * 1024 / 1e6


def _answer(answers: Any, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=answers, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--max-batch", type=int, required=True)
    parser.add_argument(
        "--max-tokens", type=int, required=True, help="the longest sequence, prompt and output"
    )
    parser.add_argument("--quantization", default="none")
    return parser
