"""The pages of a process, /metrics and the like, by bytes on a connection that are nearly HTTP."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shared.telemetry.http import TelemetryServer
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, RunOne, Target

REQUESTS = (
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /ready HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    b"GET /live?x=1 HTTP/1.0\r\n\r\n",
    b"GET /extra HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
)
ANSWER_S = 10.0


def make(rng: random.Random) -> bytes:
    data = mutated_bytes(rng.choice(REQUESTS), rng)
    return data if rng.random() < 0.5 else data + b"\r\n\r\n"


@contextmanager
def opened() -> Iterator[RunOne]:
    server = TelemetryServer("gateway", lambda: True)
    server.add_page("/extra", lambda: "{}")
    with asyncio.Runner() as runner, structlog.testing.capture_logs() as logs:
        runner.run(server.start("127.0.0.1", 0))
        host, _, port = server.address.rpartition(":")

        def run_one(data: bytes) -> None:
            with socket.create_connection((host, int(port)), ANSWER_S) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while piece := client.recv(1 << 16):
                        answer += piece
                except ConnectionResetError:  # it closes with bytes unread
                    return
            if answer and not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 4", b"HTTP/1.1 503")):
                raise Fault(f"answered with {answer[:80]!r}")
            failed = [line for line in logs if line["log_level"] in ("error", "critical")]
            logs.clear()
            if failed:
                raise Fault(f"logged {failed[0]}")

        try:
            yield run_one
        finally:
            runner.run(server.close())


TARGET = Target("telemetry_page", make, opened, tries=100)
