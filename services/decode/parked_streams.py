"""Streams whose gateway is gone or has not delivered their end yet: kept for another gateway. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.decode.job import DecodeJob
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import AdapterId, HandedOver, Held, pack_ids
from shared.messages.packing import ID_BYTES
from shared.sampling.parameters import SamplingParams

PARKED_S = 30.0
"""A stream is kept so long after the end of its work; then it is lost."""
MAX_PARKED_STREAMS = 1024
"""The most streams that are kept; the oldest makes room for the newest."""
MAX_PARKED_TOKENS = 1 << 22
"""The most tokens of all of them, prompts included: 16 MB."""
PARKED_FOR = frozenset({"gateway lost", "lease expired", "shutdown", "stop"})
"""The reasons for which the work of a stream ends before its client has all of it."""


@dataclass(frozen=True, slots=True)
class ParkedStream:
    """A stream as another gateway goes on with it. `tenant`: the digest of whose it is.
    `token_ids`: prompt and output, packed."""

    gateway: str
    epoch: int
    tenant: str
    token_ids: bytes
    prompt_len: int
    sampling: SamplingParams
    adapter: AdapterId
    finished: bool

    @classmethod
    def of(cls, job: DecodeJob, *, finished: bool) -> ParkedStream:
        return cls(
            job.gateway,
            job.epoch,
            job.share.tenant,
            pack_ids([*job.token_ids, *job.output_ids]),
            job.spec.prompt_len,
            job.spec.params,
            job.adapter_id,
            finished,
        )

    def handed_over(self) -> HandedOver:
        return HandedOver(self.token_ids, self.prompt_len, self.sampling, self.adapter, self.finished)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // ID_BYTES


class ParkedStreams:
    """Streams by request, each for PARKED_S: they hold no KV and no place, only their tokens."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._streams: OrderedDict[str, tuple[ParkedStream, float]] = OrderedDict()
        self._tokens = 0

    def keep(self, request_id: str, stream: ParkedStream) -> None:
        """Keep it from now on, in place of an earlier route of its request."""
        self.expire()
        self._pop(request_id)
        self._streams[request_id] = stream, self._clock.monotonic_s() + PARKED_S
        self._tokens += stream.num_tokens
        while len(self._streams) > MAX_PARKED_STREAMS or self._tokens > MAX_PARKED_TOKENS:
            self._pop(next(iter(self._streams)))

    def take(self, request_id: str, tenant: str) -> ParkedStream | None:
        """Give the stream away, if it is here and the tenant's."""
        self.expire()
        stream, _ = self._streams.get(request_id, (None, 0.0))
        if stream is None or stream.tenant != tenant:
            return None
        return self._pop(request_id)

    def drop(self, request_id: str, epoch: int, gateway: str) -> bool:
        """Forget routes of the request up to `epoch` that `gateway` has placed ("": it has not said who it
        is); whether there was one."""
        stream, _ = self._streams.get(request_id, (None, 0.0))
        if stream is None or stream.epoch > epoch or gateway not in ("", stream.gateway):
            return False
        return self._pop(request_id) is not None

    def expire(self) -> None:
        """Forget what is over. Insertion order is expiry order, since every stream is kept equally long."""
        while self._streams:
            request_id, (_, until_s) = next(iter(self._streams.items()))
            if self._clock.monotonic_s() < until_s:
                return
            self._pop(request_id)

    def held(self) -> list[Held]:
        self.expire()
        return [Held(request_id, "parked", 1, "") for request_id in self._streams]

    def _pop(self, request_id: str) -> ParkedStream | None:
        stream, _ = self._streams.pop(request_id, (None, 0.0))
        if stream is not None:
            self._tokens -= stream.num_tokens
        return stream
