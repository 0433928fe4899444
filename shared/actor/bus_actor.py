"""An actor that is reached over the bus: what every service's actor answers the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import structlog

from shared import messages
from shared.actor.actor import Actor
from shared.actor.supervisor import ActorRef
from shared.bus import Bus, Delivery
from shared.errors import Cancelled, InternalError, PenstockError
from shared.messages import AuditReport, Held, Snapshot

log = structlog.get_logger()

B = TypeVar("B", bound="BusActor")

CONTROL_MESSAGES = (
    messages.Cancel,
    messages.Drain,
    messages.AuditRequest,
    messages.LivenessCheck,
    messages.TakeOver,
    messages.KvAbort,
    messages.KvAbortAck,
    messages.DraftClose,
    messages.Lost,
)
"""The messages that must not wait behind data."""
REQUEST_MESSAGES = (
    messages.Tokenize,
    messages.Retrieve,
    messages.Open,
    messages.Reserve,
    messages.Prefill,
    messages.DraftOpen,
)
"""The messages with which a service takes a request up: each has a line in the log, at debug level."""


class Host(Protocol):
    """The process that a BusActor lives in, as it sees it; `shared.process.service.Service` is one."""

    @property
    def role(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def bus(self) -> Bus: ...
    def begin_drain(self, patience_s: int = 0) -> None: ...


class BusActor(Actor):
    """Give `receive` to `bus.serve`; override `on_message`, `on_item`, `held`, `snapshot`.

    A PenstockError raised by `on_message` is an answer: it goes to the asker as a Failure. Any
    other exception is answered with an InternalError and then crashes the actor.
    """

    def __init__(self, name: str, host: Host, *, mailbox_limit: int = 1024, control_limit: int = 256) -> None:
        super().__init__(name, mailbox_limit=mailbox_limit, control_limit=control_limit)
        self.host = host
        self.bus = host.bus

    def receive(self, delivery: Delivery) -> None:
        """Into the lane of its type. Raises Overloaded when that is full, and the bus answers so."""
        if isinstance(delivery.message, CONTROL_MESSAGES):
            self.tell_control(delivery)
        else:
            self.tell(delivery)

    # ---- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    async def on_message(self, delivery: Delivery) -> None:
        """A message that is not one of the common ones."""

    async def on_item(self, item: Any) -> None:
        """Something told by this process itself: an Ask, a result, a lost instance."""
        raise InternalError(f"{self.name} has no use for a {type(item).__name__}")

    def held(self) -> Iterable[Held]:
        """Everything held, per request, for the audit."""
        return ()

    def snapshot(self, bucket: int) -> Snapshot:  # noqa: ARG002 - a hook: here every page is empty
        """A page of the block hashes of the prefix cache; services without one have none."""
        return Snapshot(0, b"")

    # ---- the common answers -------------------------------------------------------------------------

    async def handle(self, item: Any) -> None:
        if not isinstance(item, Delivery):
            await self.on_item(item)
            return
        try:
            await self._answer(item)
        except PenstockError as error:
            await self.refuse(item, error)
        except BaseException:  # a panic in an extension is no Exception
            await self.refuse(item, InternalError(f"{self.name} crashed over this; its log has the cause"))
            raise

    async def _answer(self, delivery: Delivery) -> None:
        host = self.host
        match delivery.message:
            case messages.AuditRequest():
                report = AuditReport(host.role, host.instance, host.incarnation, tuple(self.held()))
                await self.bus.answer(delivery.envelope, report)
            case messages.SnapshotRequest(bucket):
                await self.bus.answer(delivery.envelope, self.snapshot(bucket))
            case messages.Drain(patience_s):
                host.begin_drain(patience_s)
                await self.bus.answer(delivery.envelope, messages.Accepted())
            case message:
                if isinstance(message, REQUEST_MESSAGES):
                    _log_taken(delivery)
                await self.on_message(delivery)

    async def abandon(self, item: object, error: PenstockError) -> None:
        if isinstance(item, Delivery):
            await self.refuse(item, error)

    async def refuse(self, delivery: Delivery, error: PenstockError) -> None:
        """Answer with a Failure where somebody waits; else count the drop."""
        await self.bus.answer(delivery.envelope, error, hop=self.host.role)


def _log_taken(delivery: Delivery) -> None:
    """Say which request came here: the same id is in the lines of the other services and of the gateway."""
    envelope = delivery.envelope
    log.debug(
        "request_taken",
        request_id=envelope.request_id,
        epoch=envelope.epoch,
        message=type(delivery.message).__name__,
        tenant=envelope.tenant,
        trace=envelope.trace,
        gateway=envelope.origin,
    )


def cancelled(reason: str) -> Cancelled:
    """The refusal of a request whose cancel came first."""
    return Cancelled(f"the request was cancelled before it arrived ({reason})")


def receiver(actor: ActorRef[B]) -> Callable[[Delivery], None]:
    """Return a `receive` for `bus.serve` that hands each delivery to the actor that lives by then."""

    def receive(delivery: Delivery) -> None:
        actor.living.receive(delivery)

    return receive
