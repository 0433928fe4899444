"""A real nats-server that tests use one after another, as long as each leaves it as it found it.

Starting one costs 0.1 s, most of its CPU for the fork of a process that holds torch, and nearly all tests on
the bus leave it alone. It keeps only what connections asked for: without any it is as new.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from services.launcher.processes.child import die_with
from shared.bus.nats_server import BINARY, MAX_PAYLOAD_BYTES, RUNTIME, WRITE_DEADLINE_S, nats_server_binary

START_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 0.5
"""The connections of a test that has ended are closed, but the server may not have read that yet."""
POLL_S = 0.002
HOST = "127.0.0.1"
CONFIG = f"""
max_payload: {MAX_PAYLOAD_BYTES}
write_deadline: '{WRITE_DEADLINE_S}s'
http: "{HOST}:-1"
"""


class LentNats:
    """One server, on a free port; it dies with the tests."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-nats-")
        folder = Path(self._folder.name)
        (folder / "nats.conf").write_text(CONFIG, encoding="utf-8")
        self._process = subprocess.Popen(
            [
                *(str(nats_server_binary()), "-c", str(folder / "nats.conf"), "-a", HOST, "-p", "-1"),
                *("--ports_file_dir", str(folder), "-l", str(folder / "log")),
            ],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **RUNTIME},
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - the child only makes the call
        )
        ports = self._ports(folder / f"{BINARY}_{self._process.pid}.ports")
        self.url = ports["nats"][0]
        self._monitor = ports["monitoring"][0].removeprefix("http://")

    def _ports(self, file: Path) -> dict[str, list[str]]:
        """What it listens on, as it writes once it does."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s:
            try:
                ports: dict[str, list[str]] = json.loads(file.read_text("utf-8"))
            except (FileNotFoundError, json.JSONDecodeError):
                time.sleep(POLL_S)
            else:
                return ports
        self.close()
        raise AssertionError(f"nats-server did not start in {START_TIMEOUT_S:g} s")

    def is_left(self) -> bool:
        """Whether nobody is connected, soon."""
        end_s = time.monotonic() + LEAVE_TIMEOUT_S
        while self._connections():
            if time.monotonic() > end_s:
                return False
            time.sleep(POLL_S)
        return True

    def _connections(self) -> int:
        with closing(http.client.HTTPConnection(self._monitor, timeout=ANSWER_TIMEOUT_S)) as connection:
            connection.request("GET", "/connz?limit=1")
            return int(json.load(connection.getresponse())["total"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
