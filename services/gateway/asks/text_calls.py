"""Calls that place nothing: what they share, whatever they ask for.

Such a call is no request: nothing is routed and nothing kept. It has a deadline, counts in the limits of its
key, is asked elsewhere when an instance fails, and is cancelled when its client is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from services.gateway.asks.call_trace import CallTrace
from services.gateway.context import SessionContext
from services.gateway.fleet.request_client import RequestClient
from services.gateway.fleet.waiting import wait_for_instances
from services.gateway.keys.key_gate import KeyGate
from services.gateway.prompt.role_asker import AskTurn, RoleAsker
from services.gateway.regions.regions import preference
from services.gateway.request.request import MAX_MODEL_CHARS
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import (
    Cancelled,
    InvalidRequest,
    NoAnswer,
    Overloaded,
    PenstockError,
    TooLarge,
    Unavailable,
)
from shared.files.api_key_file import ApiKey
from shared.messages import MAX_EMBED_TEXT_BYTES, Message
from shared.seams.chance import CHANCE
from shared.telemetry import metrics

MAX_ASKS = 3
"""The number of times that a role is asked before the call fails; an instance that failed is not asked again
for a moment."""
FIRST_SHARE = 0.5
"""The share of a call's time that one instance has while there is another."""
ROOM_RETRY_MS = 100
BY_COMMAND = {"retriever": ", as `penstock up --corpus PATH` does"}
"""The commands that start a role which a stack need not have."""


@dataclass(slots=True, eq=False)
class TextCall:
    """A live call. `epoch` counts what was asked for it, so that a cancel of one ask stops no later one;
    `used_tokens` is what it counts for in the limits of its key."""

    id: str
    client: RequestClient
    deadline: Deadline
    trace: CallTrace
    epoch: int = 0
    used_tokens: int = 0


