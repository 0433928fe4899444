"""The ways in which KV travels between workers: the one list of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transport:
    """One way; what moves its bytes is a `KvTransport` at the sender (`shared/kv/sending/kv_transport.py`).

    `needs_credit`: its bytes are under way between two processes, so the receiver bounds them by credit.
    """

    name: str
    needs_credit: bool


NATS = Transport("nats", needs_credit=True)
"""Chunks over the bulk connection."""
SHM = Transport("shm", needs_credit=False)
"""The receiver copies out of the sender's pool, which it has mapped: both are on one host."""
TRANSPORTS = {transport.name: transport for transport in (NATS, SHM)}
AUTO = "auto"
"""SHM where it is possible, else NATS."""
TRANSPORT_CHOICES = (AUTO, *TRANSPORTS)
