"""A bus in memory: nats-server's semantics behind the real nats-py, in one loop, under a seed.

In reading order: `trace`, `latency`, `pipe`, `transport` and `network` are TCP without sockets; `settings`,
`commands`, `interest` and `permitted` are what a nats-server knows; `server_connection` and `memory_server`
put it together; `faults` breaks it, and `loop_clock` is for nats-py's own look at a clock.
"""

from tests.simulation.bus.faults import Faults
from tests.simulation.bus.latency import Latency
from tests.simulation.bus.memory_server import MemoryServer
from tests.simulation.bus.network import Network
from tests.simulation.bus.settings import ServerSettings
from tests.simulation.bus.trace import Trace

__all__ = ["Faults", "Latency", "MemoryServer", "Network", "ServerSettings", "Trace"]
