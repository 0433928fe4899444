"""Servers under the side-by-side benchmark: each started once, and stopped while another one is measured."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.process_cost import cpu_s, pss_mb
from tests.bench.serve_client import Door, GrpcDoor, HttpDoor
from tests.support.client import connect
from tests.support.stack import Stack

READY_DEADLINE_S = 600.0  # the first start of one that compiles
READY_POLL_S = 0.5
END_DEADLINE_S = 20.0
KV_TOKENS = 16_384  # room for all sequences of a column at once
CONTEXT_TOKENS = 8192
STREAMS = 16
THREADS = len(os.sched_getaffinity(0))
OPENVINO_SERVER = Path(__file__).parent / "peers" / "openvino_server.py"


@dataclass(frozen=True, slots=True)
class Contender:
    """A running server and one of the ways into it."""

    name: str
    pid: int
    """The process that started all others of the server."""
    address: str
    model: str = ""
    """The name that requests over HTTP give; empty for gRPC."""

    @asynccontextmanager
    async def door(self) -> AsyncIterator[Door]:
        if self.model:
            host, _, port = self.address.rpartition(":")
            yield HttpDoor(host, int(port), self.model)
        else:
            async with connect(self.address) as stub:
                yield GrpcDoor(stub)

    def pause(self) -> None:
        _signal_family(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        _signal_family(self.pid, signal.SIGCONT)

    def pss_mb(self) -> float:
        """Memory of all its processes; what several share counts once."""
        return sum(pss_mb(pid) for pid in _family(self.pid))

    def cpu_s(self) -> float:
        """Of all its processes since they began."""
        return sum(cpu_s(pid) for pid in _family(self.pid))


@contextmanager
def penstock(model: Path, options: list[str]) -> Iterator[list[Contender]]:
    """The stack as `penstock up` starts it, without retrieval and drafts: by gRPC and by HTTP."""
    up = ("--model", str(model), "--corpus", "none", "--retriever", "0", "--draft", "none", *options)
    ready = ("--start-timeout", f"{READY_DEADLINE_S:g}")  # as long as any other
    with Stack(*up, *ready, start_timeout_s=READY_DEADLINE_S) as stack:
        pid = stack.process.pid
        by_grpc = Contender("penstock, gRPC", pid, stack.grpc)
        yield [by_grpc, Contender("penstock, HTTP", pid, stack.http.removeprefix("http://"), model.name)]
        by_grpc.resume()


@contextmanager
def vllm(model: Path, venv: Path, log: Path, *, caches_prefixes: bool) -> Iterator[list[Contender]]:
    """vLLM's own server, both cores bound (else it keeps one free)."""
    port = _free_port()
    command = [str(venv / "bin" / "vllm"), "serve", str(model), "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(STREAMS)]
    command += ["--enable-prefix-caching" if caches_prefixes else "--no-enable-prefix-caching"]
    command += ["--served-model-name", model.name]
    openmp = venv / "lib" / "libiomp5.so"  # vLLM's documentation asks for it to be there first
    environ = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
    }
    with _server(command, port, environ, log) as pid:
        yield [Contender("vLLM", pid, f"127.0.0.1:{port}", model.name)]


@contextmanager
def llama_cpp(gguf: Path, server: Path, log: Path) -> Iterator[list[Contender]]:
    """llama.cpp's own server with one KV cache for all its slots."""
    port = _free_port()
    command = [str(server), "-m", str(gguf), "--port", str(port), "-t", str(THREADS), "-tb", str(THREADS)]
    command += ["-c", str(KV_TOKENS), "-np", str(STREAMS), "-kvu", "-cb", "--no-webui", "--alias", gguf.stem]
    with _server(command, port, {}, log) as pid:
        yield [Contender("llama.cpp", pid, f"127.0.0.1:{port}", gguf.stem)]


@contextmanager
def openvino(model: Path, venv: Path, log: Path) -> Iterator[list[Contender]]:
    """OpenVINO GenAI's continuous batching behind `peers/openvino_server.py`: Model Server is a container."""
    port = _free_port()
    command = [str(venv / "bin" / "python"), str(OPENVINO_SERVER), "--model", str(model)]
    command += ["--port", str(port), "--threads", str(THREADS), "--streams", str(STREAMS)]
    with _server(command, port, {}, log) as pid:
        yield [Contender("OpenVINO GenAI", pid, f"127.0.0.1:{port}", model.name)]


@contextmanager
def dynamo(model: Path, venv: Path, logs: Path) -> Iterator[list[Contender]]:
    """NVIDIA Dynamo's frontend before its mocker, with the settings that were quickest here: discovery in
    files, requests over TCP, a mocker that waits for nothing."""
    port = _free_port()
    python = str(venv / "bin" / "python")
    planes = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
    name = "mocked"
    mocker = [python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", name, *planes]
    mocker += ["--speedup-ratio", "1000000", "--max-num-seqs", "128"]
    frontend = [python, "-m", "dynamo.frontend", "--http-port", str(port), *planes]
    with TemporaryDirectory(prefix="penstock-dynamo-") as folder:
        # One family: the shell waits for both.
        both = f"{shlex.join(mocker)} & exec {shlex.join(frontend)}"
        environ = {"DYN_FILE_KV": folder, "DYN_LOG": "error"}
        with _server(["sh", "-c", both], port, environ, logs / "dynamo.log", "/v1/models", name) as pid:
            yield [Contender("Dynamo, HTTP", pid, f"127.0.0.1:{port}", name)]


@contextmanager
def _server(
    command: list[str], port: int, environ: dict[str, str], log: Path, page: str = "/health", says: str = ""
) -> Iterator[int]:
    """Its process once `page` is there and `says` so. Raises RuntimeError, naming its log."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environ}
        )
    try:
        began_s = time.monotonic()
        while not _ready(f"http://127.0.0.1:{port}{page}", says):
            if process.poll() is not None or time.monotonic() - began_s > READY_DEADLINE_S:
                raise RuntimeError(f"{command[0]} did not become ready; see {log}")
            time.sleep(READY_POLL_S)
        yield process.pid
    finally:
        _signal_family(process.pid, signal.SIGCONT)
        _signal_family(process.pid, signal.SIGTERM)
        try:
            process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str, says: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=READY_POLL_S) as response:
            return says in response.read().decode()
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_family(pid: int, number: signal.Signals) -> None:
    for one in _family(pid):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(one, number)


def _family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue  # it ended meanwhile
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found
