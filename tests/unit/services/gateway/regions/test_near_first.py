"""An instance that is near and has room is asked first."""

from __future__ import annotations

from services.gateway.regions.near_first import in_region, near_first
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat


def tokenizer(name: str, region: str, **fields: object) -> InstanceView:
    return InstanceView(heartbeat("tokenizer", name, region=region, **fields), 0.0)


NEAR, BUSY, FAR = (
    tokenizer("tokenizer-0", "eu"),
    tokenizer("tokenizer-1", "eu", live=8),
    tokenizer("tokenizer-2", "us"),
)


def test_an_instance_of_the_region_with_room_comes_first() -> None:
    assert near_first([FAR, NEAR, BUSY], "eu") == [NEAR]


def test_where_the_region_has_no_room_all_may_be_asked() -> None:
    assert near_first([BUSY, FAR], "eu") == [BUSY, FAR]


def test_those_of_a_region_are_all_where_it_has_none() -> None:
    assert in_region([BUSY, FAR], "eu") == [BUSY]
    assert in_region([FAR], "eu") == [FAR]
