"""Which server is left for which, by what servers say of whom they reach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus.cluster_watch import MAX_INFO_BYTES, ClusterWatch, servers_reached_from
from shared.seams.chance import CHANCE

ALL = ("a:1", "b:2", "c:3")


class Drawn:
    """Chance that draws this number, whatever is asked."""

    def __init__(self, number: int) -> None:
        self._number = number

    def bits(self, _count: int) -> int:
        return self._number

    def hex_digits(self, num_bytes: int) -> str:
        return "0" * 2 * num_bytes

    def one_of(self, letters: str) -> str:
        return letters[0]


class Moves:
    """Whither a connection was told to go; `can` says whether it does."""

    def __init__(self, *can: bool) -> None:
        self.to: list[str] = []
        self.told = asyncio.Event()
        self._can = iter(can or (True,))

    async def __call__(self, address: str) -> bool:
        self.to.append(address)
        self.told.set()
        return next(self._can)


@asynccontextmanager
async def server_saying(line: bytes) -> AsyncIterator[str]:
    """A server whose first words are these; its address."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"{host}:{port}"


def info(*reached: str) -> bytes:
    return b"INFO " + json.dumps({"connect_urls": reached}).encode() + b"\r\n"


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        (info(*ALL), 3),
        (info("a:1", "a:1"), 1),
        (b"INFO {}\r\n", 0),
        (b"INFO []\r\n", 0),
        (b'INFO {"connect_urls": {"a": 1}}\r\n', 0),
        (b"INFO nonsense\r\n", 0),
        (b"INFO " + b"[" * 60_000 + b"\r\n", 0),
        (b"\xff\r\n", 0),
        (b"no end of a line", 0),
        (b"x" * (MAX_INFO_BYTES + 100), 0),
    ],
)
async def test_a_server_reaches_those_that_it_names(line: bytes, reached: int) -> None:
    async with server_saying(line) as address:
        assert await servers_reached_from(address) == reached


async def test_a_server_that_is_not_there_reaches_nobody() -> None:
    assert await servers_reached_from("127.0.0.1:1") == 0


async def test_a_server_that_reaches_less_than_half_is_left_for_the_one_that_reaches_most() -> None:
    moves = Moves()
    watch = ClusterWatch(moves)
    async with server_saying(info("b:2", "c:3")) as more, server_saying(info("d:4")) as less:
        watch.heard({"a:1"}, {"a:1", more, less}, 3)
        async with asyncio.timeout(30):
            await moves.told.wait()
    assert moves.to == [more]


async def test_those_who_leave_do_not_all_go_to_the_same_server() -> None:
    went: set[str] = set()
    async with server_saying(info("b:2", "c:3")) as one, server_saying(info("b:2", "c:3")) as other:
        for bits in (0, 1):
            moves = Moves()
            with CHANCE.replaced_by(Drawn(bits)):
                watch = ClusterWatch(moves)
                watch.heard({"a:1"}, {"a:1", one, other}, 3)
                assert watch._look is not None
                async with asyncio.timeout(30):
                    await watch._look
            went |= set(moves.to)
        assert went == {one, other}


async def test_a_server_that_reaches_as_many_as_any_other_is_kept() -> None:
    moves = Moves()
    watch = ClusterWatch(moves)
    async with server_saying(info("b:2")) as other:
        watch.heard({"a:1"}, {"a:1", other}, 3)
        assert watch.is_cut_off
        assert watch._look is not None
        done, _ = await asyncio.wait([watch._look], timeout=0.05)
        assert not done
        watch.heard(set(ALL), set(ALL), 3)  # it reaches them again
        async with asyncio.timeout(30):
            await watch._look
    assert moves.to == []


async def test_who_could_not_leave_tries_again() -> None:
    moves = Moves(False, True)
    watch = ClusterWatch(moves)
    async with server_saying(info(*ALL)) as other:
        watch.heard({"a:1"}, {"a:1", other}, 3)
        assert watch._look is not None
        async with asyncio.timeout(30):
            await watch._look
    assert moves.to == [other, other]


@pytest.mark.parametrize(("reached", "named", "cut_off"), [(1, 2, False), (1, 3, True), (2, 3, False)])
async def test_half_of_the_servers_is_no_smaller_part(reached: int, named: int, cut_off: bool) -> None:
    watch = ClusterWatch(Moves())
    watch.heard(ALL[:reached], ALL[:named], named)
    assert watch.is_cut_off is cut_off
    watch.stop()


async def test_a_connection_that_is_lost_looks_no_further() -> None:
    watch = ClusterWatch(Moves())
    watch.heard({"a:1"}, ALL, 3)
    looking = watch._look
    assert looking is not None
    watch.stop()
    await asyncio.wait([looking], timeout=30)
    assert looking.cancelled()
