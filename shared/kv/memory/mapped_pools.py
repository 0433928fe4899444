"""Map the pools of senders: one probe per sender process, remembered."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from shared.bus import subjects
from shared.deadline import Clock, Deadline
from shared.errors import PenstockError, ProtocolError
from shared.kv.control_sender import ControlBus
from shared.kv.limits import PROBE_AGAIN_S, PROBE_TIMEOUT_S
from shared.kv.memory.pool_memory import Layout
from shared.kv.memory.shared_pool import PoolMapping
from shared.messages import KvProbe, KvSegment

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of probing one incarnation of a sender. Without `mapping`, `why` not."""

    incarnation: int
    mapping: PoolMapping | None
    why: str
    until_s: float


class MappedPools:
    def __init__(self, bus: ControlBus, layout: Layout, clock: Clock) -> None:
        self._bus = bus
        self._layout = layout
        self._clock = clock
        self._probed: dict[str, ProbeResult] = {}

    def get(self, prefill: str, incarnation: int) -> ProbeResult | None:
        """Return the result; None: not known (any more), probe it."""
        probed = self._probed.get(prefill)
        if probed is None or probed.incarnation != incarnation:
            return None
        if probed.mapping is None and self._clock.monotonic_s() >= probed.until_s:
            return None
        return probed

    async def probe(self, prefill: str, incarnation: int) -> ProbeResult:
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
        probed = ProbeResult(incarnation, mapping, why, self._clock.monotonic_s() + PROBE_AGAIN_S)
        self._probed[prefill] = probed
        return probed

    def forget(self, prefill: str) -> None:
        probed = self._probed.pop(prefill, None)
        if probed is not None and probed.mapping is not None:
            probed.mapping.close()

    def close(self) -> None:
        for prefill in tuple(self._probed):
            self.forget(prefill)
