"""The tokenizer's actor: short prompts at once, long ones in threads, in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import structlog

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.prompt_tokenizer import PromptTokenizer, text_chars
from shared.actor import Tombstones
from shared.actor.bus_actor import cancelled
from shared.bus import Delivery
from shared.errors import (
    DeadlineExpired,
    InternalError,
    Overloaded,
    PenstockError,
    Unavailable,
    UnknownMessage,
)
from shared.messages import (
    Cancel,
    CancelAck,
    Detokenize,
    Detokenized,
    Envelope,
    GetTokenBytes,
    Heartbeat,
    Held,
    Tokenize,
    Tokenized,
    TokenizerReport,
)
from shared.process.serve_actor import ServiceActor
from shared.process.service import Service
from shared.seams.threads import THREADS
from shared.tasks import start_task
from shared.telemetry import metrics

log = structlog.get_logger()

HOP = "tokenizer"
INLINE_CHARS = 1024
"""A prompt up to this takes well under a millisecond, about as long as the way to a thread and back."""


class TokenizerActor(ServiceActor):
    """Owns the queue of long prompts; at most `workers` of them are being worked on."""

    def __init__(self, service: Service[TokenizerConfig], prompts: PromptTokenizer) -> None:
        super().__init__(HOP, service)
        self._service = service
        self._prompts = prompts
        self._waiting: deque[Delivery] = deque()
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._tombstones = Tombstones()
        self._crash: BaseException | None = None
        self._threads = THREADS.pool(service.config.workers, HOP)

    def status(self) -> Heartbeat:
        return replace(
            self._service.heartbeat(),
            capacity=self._service.config.workers,
            live=len(self._running),
            queued=self.queued + len(self._waiting),
            tokenizer=TokenizerReport(
                self._prompts.has_chat_template, self._prompts.vocab_tokens, self._prompts.most_token_bytes
            ),
        )

    def held(self) -> list[Held]:
        running = [
            Held(asked.envelope.request_id, "queued", 1, "tokenizing") for asked in self._running.values()
        ]
        return running + [Held(asked.envelope.request_id, "queued", 1, "queued") for asked in self._waiting]

    # ---- messages -----------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case Tokenize() | Detokenize() as asked:
                self._check_wanted(delivery)
                if text_chars(asked) <= INLINE_CHARS:
                    await self.bus.reply(delivery.envelope, self._answer_of(asked))
                else:
                    self._queue(delivery)
            case GetTokenBytes() as tokens:
                await self.bus.reply(delivery.envelope, self._prompts.token_bytes(tokens))
            case Cancel() as cancel:
                ack = await self._cancel(delivery.envelope, cancel)
                await self.bus.answer(delivery.envelope, ack)
            case other:
                raise UnknownMessage(f"a tokenizer has no use for {type(other).__name__}")

    def _check_wanted(self, delivery: Delivery) -> None:
        """Raises Cancelled or DeadlineExpired for a prompt that nobody waits for any more."""
        reason = self._tombstones.refuses(delivery.envelope.request_id, delivery.envelope.epoch)
        if reason:
            raise cancelled(reason)
        deadline = self.bus.deadline_of(delivery.envelope)
        if deadline is not None:
            deadline.check(HOP)

    def _queue(self, delivery: Delivery) -> None:
        limit = self._service.config.max_queued
        if len(self._waiting) >= limit:
            raise Overloaded(
                f"{limit} long prompts are waiting already; try another tokenizer", retry_after_ms=100
            )
        self._waiting.append(delivery)

    async def _cancel(self, envelope: Envelope, cancel: Cancel) -> CancelAck:
        """A prompt that waits is forgotten; one in a thread is finished and its answer has no reader."""
        request_id, epoch = envelope.request_id, envelope.epoch
        self._tombstones.add(request_id, epoch, cancel.reason)
        dropped = [asked for asked in self._waiting if _is_of(asked, request_id, epoch)]
        for asked in dropped:
            self._waiting.remove(asked)
            await self.refuse(asked, cancelled(cancel.reason))
        running = any(_is_of(asked, request_id, epoch) for asked in self._running.values())
        phase = "queued" if dropped else "tokenizing" if running else ""
        return CancelAck(bool(phase), phase)

    # ---- work ---------------------------------------------------------------------------------------

    async def turn(self) -> bool:
        """Refuse what has expired, start as many waiting prompts as there are free threads."""
        if self._crash is not None:
            raise self._crash
        for asked in [asked for asked in self._waiting if self._expired(asked)]:
            self._waiting.remove(asked)
            await self.refuse(asked, DeadlineExpired("the deadline passed before it was this prompt's turn"))
        while self._waiting and len(self._running) < self._service.config.workers:
            asked = self._waiting.popleft()
            task = start_task(self._work(asked), name="tokenize")
            self._running[task] = asked
            task.add_done_callback(self._done)
        metrics.QUEUE_DEPTH.labels(service=HOP).set(len(self._waiting))
        return False

    def _answer_of(self, message: Tokenize | Detokenize) -> Tokenized | Detokenized:
        """Pure: also called in threads."""
        if isinstance(message, Tokenize):
            return self._prompts.tokenize_prompt(message)
        return self._prompts.detokenize_ids(message)

    def _expired(self, asked: Delivery) -> bool:
        deadline = self.bus.deadline_of(asked.envelope)
        return deadline is not None and deadline.expired()

    async def _work(self, asked: Delivery) -> None:
        """Answers in every case; only what is no Exception, a panic in an extension, is raised then."""
        message = asked.message
        assert isinstance(message, Tokenize | Detokenize)
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._answer_of, message)
            await self.bus.reply(asked.envelope, answer)
        except PenstockError as error:
            await self.refuse(asked, error)
        except BaseException as error:
            log.exception("tokenize_failed", request_id=asked.envelope.request_id)
            await self.refuse(asked, InternalError("tokenizing failed; the tokenizer's log has the cause"))
            if not isinstance(error, Exception):
                raise

    def _done(self, task: asyncio.Task[None]) -> None:
        """A panic leaves this actor to its supervisor: who knows what it has left behind."""
        del self._running[task]
        if not task.cancelled():
            self._crash = self._crash or task.exception()
        self.wake()

    async def on_stop(self) -> None:
        for asked in self._waiting:
            await self.refuse(asked, Unavailable("this tokenizer ends; ask another one"))
        self._waiting.clear()
        if self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_of(asked: Delivery, request_id: str, epoch: int) -> bool:
    return asked.envelope.request_id == request_id and asked.envelope.epoch <= epoch
