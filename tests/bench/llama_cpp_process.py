"""llama.cpp in a process of its own, asked line by line: `peers/llama_cpp_text.py` says what."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUNNER = Path(__file__).parent / "peers" / "llama_cpp_text.py"


@contextmanager
def llama_cpp_process(
    environment: Path, model: Path, threads: int, context_tokens: int
) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """What asks it and returns its answer. `environment`: a virtual environment that has `llama_cpp`."""
    command: list[str | Path] = [environment / "bin" / "python", RUNNER, model, "--threads", str(threads)]
    command += ["--context", str(context_tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            print(json.dumps(request), file=questions, flush=True)
            line = answers.readline()
            if not line:
                raise RuntimeError("llama.cpp's process has ended; see what it printed above")
            answer: dict[str, Any] = json.loads(line)
            return answer

        try:
            yield ask
        finally:
            questions.close()
