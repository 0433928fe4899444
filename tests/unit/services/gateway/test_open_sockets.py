"""The sockets of this process, found by the system and borrowed."""

from __future__ import annotations

import os
import socket

from services.gateway.open_sockets import borrow_socket, is_internet, open_files, socket_names


def test_a_socket_is_found_by_its_descriptor_and_borrowed() -> None:
    one, other = socket.socketpair()
    with one, other:
        found = socket_names()
        assert found[one.fileno()] != found[other.fileno()]
        with borrow_socket(one.fileno(), found[one.fileno()]) as borrowed:
            assert borrowed is not None
            borrowed.send(b"x")
        assert other.recv(1) == b"x"
        one.send(b"y")  # it was not closed with what was borrowed
        assert other.recv(1) == b"y"


def test_a_descriptor_that_is_anothers_by_now_is_not_borrowed() -> None:
    one, other = socket.socketpair()
    with one, other:
        found = socket_names()
        with borrow_socket(one.fileno(), found[other.fileno()]) as borrowed:
            assert borrowed is None


def test_a_closed_descriptor_is_not_borrowed_and_a_file_is_no_socket() -> None:
    reading, writing = os.pipe()
    assert reading not in socket_names()
    assert open_files() > writing - reading
    os.close(writing)
    os.close(reading)
    with borrow_socket(reading, "socket:[1]") as borrowed:
        assert borrowed is None


def test_only_sockets_of_the_internet_are_so() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket() as tcp:
        assert [is_internet(each) for each in (one, tcp)] == [False, True]
