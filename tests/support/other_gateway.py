"""A gateway beside those of a stack on an open bus, with settings of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from shared.bus.nats_server import nats_server_binary
from tests.support.data import REPOSITORY

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


@contextmanager
def open_nats() -> Iterator[str]:
    """The address of a server that lets everybody in."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(nats_server_binary()), "-a", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(STOP_TIMEOUT_S)


class OtherGateway:
    """`with OtherGateway(url, fleet_key, cache_mode="exact") as other:` `other.grpc` is where it listens; the
    keywords are fields of `[gateway]`."""

    def __init__(self, nats_url: str, fleet_key: str, **settings: str) -> None:
        own = {"grpc_port": "0", "http_host": "", **settings}
        self._environ = {
            **os.environ,
            "PENSTOCK_NATS_URL": nats_url,
            "PENSTOCK_FLEET_KEY": fleet_key,
            "PENSTOCK_LOG_FORMAT": "json",
            **{f"PENSTOCK_GATEWAY_{name.upper()}": value for name, value in own.items()},
        }
        self.grpc = ""
        self._ready = threading.Event()
        """It is, or has ended."""
        self._said: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.gateway"],
            cwd=REPOSITORY,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="gateway-log")
        self._reader.start()
        if not self._ready.wait(START_TIMEOUT_S) or not self.grpc:
            self._stop()
            raise AssertionError("the gateway did not become ready:\n" + "\n".join(self._said[-20:]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.rstrip("\n"))
            entry = json.loads(line) if line.startswith("{") else {}
            self.grpc = entry.get("grpc", self.grpc)
            if entry.get("event") == "ready":
                self._ready.set()
        self._ready.set()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
