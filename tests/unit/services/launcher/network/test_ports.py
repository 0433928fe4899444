"""Ports that the gateways of a stack share: theirs, and nobody else's."""

from __future__ import annotations

import socket

import pytest

from services.launcher.network import ports
from services.launcher.network.ports import check_free, free_ports, hold_port
from shared.errors import InvalidRequest

HOST = "127.0.0.1"


def test_ports_that_are_chosen_together_are_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few ports one is drawn twice at nearly every choice."""
    (first,) = free_ports(HOST, 1)
    monkeypatch.setattr(ports, "FIRST_PORT", first)
    monkeypatch.setattr(ports, "_first_outgoing_port", lambda: first + 8)
    for _ in range(20):
        assert len({*free_ports(HOST, 6)}) == 6


def test_a_held_port_is_refused_to_another_stack_until_it_is_given_back() -> None:
    (port,) = free_ports(HOST, 1)
    refused = pytest.raises(InvalidRequest, match=rf"another stack has {HOST}:{port} .* --grpc-port 0")
    with hold_port(HOST, port, "--grpc-port"), refused:
        hold_port(HOST, port, "--grpc-port")
    hold_port(HOST, port, "--grpc-port").close()


def test_a_held_port_can_be_listened_on() -> None:
    (port,) = free_ports(HOST, 1)
    with hold_port(HOST, port, "--grpc-port"):
        check_free(HOST, port, "--grpc-port")


def test_a_port_of_a_process_that_would_share_it_is_not_free() -> None:
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind((HOST, 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"cannot listen on {HOST}:{port}"):
            check_free(HOST, port, "--grpc-port")