class TextCalls:
    def __init__(self, context: SessionContext, key_gate: KeyGate) -> None:
        self.context = context
        self.fleet = context.fleet
        self._key_gate = key_gate
        self._live: dict[TextCall, None] = {}  # in the order in which they came
        self._admitted = 0
        self._turns = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        context.fleet.on_lost(self._on_instance_lost)

    @property
    def live_count(self) -> int:
        return len(self._live)

    async def drain(self) -> None:
        """Return when the live ones have ended."""
        await self._idle.wait()

    @asynccontextmanager
    async def admitted(
        self, key: ApiKey, text_bytes: int, deadline: Deadline, operation: str
    ) -> AsyncIterator[TextCall]:
        """Room for one call here and in the limits of its key, while it lasts; `key` is what
        `KeyGate.identify` found, `text_bytes` how much there is to read for it. Its spans are those of an
        `operation`."""
        trace = CallTrace(operation, key.tenant, self.context.sampler)
        self._check_room()
        allowance = await self._key_gate.admit_text(key, text_bytes, deadline)
        try:
            self._check_room()  # others may have come meanwhile
        except PenstockError:
            allowance.undo()
            raise
        self._admitted += 1
        with self.begun(deadline, trace) as call:
            try:
                yield call
            except PenstockError as error:
                error.counted = True
                trace.fail(error)
                raise
            except asyncio.CancelledError:
                trace.fail(Cancelled("the client is gone", hop="gateway"))
                raise
            finally:
                self._admitted -= 1
                allowance.charge(call.used_tokens)
                self.context.record_call(trace.record(call.id, call.used_tokens))

    def _check_room(self) -> None:
        """Raise Unavailable while draining, Overloaded where as many calls are live as may be."""
        self.context.drain_gate.check()
        limit = self.context.config.max_text_calls
        if self._admitted >= limit:
            metrics.SHED.labels(hop="gateway", reason="calls").inc()
            raise Overloaded(
                f"{limit} calls for ids, texts, vectors and passages are live already: retry later",
                hop="gateway",
                retry_after_ms=ROOM_RETRY_MS,
                reason="calls",
            )

    @contextmanager
    def begun(self, deadline: Deadline, trace: CallTrace) -> Iterator[TextCall]:
        """A call, or a part of one that is asked for beside others, of what has been admitted."""
        context, call_id = self.context, f"{self.context.instance}.{CHANCE.hex_digits(6)}"
        client = RequestClient(context.bus, context.instance, call_id, deadline, trace=trace.span.header)
        call = TextCall(call_id, client, deadline, trace)
        self._live[call] = None
        self._idle.clear()
        try:
            yield call
        finally:
            self._live.pop(call, None)
            if not self._live:
                self._idle.set()

    async def ask_any(
        self,
        call: TextCall,
        role: str,
        message: Message,
        views: Callable[[], Sequence[InstanceView]],
    ) -> Message:
        """The answer of one of `views`: one after another is asked until one answers."""

        async def ask(view: InstanceView, turn: AskTurn) -> Message:
            return await self._ask_one(call, view, message, turn)

        asker = RoleAsker(
            self.context.breakers, "", MAX_ASKS, next(self._turns), preference(self.context.regions)
        )
        share_s, wait_s = FIRST_SHARE * call.deadline.remaining_s(), self._wait_s(call, role)
        return await asker.ask_any(role, views, ask, share_s=share_s, end=call.deadline, wait_s=wait_s)

    async def ready(
        self, call: TextCall, role: str, views: Callable[[], Sequence[InstanceView]]
    ) -> Sequence[InstanceView]:
        """Some of `views`. One that restarts is waited for; where the role has never been, nobody waits."""
        return await wait_for_instances(views, role, Deadline.after(self._wait_s(call, role)))

    def _wait_s(self, call: TextCall, role: str) -> float:
        """Return how long to wait for an instance. Raises Unavailable for a role that never was there."""
        if not any(view.heartbeat.role == role for view in self.fleet.all()):
            raise Unavailable(f"no {role} is running: start one{BY_COMMAND.get(role, '')}", hop=role)
        config = self.context.config
        return min(config.admit_wait_s, config.place_share * call.deadline.remaining_s())

    async def _ask_one(self, call: TextCall, view: InstanceView, message: Message, turn: AskTurn) -> Message:
        """Ask one instance; one that has not answered when nobody listens any more is told so."""
        role, instance = view.heartbeat.role, view.heartbeat.instance
        call.epoch += 1
        self.fleet.expect_work(view)
        try:
            with call.trace.asking(role, instance):
                return await call.client.ask_instance(
                    role,
                    instance,
                    message,
                    turn.until,
                    epoch=call.epoch,
                    work_ends=turn.end,
                    go_on=turn.go_on,
                )
        except (NoAnswer, asyncio.CancelledError):
            work = self.context.canceller.cancel_holders(call.id, call.epoch, [(role, instance)], "cancelled")
            self.context.tasks.start(f"cancel-{call.id}", work)
            raise

    def _on_instance_lost(self, role: str, instance: str, why: str) -> None:  # noqa: ARG002 - a callback of the fleet
        for call in self._live:
            call.client.stop_asking(role, instance)


def check_model_name(model: str) -> None:
    if len(model) > MAX_MODEL_CHARS:
        raise InvalidRequest(f"model has {len(model)} characters: send at most {MAX_MODEL_CHARS}")


def checked_bytes(texts: Sequence[str], most: int) -> int:
    """Return the length of all texts in bytes; raises InvalidRequest or TooLarge."""
    if not 1 <= len(texts) <= most:
        raise InvalidRequest(f"texts has {len(texts)}: send 1 to {most}")
    return sum(_text_bytes(index, text) for index, text in enumerate(texts))


def _text_bytes(index: int, text: str) -> int:
    if not text.strip():
        raise InvalidRequest(f"texts[{index}] is blank: send some words or leave it out")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"texts[{index}] has lone surrogates: send valid Unicode") from error
    if size > MAX_EMBED_TEXT_BYTES:
        raise TooLarge(f"texts[{index}] has {size} bytes: send at most {MAX_EMBED_TEXT_BYTES}")
    return size
