"""llama.cpp's own llama-batched-bench under the benchmark; see peer_protocol.py.

The program is looked for beside this python: put it, or a link to it, into the environment's bin. It decodes
without sampling, a small advantage. It loads the model for every request and warms up before it measures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from peer_protocol import serve

DEADLINE_S = 600


class LlamaCpp:
    compiles = False

    def __init__(self, options: argparse.Namespace) -> None:
        program = Path(sys.executable).parent / "llama-batched-bench"
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.version = "llama.cpp " + next(
            line.removeprefix("version: ")
            for line in (told.stdout + told.stderr).splitlines()
            if "version" in line
        )
        self._command = [str(program), "-m", options.model, "--output-format", "jsonl"]
        self._command += ["-t", str(options.threads), "-tb", str(options.threads), "-b", "2048", "-ub", "512"]

    def prefill_s(self, prompt: list[int]) -> float:
        return self._measure(1, len(prompt), 1)["t_pp"]

    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        return self._measure(len(prompts), len(prompts[0]), steps)["t_tg"]

    def _measure(self, batch: int, prompt_tokens: int, steps: int) -> dict[str, float]:
        context = batch * (prompt_tokens + steps)
        sizes = ["-c", str(context), "-npl", str(batch), "-npp", str(prompt_tokens), "-ntg", str(steps)]
        done = subprocess.run(
            [*self._command, *sizes], stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        figures: dict[str, float] = rows[-1]
        return figures


if __name__ == "__main__":
    serve(LlamaCpp)
