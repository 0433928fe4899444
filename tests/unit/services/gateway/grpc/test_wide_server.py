"""The bytes that tell of the events of gRPC's core are read in one turn."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from services.gateway.grpc.wide_server import MOST_SIGNALS, _drain


@pytest.fixture
def signals() -> Iterator[tuple[socket.socket, socket.socket]]:
    reading, writing = socket.socketpair()
    with reading, writing:
        yield reading, writing


def waiting(reading: socket.socket) -> int:
    try:
        return len(reading.recv(2 * MOST_SIGNALS, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("count", [1, 2, MOST_SIGNALS])
def test_the_handler_is_called_once_for_all_that_is_there(
    signals: tuple[socket.socket, socket.socket], count: int
) -> None:
    reading, writing = signals
    writing.send(b"1" * count)
    left: list[int] = []

    def handler(told: str) -> None:
        assert told == "loop"
        left.append(waiting(reading))
        reading.recv(1)

    _drain(reading, handler, "loop")
    assert left == [1]
    assert waiting(reading) == 0


def test_what_is_more_than_a_turn_reads_is_for_the_next_one(
    signals: tuple[socket.socket, socket.socket],
) -> None:
    reading, writing = signals
    writing.send(b"1" * (MOST_SIGNALS + 5))
    _drain(reading, lambda: reading.recv(1))
    assert waiting(reading) == 5


def test_a_turn_in_which_nothing_is_there_calls_nobody(signals: tuple[socket.socket, socket.socket]) -> None:
    reading, _ = signals
    _drain(reading, lambda: pytest.fail("nothing was to be read"))
