"""Connections without a call make room, with real sockets and a clock of the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from services.gateway.grpc import idle_connections
from services.gateway.grpc.idle_connections import SETTLED_S, ConnectionCalls, IdleConnections, peer_name
from tests.support.clock import FakeClock

HOST = "127.0.0.1"
LATER_S = 10.0


@dataclass
class Server:
    """Accepts connections at a port; `look` is what a gateway does each half second."""

    most: int
    held: ExitStack
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.listening = self.held.enter_context(socket.create_server((HOST, 0)))
        self.port: int = self.listening.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self.calls = ConnectionCalls(self.most, self.clock)
        self.idle = IdleConnections(self.most, self.calls, self.clock)

    def connect(self) -> socket.socket:
        """Return the client's end."""
        client = self.held.enter_context(socket.create_connection((HOST, self.port)))
        self.accepted.append(self.held.enter_context(self.listening.accept()[0]))
        return client

    def look(self) -> None:
        """Look once, and close what has ended, as gRPC does."""
        self.idle.make_room(self.port)
        for ended in filter(is_closed, self.accepted):
            ended.close()
        self.accepted = [one for one in self.accepted if one.fileno() >= 0]
        self.clock.advance(LATER_S)


@pytest.fixture
def server() -> Iterator[Server]:
    """One of four places."""
    with ExitStack() as held:
        yield Server(4, held)


@pytest.fixture(autouse=True)
def nobody_was_just_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's clock does not go by that of the test."""
    monkeypatch.setattr(idle_connections, "JUST_HEARD_MS", 0)


def peer_of(client: socket.socket) -> str:
    host, port = client.getsockname()
    return f"ipv4:{host}:{port}"


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def closed(clients: list[socket.socket]) -> list[bool]:
    return [is_closed(client) for client in clients]


def test_one_place_is_kept_free_by_who_came_first(server: Server) -> None:
    clients = []
    for _ in range(4):
        clients.append(server.connect())
        server.look()
    server.look()
    assert closed(clients) == [True, False, False, False]


def test_nothing_happens_while_a_place_is_free(server: Server) -> None:
    clients = [server.connect() for _ in range(3)]
    server.look()
    server.look()
    assert closed(clients) == [False] * 3


def test_of_many_places_more_are_kept_free() -> None:
    with ExitStack() as held:
        server = Server(32, held)
        clients = [server.connect() for _ in range(32)]
        server.look()
        server.look()
        assert closed(clients).count(True) == 2


def test_who_has_a_call_stays_and_is_the_last_again_when_it_has_ended(server: Server) -> None:
    clients = [server.connect() for _ in range(4)]
    server.look()
    with server.calls.open_call(peer_of(clients[0])), server.calls.open_call(peer_of(clients[1])):
        server.look()
        assert closed(clients) == [False, False, True, False]
        server.clock.advance(LATER_S)
    clients[2] = server.connect()
    server.look()
    server.look()
    assert closed(clients) == [False, False, False, True]


def test_two_calls_of_a_connection_end_one_by_one(server: Server) -> None:
    client = server.connect()
    name = peer_name(peer_of(client))
    with server.calls.open_call(peer_of(client)):
        with server.calls.open_call(peer_of(client)):
            pass
        assert server.calls.has_call(name)
    assert not server.calls.has_call(name)


def test_who_has_just_come_or_was_just_answered_is_left_alone(server: Server) -> None:
    clients = [server.connect() for _ in range(4)]
    server.idle.make_room(server.port)
    server.clock.advance(SETTLED_S - 0.01)
    server.idle.make_room(server.port)
    assert closed(clients) == [False] * 4
    for client in clients:
        with server.calls.open_call(peer_of(client)):
            server.clock.advance(LATER_S)
    server.clock.advance(-LATER_S * 3 + SETTLED_S + 0.01)  # the first has settled now
    server.idle.make_room(server.port)
    assert closed(clients) == [True, False, False, False]


def test_from_whom_something_has_just_come_makes_room_last(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [server.connect() for _ in range(4)]
    heard = clients[0].getsockname()
    monkeypatch.setattr(idle_connections, "JUST_HEARD_MS", 1)
    monkeypatch.setattr(idle_connections, "_heard_ms_ago", lambda one: int(one.getpeername() != heard))
    server.look()
    server.look()
    assert closed(clients) == [False, True, False, False]


def test_where_all_were_just_heard_room_is_made_all_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who says something all the time would keep every place."""
    monkeypatch.setattr(idle_connections, "JUST_HEARD_MS", 3_600_000)
    clients = [server.connect() for _ in range(4)]
    server.look()
    server.look()
    assert closed(clients).count(True) == 1


def test_what_the_kernel_says_of_the_last_byte_is_read(server: Server) -> None:
    client = server.connect()
    accepted = server.held.enter_context(socket.create_connection((HOST, server.port)))
    accepted_at_server = server.held.enter_context(server.listening.accept()[0])
    accepted.send(b"x")
    assert 0 <= idle_connections._heard_ms_ago(accepted_at_server) < 60_000
    assert 0 <= idle_connections._heard_ms_ago(client) < 60_000


def test_connections_of_another_port_are_left_alone(server: Server) -> None:
    with ExitStack() as held:
        other = Server(4, held)
        clients = [other.connect() for _ in range(4)]
        server.look()
        server.look()
        assert closed(clients) == [False] * 4


def test_no_more_ends_are_remembered_than_there_are_connections(server: Server) -> None:
    for port in range(10):
        with server.calls.open_call(f"ipv4:{HOST}:{port}"):
            pass
    assert [server.calls.ended_s(f"{HOST}:{port}") is None for port in range(10)] == [True] * 6 + [False] * 4


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:127.0.0.1:5", "127.0.0.1:5"),
        ("ipv6:%5B::1%5D:5", "::1:5"),
        ("ipv6:[2001:db8:0:0:0:0:0:1]:5", "2001:db8::1:5"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5", "127.0.0.1:5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "fe80::1:5"),
        ("unix:/run/socket", "/run/socket"),
    ],
)
def test_an_other_end_has_one_name_however_it_is_written(peer: str, name: str) -> None:
    assert peer_name(peer) == name
