"""Close connections that have no call where a server is about to have as many as it may.

gRPC's core accepts, counts and refuses connections by itself, and lets one without a call stay until its
idle time is over. So they are looked for among the sockets of the process, and those that have been without
a call for the longest are shut: the core then closes them, and their clients' libraries connect again when
they have something to ask.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote

import structlog

from services.gateway.open_sockets import borrow_socket, is_internet, open_files, socket_names
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.telemetry import metrics
from shared.ticks import seconds_to_tick

log = structlog.get_logger()

LOOK_S = 0.5
"""The pause between two looks at the connections."""
REST_LOOK_S = 2.0
"""The most of it while fewer than half of the places can be taken."""
LOOK_SHARE = 0.05
"""The most of a core that looking takes: beyond that the pauses grow."""
SETTLED_S = 0.4
"""The time in which a connection that has come, or whose call has ended, is left alone."""
FREE_SHARE = 16
"""One place in so many is kept free for who comes between two looks, and at least one."""
JUST_HEARD_MS = 100
"""A connection that said something so lately may have a call on its way to us: it makes room last."""
LAST_HEARD_OFFSET = 52
"""The place of `tcpi_last_data_recv` in the `tcp_info` of Linux: milliseconds, 32 bits."""


class ConnectionCalls:
    """Knows which connections have calls, and since when others have none; they are named by their other
    ends."""

    def __init__(self, most_connections: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._most = most_connections
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._ended_s: OrderedDict[str, float] = OrderedDict()
        """The times of last calls' ends, the latest last; as many as there may be connections."""

    @contextmanager
    def open_call(self, peer: str) -> Iterator[None]:
        """Count a call of this `peer`, as gRPC names it, while it is open."""
        name = peer_name(peer)
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
            self._note_end(name)

    def has_call(self, name: str) -> bool:
        return name in self._open

    def ended_s(self, name: str) -> float | None:
        """Return when its last call ended, None where none did that is remembered."""
        return self._ended_s.get(name)

    def _note_end(self, name: str) -> None:
        self._ended_s[name] = self._clock.monotonic_s()
        self._ended_s.move_to_end(name)
        if len(self._ended_s) > self._most:
            self._ended_s.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Connection:
    fd: int
    socket_name: str
    peer: str
    seen_s: float
    """The time at which it was seen first."""


class IdleConnections:
    """Keeps places free among the `most` connections of a server at a port of this process."""

    def __init__(self, most: int, calls: ConnectionCalls, clock: Clock = SYSTEM_CLOCK) -> None:
        self._most_kept = most - max(1, most // FREE_SHARE)
        self._calls = calls
        self._clock = clock
        self._known: dict[str, _Connection | None] = {}
        """The sockets by their names; None: it is no connection of the port."""

    async def watch(self, port: int) -> None:
        """Make room whenever there is little."""
        while True:
            began_s = time.thread_time()
            try:
                pause_s = self.make_room(port)
            except OSError as error:
                log.warning("idle_connections_unknown", error=str(error), help="they keep their places")
                return
            await asyncio.sleep(max(seconds_to_tick(pause_s), (time.thread_time() - began_s) / LOOK_SHARE))

    def make_room(self, port: int) -> float:
        """Shut what has been idle for the longest, as many as there are too many; the pause until the next
        look. Raises OSError where the system does not show the sockets of a process."""
        files = open_files()
        if files <= self._most_kept:  # fewer than that are connections
            self._known.clear()
            return LOOK_S if files > self._most_kept // 2 else REST_LOOK_S
        connections = self._connections(port)
        too_many = len(connections) - self._most_kept
        if too_many > 0:
            _shut_first(self._idle(connections), too_many)
        return LOOK_S

    def _connections(self, port: int) -> list[_Connection]:
        now_s, known = self._clock.monotonic_s(), self._known
        self._known = {
            name: known[name] if name in known else _connection(fd, name, port, now_s)
            for fd, name in socket_names().items()
        }
        return [each for each in self._known.values() if each is not None]

    def _idle(self, connections: list[_Connection]) -> list[_Connection]:
        """Return those without a call, whoever is so for the longest first."""
        settled_s = self._clock.monotonic_s() - SETTLED_S
        since = {
            each: self._idle_since_s(each) for each in connections if not self._calls.has_call(each.peer)
        }
        idle = [each for each, since_s in since.items() if max(each.seen_s, since_s) <= settled_s]
        return sorted(idle, key=since.__getitem__)

    def _idle_since_s(self, connection: _Connection) -> float:
        ended_s = self._calls.ended_s(connection.peer)
        return connection.seen_s if ended_s is None else ended_s


def peer_name(peer: str) -> str:
    """Return one name for the other end of a connection, as gRPC writes it: `ipv4:HOST:PORT`, or
    `ipv6:%5BHOST%5D:PORT`."""
    kind, _, rest = peer.partition(":")
    if kind != "ipv6":
        return rest
    host, _, port = unquote(rest).rpartition(":")
    return _name(host.strip("[]"), port)


def _name(host: str, port: str | int) -> str:
    if ":" not in host:
        return f"{host}:{port}"
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return f"{address.ipv4_mapped or address}:{port}"


def _connection(fd: int, socket_name: str, port: int, now_s: float) -> _Connection | None:
    """Return what is known of a socket if it is a connection to the port."""
    with borrow_socket(fd, socket_name) as one:
        if one is None or not is_internet(one) or one.type != socket.SOCK_STREAM:
            return None
        try:
            host, other_port = one.getpeername()[:2]
        except OSError:  # it listens, or its other end is gone
            return None
        if one.getsockname()[1] != port:
            return None
    return _Connection(fd, socket_name, _name(host, other_port), now_s)


def _shut_first(idle: list[_Connection], count: int) -> None:
    """Shut so many of them, and those from which something came just now last."""
    just_heard = []
    for each in idle:
        if count == 0:
            return
        with borrow_socket(each.fd, each.socket_name) as one:
            if one is not None and _heard_ms_ago(one) < JUST_HEARD_MS:
                just_heard.append(each)
                continue
            _shut(one)
        count -= 1
    for each in just_heard[:count]:
        with borrow_socket(each.fd, each.socket_name) as one:
            _shut(one)


def _shut(one: socket.socket | None) -> None:
    """Do nothing where it has ended by itself."""
    if one is not None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
            metrics.CONNECTIONS_CLOSED.labels(edge="grpc").inc()


def _heard_ms_ago(one: socket.socket) -> int:
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_HEARD_OFFSET + 4)
    return int(struct.unpack_from("I", info, LAST_HEARD_OFFSET)[0])
