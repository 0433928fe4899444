"""One server or a cluster: what is named, and what people see of it."""

from __future__ import annotations

import pytest

from shared.bus.addresses import MAX_SERVERS, are_server_urls, server_urls, wants_tls, without_password


def test_addresses_stand_between_commas() -> None:
    assert server_urls("nats://a:1, nats://b:2,") == ["nats://a:1", "nats://b:2"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://user:secret@host:4222", "nats://host:4222"),
        ("nats://token@host", "nats://host"),
        ("nats://u:a@one:1,nats://u:b@two:2", "nats://one:1,nats://two:2"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("nats://a:1", True),
        ("nats://a:1,tls://b:2", True),
        ("a:1", False),
        ("nats://a:1,http://b:2", False),
        ("nats://[::1", False),
        (",", False),
        (",".join(["nats://a:1"] * MAX_SERVERS), True),
        (",".join(["nats://a:1"] * (MAX_SERVERS + 1)), False),
    ],
)
def test_what_is_no_address_of_a_server_is_seen(url: str, good: bool) -> None:
    assert are_server_urls(url) is good


@pytest.mark.parametrize(("url", "tls"), [("nats://a", False), ("nats://a,tls://b", True)])
def test_one_address_that_wants_tls_wants_it_of_all(url: str, tls: bool) -> None:
    assert wants_tls(url) is tls
