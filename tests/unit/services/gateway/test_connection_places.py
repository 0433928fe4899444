"""Connections fit into the descriptors that the process may have."""

from __future__ import annotations

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.connection_places import FEWEST_PLACES, RESERVED_DESCRIPTORS, fit_connections
from shared.config.fields import ConfigError

ASKED = 2048
"""The connections of a gateway that nobody configures, of both doors."""


def places(config: GatewayConfig) -> tuple[int, int]:
    return config.grpc_max_connections, config.http_max_connections


@pytest.mark.parametrize("limit", [RESERVED_DESCRIPTORS + ASKED, 1 << 20, -1])
def test_what_fits_is_left_as_it_is(limit: int) -> None:
    config = GatewayConfig()
    assert fit_connections(config, limit) is config


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (RESERVED_DESCRIPTORS + ASKED - 1, (1023, 1024)),
        (1024, (416, 416)),
        (RESERVED_DESCRIPTORS + FEWEST_PLACES, (4, 4)),
    ],
)
def test_what_does_not_fit_is_shared_out_and_said(
    limit: int, expected: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert places(fit_connections(GatewayConfig(), limit)) == expected
    assert "connections_limited" in capsys.readouterr().out


def test_each_door_has_its_share_of_what_it_asks_for() -> None:
    config = GatewayConfig(grpc_max_connections=3000, http_max_connections=1)
    assert places(fit_connections(config, 1024)) == (831, 1)


def test_without_an_http_edge_all_are_for_grpc() -> None:
    config = GatewayConfig(http_host="", grpc_max_connections=2000)
    assert places(fit_connections(config, 1024)) == (832, 1024)


def test_a_limit_that_leaves_next_to_nothing_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"the limit of open files is 199, .*`ulimit -n 2240`"):
        fit_connections(GatewayConfig(), RESERVED_DESCRIPTORS + FEWEST_PLACES - 1)
