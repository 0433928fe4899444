"""Draft for the streams of a decode worker: its sessions over the bus, as far as pressure leaves of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from services.decode.ahead.draft_offers import DraftUse
from services.decode.config import DecodeConfig
from services.decode.drafts import DraftBook, longest_at
from services.decode.driver import DecodeDriver
from services.decode.job import DecodeJob
from shared.degradation import DegradationLevel
from shared.engine import TokenOutput
from shared.engine.scheduling.head_drafts import HEAD_TOKENS
from shared.messages import DraftBlock, Held
from shared.process.service import Service
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.outbox import Outbox


class Drafting:
    """`book` has the sessions."""

    def __init__(self, service: Service[DecodeConfig], driver: DecodeDriver, outbox: Outbox) -> None:
        config = service.config
        self._service = service
        self._driver = driver
        self._outbox = outbox
        self.book = DraftBook(
            service.instance, config.draft_tokens, config.draft_batch_tokens, config.draft_fan
        )
        self._late_counted = 0

    def open_draft(self, job: DecodeJob) -> None:
        """Open a session for a job that begins to decode."""
        self.book.open_draft(
            job.request_id,
            job.epoch,
            job.speculator,
            job.token_ids,
            job.spec.prompt_len,
            job.spec.params,
            adapter=job.adapter_name,
        )

    def advance(self, output: TokenOutput) -> None:
        """Take note of a step of a job that goes on."""
        if len(self.book) == 0:
            return
        drafted = drafted_by(output) == "speculator"
        self.book.advance(
            output.key,
            output.token_ids,
            output.proposed_drafts * drafted,
            output.accepted_drafts * drafted,
        )

    def count(self, outputs: Iterable[TokenOutput]) -> None:
        """Count what was guessed in a step, by who guessed it."""
        for output in outputs:
            if output.proposed_drafts:
                source = drafted_by(output)
                metrics.DRAFT_PROPOSED.labels(source=source).inc(output.proposed_drafts)
                metrics.DRAFT_ACCEPTED.labels(source=source).inc(output.accepted_drafts)

    def receive(self, block: DraftBlock, sender: str) -> None:
        """Take what a speculator has drafted; one that says who it is speaks for its own sessions alone."""
        self.book.receive(block, sender, SYSTEM_CLOCK.monotonic_s())

    def record_uses(self, uses: Sequence[DraftUse]) -> None:
        """Take note of how far the engine was when drafts came to it, and of rounds that have ended."""
        for use in uses:
            self.book.record_use(use)
            if use.ended is not None:
                metrics.DRAFT_ROUNDS.labels(end=use.ended).inc()

    async def send(self) -> None:
        """Tell the speculators what has become final, and what is wanted next."""
        for speculator, request_id, epoch, message in self.book.outgoing(SYSTEM_CLOCK.monotonic_s()):
            await self._outbox.tell("speculator", speculator, message, request_id, epoch)
        late = self.book.counts.late
        metrics.DRAFT_LATE.inc(late - self._late_counted)
        self._late_counted = late

    def follow_level(self) -> None:
        """Leave out what the gateways say that this model has to do without now."""
        level = self._told_level()
        if level is not self.book.level:
            self.book.level = level
            self._driver.limit_ngrams(longest_at(level, self._driver.engine.config.ngram_tokens))
            self._driver.limit_head(longest_at(level, HEAD_TOKENS))

    def _told_level(self) -> DegradationLevel:
        """Return the highest level that gateways tell of the model that is served here."""
        gateways = self._service.fleet.instances("gateway")
        told = [each for view in gateways for each in view.heartbeat.gateway.model_levels]
        if not told:
            return DegradationLevel.NONE
        own = self._service.heartbeat()
        ours = (each for each in told if (each.model, each.weights_digest) == (own.model, own.weights_digest))
        return max((DegradationLevel.heard(each.level) for each in ours), default=DegradationLevel.NONE)

    def held(self) -> Iterable[Held]:
        """Return its sessions, for audits."""
        return (Held(request_id, "draft", 1, "") for request_id, _ in self.book.held())


def drafted_by(output: TokenOutput) -> Literal["lookup", "head", "speculator"]:
    """Return who has made the drafts that a step verified."""
    if output.looked_up:
        return "lookup"
    return "head" if output.from_head else "speculator"
