"""The ports that a stack's gateways serve on, one for gRPC and one for HTTP each."""

from __future__ import annotations

from contextlib import ExitStack

from services.launcher.network.ports import check_free, free_ports, hold_port
from services.launcher.options import StackOptions


class GatewayPorts:
    """The first of either kind is the one asked for, and that of all gateways where they share it.

    A shared port is kept off other stacks until `close`. Raises InvalidRequest where a port that was asked
    for cannot be had.
    """

    def __init__(self, options: StackOptions) -> None:
        self._host = host = options.grpc_host
        self._held = ExitStack()
        gateways = options.counts["gateway"]
        ports = free_ports(host, 2 * gateways)
        self.grpc, self.http = ports[:gateways], ports[gateways:]
        with ExitStack() as held:
            for option, chosen, asked in (
                ("--grpc-port", self.grpc, options.grpc_port),
                ("--http-port", self.http, options.http_port),
            ):
                if asked:
                    check_free(host, asked, option)
                    chosen[0] = asked
                if options.share_ports:
                    chosen[:] = chosen[:1] * gateways
                    held.enter_context(hold_port(host, chosen[0], option))
            self._held = held.pop_all()

    @property
    def grpc_address(self) -> str:
        """Return where the first gateway serves gRPC, as clients are told it."""
        return self._address(self.grpc[0])

    @property
    def http_address(self) -> str:
        return self._address(self.http[0])

    def close(self) -> None:
        self._held.close()

    def _address(self, port: int) -> str:
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
