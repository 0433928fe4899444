"""Which senders' pools are mapped here: one probe per sender process, remembered."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from shared.bus import subjects
from shared.deadline import Clock, Deadline
from shared.errors import PenstockError, ProtocolError
from shared.kv.limits import PROBE_AGAIN_S, PROBE_TIMEOUT_S
from shared.kv.outbox import ControlBus
from shared.kv.pool_memory import Layout
from shared.kv.shared_pool import PoolMapping
from shared.messages import KvProbe, KvSegment

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of one incarnation of a sender. Without `mapping`, `why` not."""

    incarnation: int
    mapping: PoolMapping | None
    why: str
    until_s: float


class Peers:
    def __init__(self, bus: ControlBus, layout: Layout, clock: Clock) -> None:
        self._bus = bus
        self._layout = layout
        self._clock = clock
        self._peers: dict[str, Peer] = {}

    def get(self, prefill: str, incarnation: int) -> Peer | None:
        """None: not known (any more), probe it."""
        peer = self._peers.get(prefill)
        if peer is None or peer.incarnation != incarnation:
            return None
        if peer.mapping is None and self._clock.monotonic_s() >= peer.until_s:
            return None
        return peer

    async def probe(self, prefill: str, incarnation: int) -> Peer:
        """Ask the sender for its segment and try to map it; a failure is an answer too."""
        mapping, why = None, ""
        try:
            answer = await self._bus.ask(
                subjects.inbox("prefill", prefill),
                KvProbe(self._layout.fingerprint()),
                self._bus.envelope(),
                Deadline.after(PROBE_TIMEOUT_S),
            )
            if not isinstance(answer, KvSegment):
                raise ProtocolError(f"KvProbe was answered with {type(answer).__name__}")
            mapping = PoolMapping.open(answer, self._layout)
        except PenstockError as error:
            why = error.message
            log.info("no shared memory with a prefill worker, using NATS", prefill=prefill, why=why)
        self.forget(prefill)
        peer = Peer(incarnation, mapping, why, self._clock.monotonic_s() + PROBE_AGAIN_S)
        self._peers[prefill] = peer
        return peer

    def forget(self, prefill: str) -> None:
        peer = self._peers.pop(prefill, None)
        if peer is not None and peer.mapping is not None:
            peer.mapping.close()

    def close(self) -> None:
        for prefill in tuple(self._peers):
            self.forget(prefill)
