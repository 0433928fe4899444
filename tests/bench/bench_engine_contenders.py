"""One engine under the side-by-side benchmark: its process, stopped while another one is measured."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.make_model import MAX_POSITIONS, VOCAB_SIZE
from tests.support.data import REPOSITORY

RUNNERS = Path(__file__).parent / "peers"
LOAD_DEADLINE_S = 600.0  # the first start of one that compiles
MEASURE_DEADLINE_S = 300.0
END_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One engine at one precision; `model` is where its weights are, from the shape's name."""

    engine: str  # the runner's and the environment's name
    precision: str
    model: str = "{shape}"
    quantization: str = "none"

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.precision}"


KINDS = (
    Kind("penstock", "bf16"),
    Kind("openvino", "bf16", "{shape}-ov-fp16"),
    Kind("llama_cpp", "bf16", "{shape}-bf16.gguf"),
    Kind("vllm", "bf16"),
    Kind("transformers", "bf16"),
    Kind("penstock", "int8", quantization="int8"),
    Kind("openvino", "int8", "{shape}-ov-int8"),
    Kind("llama_cpp", "int8", "{shape}-q8_0.gguf"),
    Kind("penstock", "int4", quantization="int4"),
    Kind("penstock", "gguf", "{shape}.gguf"),
    Kind("llama_cpp", "gguf", "{shape}.gguf"),
)
GGUF_FILES = ("smollm2",)
"""Shapes of which there is one GGUF file of somebody else's, read as it is, and nothing else."""


def is_measured(kind: Kind, shape: str) -> bool:
    return (kind.precision == "gguf") == (shape in GGUF_FILES)


@dataclass(frozen=True, slots=True)
class Column:
    """What is measured: a prefill of one prompt (`steps` 0), or decode steps of a batch."""

    batch: int
    prompt_tokens: int
    steps: int

    @property
    def name(self) -> str:
        return f"decode b{self.batch}" if self.steps else f"prefill {self.prompt_tokens}"

    @property
    def tokens(self) -> int:
        return self.batch * self.steps or self.prompt_tokens


class ContenderError(Exception):
    """The engine's process ended, or did not answer in time."""


class Contender:
    """A loaded engine, stopped unless it measures: its background work costs the others nothing."""

    def __init__(
        self, kind: Kind, python: Path, model: Path, columns: list[Column], threads: int, log: Path
    ) -> None:
        self.kind = kind
        longest = max(column.prompt_tokens + column.steps for column in columns)
        command = [str(python), str(RUNNERS / f"{kind.engine}_runner.py"), "--model", str(model)]
        command += ["--threads", str(threads), "--vocab-size", str(VOCAB_SIZE)]
        command += ["--max-batch", str(max(column.batch for column in columns))]
        command += ["--max-tokens", str(min(2 * longest, MAX_POSITIONS)), "--quantization", kind.quantization]
        own = {"PYTHONPATH": str(REPOSITORY)} if kind.engine == "penstock" else {}
        self._log_path = log
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a process group, to be stopped and ended as one
            env={**os.environ, **own, "OMP_NUM_THREADS": str(threads)},
        )
        self._unread = b""
        try:
            told = self._answer(LOAD_DEADLINE_S)
        except BaseException:
            self.close()
            raise
        self.version: str = told["version"]
        self.compiles: bool = told["compiles"]
        self.peak_rss_mb = 0.0
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tokens_per_s(self, column: Column) -> float:
        request = {"batch": column.batch, "prompt_tokens": column.prompt_tokens, "steps": column.steps}
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(MEASURE_DEADLINE_S)
        finally:
            self._signal(signal.SIGSTOP)
        self.peak_rss_mb = max(self.peak_rss_mb, answer["peak_rss_mb"])
        return column.tokens / float(answer["seconds"])

    def close(self) -> None:
        """End the process and whatever it started."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            print(f"{self.kind.name} does not end by itself and is killed", file=sys.stderr)
        self._signal(signal.SIGKILL)
        self._process.wait(END_DEADLINE_S)
        self._process.stdout.close()
        self._log.close()

    def _answer(self, deadline_s: float) -> dict[str, Any]:
        """The next line of the process. Raises ContenderError when none comes."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                ready = selector.select(deadline_s)
                data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
                if not data:
                    what = "ended" if ready else f"did not answer within {deadline_s:.0f} s"
                    raise ContenderError(f"{self.kind.name} {what}; see {self._log_path}")
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # it has ended, with all that it started
