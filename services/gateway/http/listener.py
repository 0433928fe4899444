"""Accept connections and count each from then on: one that only begins, in TCP or in TLS, takes a place too.

Where all places of clients are taken, the connection that has had no request for the longest makes room for
the next. Beyond them there are a few that lead to health and metrics alone, so that a gateway whose clients'
places are taken, by whomever, still says how it is. Of those, the one that has said nothing for the longest
makes room for the next.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from shared import accepting
from shared.accepting import Accepting, close_all
from shared.tasks import Tasks
from shared.telemetry import metrics

HEAD_TIMEOUT_S = 10.0
"""The longest time for TLS and the head of a connection's first request, from accept on."""
HEALTH_PLACES = 32
"""The connections beyond `http_max_connections`, for pages of health alone."""
HEALTH_HEAD_TIMEOUT_S = 2.0
"""The same as `HEAD_TIMEOUT_S` for those."""
SETTLED_S = 0.4
"""The time in which a connection that has come, or was answered, does not make room for another."""


class Place:
    """One connection, from accept to its end. `for_health`: it is beyond those that clients may have."""

    def __init__(self, *, for_health: bool) -> None:
        self.for_health = for_health
        self.transport: asyncio.Transport | None = None
        self.protocol: asyncio.Protocol | None = None
        """It is there before the connection has begun, and hears of its end only if it has."""
        self._beginning: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None

    def begin(
        self, beginning: asyncio.Task[None], head_timeout_s: float, give_up: Callable[[Place], None]
    ) -> None:
        self._beginning = beginning
        self._silence = asyncio.get_running_loop().call_later(head_timeout_s, give_up, self)

    def heard(self) -> None:
        """The head of a request has come: from now on its pages say how long it may stay."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    @property
    def silent(self) -> bool:
        return self._silence is not None

    @property
    def writes(self) -> bool:
        """Return whether its client has not taken all of the last answer yet."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def close(self) -> None:
        """Close it behind what is written already."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self._beginning is not None:
            self._beginning.cancel()


class Listener:
    """`protocol_of` makes what serves a connection, which calls `release` with its place at the end;
    `forget` hears of each place that is released."""

    def __init__(
        self,
        protocol_of: Callable[[Place], asyncio.Protocol],
        forget: Callable[[Place], None],
        max_connections: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._protocol_of = protocol_of
        self._forget = forget
        self._max_connections = max_connections
        self._tls = tls
        self._places: dict[Place, None] = {}
        self._clients = 0
        """The places that are not for health alone."""
        self._quiet_since_s: dict[Place, float] = {}
        """The places of clients without a request, whoever is so for the longest first."""
        self._tasks = Tasks()
        self._sockets: list[socket.socket] = []
        self._door = Accepting(self._sockets, self._take)

    async def listen(self, host: str, port: int, *, shared: bool) -> str:
        """Return the HOST:PORT where it listens now. Raises OSError when the address cannot be had."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, *_, address in dict.fromkeys(found):
                self._sockets.append(accepting.listening_socket(family, address, shared=shared))
        except OSError:
            close_all(self._sockets)
            raise
        self._door.start()
        named = f"[{host}]" if ":" in host else host
        return f"{named}:{self._sockets[0].getsockname()[1]}"

    def begin_request(self, place: Place) -> None:
        """The head of a request has come."""
        place.heard()
        self._quiet_since_s.pop(place, None)

    def end_request(self, place: Place) -> None:
        """It has its answer, some of which may still be on its way; the connection waits for the next."""
        if place in self._places and not place.for_health:
            self._quiet_since_s[place] = asyncio.get_running_loop().time()

    def release(self, place: Place) -> None:
        """Its connection has ended."""
        place.heard()
        if place in self._places:
            del self._places[place]
            self._clients -= not place.for_health
            self._quiet_since_s.pop(place, None)
            metrics.HTTP_CONNECTIONS.dec()
            self._forget(place)

    @property
    def waiting(self) -> list[Place]:
        """Return the open connections of clients that have no request."""
        return [*self._quiet_since_s]

    def stop(self) -> None:
        """Accept no more; connections go on."""
        self._door.stop()

    async def close(self) -> None:
        """Accept no more, and give up what has only begun; bounded."""
        self.stop()
        await self._tasks.finish(0.0)

    def _take(self, connection: socket.socket) -> None:
        full = self._clients >= self._max_connections and not self._make_room()
        if full and len(self._places) - self._clients >= HEALTH_PLACES and not self._make_room_for_health():
            connection.close()
            return
        place = Place(for_health=full)
        self._places[place] = None
        if not full:
            self._clients += 1
            self._quiet_since_s[place] = asyncio.get_running_loop().time()
        metrics.HTTP_CONNECTIONS.inc()
        timeout_s = HEALTH_HEAD_TIMEOUT_S if place.for_health else HEAD_TIMEOUT_S
        beginning = self._tasks.start("http-connection", self._begin(connection, place))
        place.begin(beginning, timeout_s, self._give_up)

    def _make_room(self) -> bool:
        """Give up the client's connection that has had no request for the longest, and no answer to read."""
        settled_s = asyncio.get_running_loop().time() - SETTLED_S
        for place, since_s in self._quiet_since_s.items():
            if since_s > settled_s:
                return False
            if not place.writes:
                metrics.CONNECTIONS_CLOSED.labels(edge="http").inc()
                self._give_up(place)
                return True
        return False

    def _make_room_for_health(self) -> bool:
        """Give up the connection that has waited the longest among those that are for health alone."""
        found = next((place for place in self._places if place.for_health and place.silent), None)
        if found is None:
            return False
        self._give_up(found)
        return True

    def _give_up(self, place: Place) -> None:
        """Its place is free from now on: a connection that has not quite begun may end without a word."""
        place.abort()
        self.release(place)

    async def _begin(self, connection: socket.socket, place: Place) -> None:
        try:
            connection.setblocking(False)
            timeout_s = None if self._tls is None else HEAD_TIMEOUT_S
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
            )
            place.transport = transport
        except OSError:  # an ssl.SSLError too
            connection.close()
            self.release(place)
        except BaseException:
            connection.close()
            self.release(place)
            raise

    def _protocol(self, place: Place) -> asyncio.Protocol:
        place.protocol = self._protocol_of(place)
        return place.protocol
