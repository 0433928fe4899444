"""What a nats-server is told: for one in memory, and as the configuration of a real one."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus.nats_server import MAX_PAYLOAD_BYTES, WRITE_DEADLINE_S
from shared.bus.permissions import BusUser, authorization


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The defaults are those of nats-server, as far as Penstock's own server has no others.

    With `users`, nobody else is let in.
    """

    users: tuple[tuple[BusUser, str], ...] = ()
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_pending_bytes: int = 64 << 20
    """The most that waits for one client before it is dropped as a slow consumer."""
    write_deadline_s: int = WRITE_DEADLINE_S
    max_control_line_bytes: int = 4096
    ping_interval_s: float = 120.0
    ping_max: int = 2
    auth_timeout_s: float = 2.0
    """The time in which a client must say who it is, where that matters."""
    lame_duck_grace_s: float = 10.0

    def as_config(self) -> str:
        """Return what is not an argument of `NatsServer` as lines of its configuration."""
        lines = [
            f"max_pending: {self.max_pending_bytes}",
            f"max_control_line: {self.max_control_line_bytes}",
            f'ping_interval: "{self.ping_interval_s:g}s"',
            f"ping_max: {self.ping_max}",
            f'lame_duck_grace_period: "{self.lame_duck_grace_s:g}s"',
        ]
        if self.users:
            lines.append(authorization(self.users))
        return "\n".join(lines)
