"""Tell prefill workers what came of trying the grammars of their prompts, so that they need not."""

from __future__ import annotations

from collections import deque

from services.decode.book import DecodeBook
from shared.engine.sampling.grammar_verdicts import Verdict
from shared.messages import GrammarTried
from shared.worker.outbox import Outbox


class VerdictsToTell:
    """Verdicts by the keys of jobs, until the actor's turn."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: deque[tuple[str, Verdict]] = deque()

    def add(self, key: str, verdict: Verdict) -> None:
        """Take note of what the grammar of a job takes, or why it is refused."""
        self._waiting.append((key, verdict))

    async def tell(self, book: DecodeBook) -> None:
        """A grammar is tried once, and here: whoever computes its prompt compiles it on our word, and nobody
        has to be believed where the streams are."""
        while self._waiting:
            key, verdict = self._waiting.popleft()
            job = book.jobs.get(key)
            if job is not None and not job.is_local and not job.is_handed_over:
                took_us, refusal = (0, verdict) if isinstance(verdict, str) else (round(verdict * 1e6), "")
                told = GrammarTried(took_us, refusal)
                await self._outbox.tell("prefill", job.peer, told, job.request_id, job.epoch)
