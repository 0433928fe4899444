"""Warming: computing a prefix before it is asked for, when there is nothing better to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages import Warm, unpack_hashes, unpack_ids
from shared.sampling import SamplingParams
from shared.worker.wire import SequenceSpec


@dataclass(slots=True)
class Warming:
    """At most one prefix is being warmed and none waits: a hint that cannot be taken at once is worthless."""

    spec: SequenceSpec | None = None
    running: bool = False
    number: int = 0
    skipped: int = 0

    @property
    def key(self) -> str:
        """The engine's name for the current one; no request's key looks like it."""
        return f"warm/{self.number}"

    def offer(self, message: Warm, *, busy: bool) -> bool:
        """Whether it will be warmed. Raises ProtocolError when it is not a list of ids and hashes."""
        token_ids, hashes = unpack_ids(message.token_ids), unpack_hashes(message.block_hashes)
        if busy or self.spec is not None or not token_ids:
            self.skipped += 1
            return False
        self.number += 1
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        self.spec = SequenceSpec(token_ids, len(token_ids), hashes, params)
        return True

    def done(self) -> None:
        self.spec = None
        self.running = False
