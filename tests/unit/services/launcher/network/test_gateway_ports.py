"""The ports of a stack's gateways: one each, or one for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from services.launcher.network.gateway_ports import GatewayPorts
from services.launcher.network.ports import free_ports
from services.launcher.options import StackOptions, parse_options
from shared.errors import InvalidRequest


def options_of(folder: Path, *argv: str, environ: Mapping[str, str] | None = None) -> StackOptions:
    chosen: Sequence[str] = ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(folder), *argv]
    return parse_options(chosen, environ or {})


@pytest.mark.parametrize(("environ", "ports"), [({}, 1), ({"PENSTOCK_GATEWAY_SHARE_PORTS": "false"}, 3)])
def test_gateways_get_one_port_for_grpc_and_one_for_http_or_one_each(
    tmp_path: Path, environ: dict[str, str], ports: int
) -> None:
    with closing(GatewayPorts(options_of(tmp_path, "--gateway", "3", environ=environ))) as chosen:
        assert [len(chosen.grpc), len(chosen.http)] == [3, 3]
        assert len({*chosen.grpc}) == len({*chosen.http}) == ports
        assert not {*chosen.grpc} & {*chosen.http}


def test_the_first_gateway_serves_where_it_was_asked_to(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    with closing(GatewayPorts(options_of(tmp_path, "--grpc-port", str(port)))) as chosen:
        assert chosen.grpc_address == f"127.0.0.1:{port}"
        assert chosen.http_address == f"127.0.0.1:{chosen.http[0]}"


def test_a_shared_port_is_refused_to_another_stack_until_it_is_given_back(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--gateway", "2", "--grpc-port", str(free_ports("127.0.0.1", 1)[0]))
    with closing(GatewayPorts(options)), pytest.raises(InvalidRequest, match="another stack has"):
        GatewayPorts(options)
    GatewayPorts(options).close()
