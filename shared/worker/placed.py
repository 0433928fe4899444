"""One placement of a request at a worker, and the rules that all placements obey. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.actor import Tombstones
from shared.deadline import Deadline
from shared.errors import Cancelled, ProtocolError, StaleEpoch
from shared.kv.chunk import MAX_EPOCH
from shared.messages import Envelope
from shared.telemetry import metrics
from shared.worker.gateway_leases import GatewayLeases, IsAlive
from shared.worker.wire import SequenceSpec, sequence_key


@dataclass(slots=True)
class Placed:
    """What every worker with an engine knows of a request that it took."""

    request_id: str
    epoch: int
    gateway: str
    detokenizer: str
    deadline: Deadline
    spec: SequenceSpec

    @property
    def key(self) -> str:
        return sequence_key(self.request_id, self.epoch)

    @property
    def kv_key(self) -> tuple[str, int]:
        """What KV transfers call it."""
        return self.request_id, self.epoch


P = TypeVar("P", bound=Placed)


class PlacedBook(Generic[P]):
    """Placements by key, each under a lease of its gateway; those that are over leave tombstones."""

    def __init__(self, hop: str, is_alive: IsAlive) -> None:
        self.placed: dict[str, P] = {}
        self.tombstones = Tombstones()
        self._hop = hop
        self._leases = GatewayLeases(is_alive)

    def check_epoch(self, request_id: str, epoch: int) -> None:
        """Raises Cancelled or StaleEpoch when this placement is over before it came."""
        reason = self.tombstones.refuses(request_id, epoch)
        if reason:
            raise Cancelled(f"the request was cancelled before it arrived ({reason})", hop=self._hop)
        if any(item.epoch > epoch for item in self.of_request(request_id)):
            metrics.STALE_MESSAGES.inc()
            raise StaleEpoch("a later placement of this request is here already", hop=self._hop)

    def cancel(self, request_id: str, epoch: int, reason: str) -> list[P]:
        """What a cancel ends here; a placement up to this epoch that comes later is refused."""
        self.tombstones.add(request_id, epoch, reason)
        return [item for item in self.of_request(request_id) if item.epoch <= epoch]

    def of_request(self, request_id: str) -> list[P]:
        return [item for item in self.placed.values() if item.request_id == request_id]

    def of_gateway(self, gateway: str) -> list[P]:
        return [item for item in self.placed.values() if item.gateway == gateway]

    def abandoned(self) -> list[P]:
        """Placements whose gateway has not been heard for a lease."""
        return [self.placed[key] for key in self._leases.expired()]

    def _take_in(self, item: P) -> None:
        self.placed[item.key] = item
        self._leases.grant(item.key, item.gateway)

    def _let_go(self, key: str) -> P | None:
        item = self.placed.pop(key, None)
        if item is not None:
            self._leases.drop(key)
        return item


def checked_deadline(envelope: Envelope, deadline: Deadline | None, message: str, hop: str) -> Deadline:
    """The deadline of a placement. Raises ProtocolError for a bad envelope, DeadlineExpired when too late."""
    if deadline is None or not envelope.request_id or not 0 < envelope.epoch <= MAX_EPOCH:
        raise ProtocolError(f"{message} needs a request_id, an epoch from 1 and a deadline in its envelope")
    deadline.check(hop)
    return deadline
