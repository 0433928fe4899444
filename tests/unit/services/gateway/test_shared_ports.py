"""Leaving a port that others share, with real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from services.gateway import shared_ports
from services.gateway.shared_ports import divert_new_connections

HOST = "127.0.0.1"
CONNECT_TIMEOUT_S = 60


@contextmanager
def listener(port: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((HOST, port))
        one.listen(8)
        one.setblocking(False)
        yield one


@contextmanager
def connecting(port: int) -> Iterator[socket.socket]:
    """Its first packet has arrived, or was dropped, when this is entered: the loopback needs no time."""
    with socket.socket() as one:
        one.setblocking(False)
        one.connect_ex((HOST, port))
        yield one


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_ports, "HANDSHAKES_S", 0.0)


async def test_what_has_connected_is_still_accepted_and_nothing_new_is() -> None:
    with listener() as one, ExitStack() as clients:
        port = one.getsockname()[1]
        early = clients.enter_context(connecting(port))
        await divert_new_connections([f"{HOST}:{port}", ""])
        clients.enter_context(connecting(port))
        with one.accept()[0] as accepted:
            assert accepted.getpeername() == early.getsockname()
        with pytest.raises(BlockingIOError):
            one.accept()


async def test_an_accepted_connection_goes_on() -> None:
    with listener() as one, connecting(one.getsockname()[1]) as client, one.accept()[0] as accepted:
        await divert_new_connections([f"{HOST}:{one.getsockname()[1]}"])
        client.send(b"more")
        assert accepted.recv(4) == b"more"


async def test_who_came_meanwhile_reaches_another_listener_once_the_port_is_left() -> None:
    with listener() as left:
        port = left.getsockname()[1]
        await divert_new_connections([f"{HOST}:{port}"])
        with connecting(port) as client, listener(port) as other:
            left.close()
            loop = asyncio.get_running_loop()
            accepted, _ = await asyncio.wait_for(loop.sock_accept(other), CONNECT_TIMEOUT_S)
            with accepted:
                assert accepted.getpeername() == client.getsockname()


async def test_other_ports_are_left_alone() -> None:
    with listener() as one, listener() as other:
        await divert_new_connections([f"{HOST}:{one.getsockname()[1]}"])
        with connecting(other.getsockname()[1]), other.accept()[0]:
            pass
