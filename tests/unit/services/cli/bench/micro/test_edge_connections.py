"""The rows of connections to an edge."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.bench.micro.edge_connections import KEPT, clients_of
from tests.support.certificate import make_certificate


def test_each_way_to_connect_stands_over_the_one_that_keeps_its_connection(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "made").certificate
    names: set[str] = set()
    for tls in (None, certificate):
        http, channels = clients_of("127.0.0.1:1", "127.0.0.1:2", tls)
        names |= http.keys() | channels.keys()
        assert {client.address for client in http.values()} == {("127.0.0.1", 1)}
    assert names == KEPT.keys() | set(KEPT.values())


def test_nobody_listening_is_an_error_and_no_reading() -> None:
    http, _ = clients_of("127.0.0.1:1", "127.0.0.1:2", None)
    for client in http.values():
        with pytest.raises(OSError, match="refused"):
            client.ask()
