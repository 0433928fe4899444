"""Share the descriptors of the process among the doors, so that connections never use up the last of them.

Where none are left nobody can be let in, nor told so: no server can accept, and the bus cannot connect again.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from services.gateway.config import GatewayConfig
from shared.config.fields import ConfigError
from shared.process.descriptors import descriptor_limit

log = structlog.get_logger()

RESERVED_DESCRIPTORS = 192
"""The descriptors that no client gets: those of the bus, of pages of health (32 at each of two servers), of
listeners and event loops, of files that are read, and of connections about to be refused."""
FEWEST_PLACES = 8
"""The fewest connections of both doors together with which it is worth to serve."""


def fit_connections(config: GatewayConfig, limit: int | None = None) -> GatewayConfig:
    """Return the configuration with as many connections as there are descriptors for: `limit`, None: those of
    this process. Raises ConfigError where that is none to speak of."""
    limit = descriptor_limit() if limit is None else limit
    places = limit - RESERVED_DESCRIPTORS
    http = config.http_max_connections if config.http_host else 0
    asked = config.grpc_max_connections + http
    if limit < 0 or asked <= places:  # a limit below 0 is none
        return config
    if places < FEWEST_PLACES:
        raise ConfigError(
            f"the limit of open files is {limit}, and a gateway needs {RESERVED_DESCRIPTORS} for itself: "
            f"raise it (`ulimit -n {RESERVED_DESCRIPTORS + asked}`, LimitNOFILE)"
        )
    grpc_places = max(1, config.grpc_max_connections * places // asked)
    http_places = max(1, places - grpc_places)
    log.warning(
        "connections_limited",
        open_files=limit,
        grpc_max_connections=grpc_places,
        http_max_connections=http_places if http else 0,
        help=f"for those of the configuration allow {RESERVED_DESCRIPTORS + asked} open files (ulimit -n)",
    )
    return replace(
        config,
        grpc_max_connections=grpc_places,
        http_max_connections=http_places if http else config.http_max_connections,
    )
