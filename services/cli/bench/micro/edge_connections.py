"""Measure what a new connection to an edge costs, and what one saves that is kept or resumed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc.aio

from services.cli.bench.micro.cost_rows import CostRow, cost_rows_of
from services.cli.bench.micro.edge_clients import GrpcClient, HttpClient, ask_in_thread
from services.cli.bench.micro.turns import TurnSide, TurnWork, take_turns
from services.cli.bench.stacks.own_stack import DEMO_PLAN, own_stack
from shared.errors import Unavailable

ASKS = 20
"""The questions of one turn, one after another."""
KEPT = {
    "HTTP, new connection": "HTTP, kept connection",
    "HTTPS, full handshake": "HTTPS, kept connection",
    "HTTPS, resumed session": "HTTPS, kept connection",
    "gRPC, new channel": "gRPC, kept channel",
    "gRPC over TLS, new channel": "gRPC over TLS, kept channel",
}
"""Ways to ask that connect, and the one that does not."""
OPENSSL_TIMEOUT_S = 30.0


async def measure_edge_connections(seconds: float, asks: int = ASKS) -> list[CostRow]:
    """Return the time of an answer by a small stack without TLS and by one with it, and its CPU time in the
    gateway. Raises Unavailable where they do not start, or a session is not resumed."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        certificate, key = await _make_certificate(folder)
        secure = {"PENSTOCK_GATEWAY_TLS_CERT": str(certificate), "PENSTOCK_GATEWAY_TLS_KEY": str(key)}
        sides: dict[str, TurnSide] = {}
        for tls, variables in ((None, {}), (certificate, secure)):
            plan = replace(DEMO_PLAN, variables=variables)
            small = await stack.enter_async_context(own_stack(plan))
            pids = (small.pids["gateway-0"],)
            http, channels = clients_of(small.address("http"), small.address("grpc"), tls)
            for name, client in http.items():
                stack.callback(client.close)
                sides[name] = TurnSide(_http_work(client, asks), pids, here=False)
            for name, channel in channels.items():
                stack.push_async_callback(channel.close)
                sides[name] = TurnSide(_grpc_work(channel, asks), pids, here=False)
        costs = await take_turns(sides, seconds)
    figures = {
        "ms an answer": lambda turn: 1e3 * turn.wall_s / asks,
        "CPU ms an answer": lambda turn: 1e3 * turn.cpu_s / asks,
    }
    return cost_rows_of(costs, {name: (kept,) for name, kept in KEPT.items()}, figures)


def clients_of(
    http: str, channel: str, certificate: Path | None
) -> tuple[Mapping[str, HttpClient], Mapping[str, GrpcClient]]:
    """Return clients of both edges at HOST:PORT each, by the names of their rows."""
    host, _, port = http.rpartition(":")
    address = host, int(port)
    if certificate is None:
        return (
            {
                "HTTP, kept connection": HttpClient(address, keeps=True),
                "HTTP, new connection": HttpClient(address),
            },
            {"gRPC, kept channel": GrpcClient(channel, keeps=True), "gRPC, new channel": GrpcClient(channel)},
        )
    return (
        {
            "HTTPS, kept connection": HttpClient(address, certificate, keeps=True),
            "HTTPS, resumed session": HttpClient(address, certificate, resumes=True),
            "HTTPS, full handshake": HttpClient(address, certificate),
        },
        {
            "gRPC over TLS, kept channel": GrpcClient(channel, certificate, keeps=True),
            "gRPC over TLS, new channel": GrpcClient(channel, certificate),
        },
    )


def _http_work(client: HttpClient, asks: int) -> TurnWork:
    async def work(turn: int) -> None:
        before = client.resumed
        await ask_in_thread(client, asks)
        if client.resumes and turn and client.resumed - before < asks:
            raise Unavailable(f"the edge resumed {client.resumed - before} of {asks} TLS sessions")

    return work


def _grpc_work(client: GrpcClient, asks: int) -> TurnWork:
    async def work(_turn: int) -> None:
        try:
            for _ in range(asks):
                await client.ask()
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"the edge does not answer: {error.details()}") from error

    return work


async def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return one for this host that signs itself, and its key. Raises Unavailable without openssl."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    try:
        process = await asyncio.create_subprocess_exec(
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise Unavailable("there is no openssl here to make a certificate with; install it") from error
    async with asyncio.timeout(OPENSSL_TIMEOUT_S):
        if await process.wait():
            raise Unavailable("openssl made no certificate")
    return certificate, key
