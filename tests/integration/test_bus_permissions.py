"""A closed bus, over a real nats-server: who may say what, who may read what, and who gets in at all."""

from __future__ import annotations

import asyncio
import time
import typing
from collections.abc import AsyncIterator, Iterable
from itertools import product

import nats.errors
import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, Delivery, codec
from shared.bus.bulk import BulkConnection
from shared.bus.connection import FIRST_CONNECT_S
from shared.bus.credentials import Credentials
from shared.bus.fleet import FleetView
from shared.bus.permissions import MAY_SEND, OPERATOR
from shared.bus.subjects import (
    ANY,
    CANCEL_ALL,
    FLEET_ALL,
    answers,
    everything_at,
    fleet,
    inbox,
    kv,
    subject_of,
)
from shared.deadline import Deadline
from shared.errors import ProtocolError, Unavailable
from shared.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    Envelope,
    Heartbeat,
    KvGrant,
    Message,
    Snapshot,
)
from shared.roles import FOLLOWED_ROLES, ROLES
from tests.support import metric
from tests.support.closed_bus import ClosedBus, RawClient, closed_bus, users
from tests.support.heartbeats import make_heartbeat
from tests.support.kv_pair import assert_same, pairs
from tests.support.wait import until

MESSAGES = [message.__name__ for message in typing.get_args(Message)]
ANSWERS = {
    "AnswerCited",
    "Accepted", "Failure", "Tokenized", "Retrieved", "CancelAck", "HoldReport", "KvSegment", "Snapshot",
    "AuditReport", "Detokenized", "Embedded", "TokenBytes", "ResponseFound", "ResponseMissing",
    "TextScores", "RequestAccount", "NoAccount", "KeyUsesBegun", "KeyUsesRefused", "KeyKeptElsewhere",
    "KeyClaimed", "HandedOver", "Successor", "UsageReport",
    "ConsoleReport",
    "FlagChanged", "FlagLogReport", "FlagTraffic",
}  # fmt: skip
"""The messages that nobody may send but to who has asked."""


@pytest.fixture
async def closed() -> AsyncIterator[ClosedBus]:
    async with closed_bus() as bus:
        yield bus


def beat(role: str, instance: str) -> Heartbeat:
    now = time.time_ns() // 1000
    return make_heartbeat(
        role, instance, sent_unix_us=now, host="host", pid=7, metrics="h:1", model="m", capacity=8
    )


def directed(role: str, message: str, sender: str) -> str:
    """To instance 1, so that also peers of one role are strangers."""
    return subject_of(inbox(role, f"{role}-1"), message, sender)


# ---- the table, all of it -------------------------------------------------------------------------


def test_the_table_has_every_message_or_it_is_an_answer() -> None:
    listed = {message.__name__ for row in MAY_SEND.values() for sent in row.values() for message in sent}
    elsewhere = {"Heartbeat", "HeartbeatRequest", "SnapshotRequest"}
    assert listed | ANSWERS | elsewhere == set(MESSAGES)
    assert not ANSWERS & (listed | elsewhere)


def expected(sender: str) -> set[str]:
    role = sender.rpartition("-")[0] or sender
    allowed = {
        directed(receiver, message.__name__, sender)
        for receiver, sent in MAY_SEND[role].items()
        for message in sent
    }
    if role != OPERATOR:
        allowed.add(subject_of(fleet(role, sender), "Heartbeat", sender))
        allowed |= {
            directed(asked, "SnapshotRequest", sender) for asked in ("prefill", "decode", "speculator")
        }
    if role == "gateway":
        allowed.add(subject_of(CANCEL_ALL, "Cancel", sender))
    if role in ("prefill", "decode"):
        allowed.add(kv("decode-1", 7))
    return allowed


def sayable(sender: str) -> Iterable[str]:
    """Everything that is ever said on a bus, with `sender` as its sender, and some that nobody should."""
    for receiver, message in product(ROLES, MESSAGES):
        yield directed(receiver, message, sender)
    for message in MESSAGES:
        yield subject_of(CANCEL_ALL, message, sender)
        for role in ROLES:
            yield subject_of(fleet(role, f"{role}-0"), message, sender)
    yield from (kv("decode-1", 7), "$SYS.REQ.SERVER.PING", "penstock", f"{answers('gateway-0')}.x.y")


@pytest.mark.parametrize("sender", [*(f"{role}-0" for role in ROLES), OPERATOR])
async def test_a_user_may_say_what_the_table_has_and_nothing_else(closed: ClosedBus, sender: str) -> None:
    heard: set[str] = set()

    async def hear(msg: Msg) -> None:
        heard.add(msg.subject)

    async with closed.raw("witness") as witness, closed.raw(sender) as client:
        await witness.client.subscribe("penstock.>", cb=hear)
        await witness.client.subscribe("_INBOX.gateway-0.>", cb=hear)
        await witness.settle()
        said = set(sayable(sender))
        for subject in said:
            await client.client.publish(subject, b"")
        await client.settle()
        await witness.settle()
        assert heard == expected(sender)
        assert len(client.refused) == len(said - heard)


@pytest.mark.parametrize("reader", [*(f"{role}-0" for role in ROLES), OPERATOR])
async def test_a_user_may_read_its_own_and_the_heartbeats_that_concern_it_and_nothing_else(
    closed: ClosedBus, reader: str
) -> None:
    role = reader.rpartition("-")[0] or reader
    heartbeats = {everything_at(fleet(other, ANY)) for other in ROLES} | {everything_at(FLEET_ALL)}
    heard = {everything_at(fleet(other, ANY)) for other in FOLLOWED_ROLES.get(role, ())}
    heard = heartbeats if role == OPERATOR else heard
    own = {everything_at(inbox(role, reader))} if role != OPERATOR else set()
    own |= {f"{answers(reader)}.>", *heard}
    own |= {everything_at(CANCEL_ALL)} if role not in ("gateway", OPERATOR) else set()
    own |= {kv("decode-0", "7")} if role == "decode" else set()
    foreign = {">", "penstock.>", "_INBOX.>", "_INBOX.*.*", "$SYS.>", CANCEL_ALL, everything_at(CANCEL_ALL)}
    foreign |= {f"{answers(user.name)}.>" for user in users()} | {kv("*", "*"), kv("decode-1", "7")}
    foreign |= {everything_at(inbox(other, f"{other}-{n}")) for other in ROLES for n in (0, 1)}
    foreign |= {everything_at(inbox(other, "*")) for other in ROLES} | heartbeats - heard
    async with closed.raw(reader) as client:
        for subject in own | foreign:
            await client.client.subscribe(subject)
        await client.settle()
    allowed = {
        subject
        for subject in own | foreign
        if not any(f'subscription to "{subject.lower()}"' in sentence for sentence in client.refused)
    }
    assert allowed == own


# ---- what was done to a live stack ----------------------------------------------------------------

FORBIDDEN = {
    "a detokenizer sends tokens": ("detokenizer-0", directed("detokenizer", "Tokens", "detokenizer-0")),
    "a tokenizer sends text": ("tokenizer-0", directed("gateway", "Text", "tokenizer-0")),
    "a decode worker sends text": ("decode-0", directed("gateway", "Text", "decode-0")),
    "a prefill worker cancels": ("prefill-0", directed("decode", "Cancel", "prefill-0")),
    "a prefill worker cancels as a gateway": ("prefill-0", directed("decode", "Cancel", "gateway-0")),
    "a decode worker cancels everywhere": ("decode-0", subject_of(CANCEL_ALL, "Cancel", "decode-0")),
    "the operator cancels": (OPERATOR, subject_of(CANCEL_ALL, "Cancel", OPERATOR)),
    "a decode worker sends tokens as another": ("decode-0", directed("detokenizer", "Tokens", "decode-1")),
    "a speculator sends KV": ("speculator-0", kv("decode-1", 7)),
    "a retriever beats for another": (
        "retriever-0",
        subject_of(fleet("retriever", "retriever-1"), "Heartbeat", "retriever-0"),
    ),
    "a tokenizer beats for a decode worker": (
        "tokenizer-0",
        subject_of(fleet("decode", "decode-0"), "Heartbeat", "decode-0"),
    ),
    "a speculator drains a gateway": ("speculator-0", directed("gateway", "Drain", "speculator-0")),
    "a tokenizer looks into another": (
        "tokenizer-0",
        directed("tokenizer", "AuditRequest", "tokenizer-0"),
    ),
    "a retriever answers unasked": ("retriever-0", f"{answers('gateway-0')}.token.token"),
    "the decode role cancels": ("decode", directed("prefill", "Cancel", "decode")),
    "the tokenizer role beats for decode": (
        "tokenizer",
        subject_of(fleet("decode", "decode-0"), "Heartbeat", "decode-0"),
    ),
}


@pytest.mark.thorough(
    but="a decode worker cancels everywhere | a decode worker sends tokens as another | "
    "a prefill worker cancels as a gateway | a retriever answers unasked | a speculator sends KV | "
    "a tokenizer beats for a decode worker | the operator cancels | the decode role cancels"
)
@pytest.mark.parametrize("attack", FORBIDDEN)
async def test_what_a_user_has_no_business_to_say_is_refused_and_reaches_nobody(
    closed: ClosedBus, attack: str
) -> None:
    user, subject = FORBIDDEN[attack]
    heard: list[str] = []

    async def hear(msg: Msg) -> None:
        heard.append(msg.subject)

    async with closed.raw("witness") as witness, closed.raw(user) as client:
        await witness.client.subscribe(subject, cb=hear)
        await witness.settle()
        await client.client.publish(subject, b"")
        await client.settle()
        await witness.settle()
    assert heard == []
    assert [subject.lower() in sentence for sentence in client.refused] == [True]


async def test_a_user_of_a_role_may_speak_as_any_instance_of_it(closed: ClosedBus) -> None:
    """Where instances are not known beforehand, the server holds only the roles apart."""
    async with closed.raw("decode") as client:
        await client.client.publish(directed("detokenizer", "Tokens", "decode-1"), b"")
        await client.client.subscribe(everything_at(inbox("decode", "decode-1")))
        await client.settle()
    assert client.refused == []


# ---- strangers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "credentials", [None, Credentials("gateway-0", "guessed"), Credentials("root", "root")]
)
async def test_who_has_no_password_does_not_get_in_and_is_told_so_at_once(
    closed: ClosedBus, credentials: Credentials | None
) -> None:
    async with asyncio.timeout(FIRST_CONNECT_S / 2):
        with pytest.raises(Unavailable, match="PENSTOCK_NATS_CREDENTIALS") as caught:
            await Bus.connect(closed.url, name="stranger", credentials=credentials)
        with pytest.raises(Unavailable, match="PENSTOCK_NATS_CREDENTIALS"):
            await BulkConnection.connect(closed.url, name="stranger", credentials=credentials)
    assert "Authorization Violation" in str(caught.value)
    assert "guessed" not in str(caught.value)


# ---- asking and answering ---------------------------------------------------------------------------


async def served(bus: Bus, role: str, instance: str, answer: Message) -> list[Delivery]:
    """`instance` answers whatever it is asked; the list fills with what came."""
    got: list[Delivery] = []
    replies: set[asyncio.Task[None]] = set()

    def receive(delivery: Delivery) -> None:
        got.append(delivery)
        replies.add(asyncio.create_task(bus.answer(delivery.envelope, answer)))

    await bus.serve(inbox(role, instance), receive)
    return got


async def test_who_is_asked_may_answer_and_the_asker_knows_who_it_was_and_is_known(closed: ClosedBus) -> None:
    report = AuditReport("decode", "decode-0", 1, ())
    async with closed.bus("decode-0") as decode, closed.bus(OPERATOR) as operator:
        got = await served(decode, "decode", "decode-0", report)
        for _ in range(3):
            answer = await operator.ask(
                inbox("decode", "decode-0"), AuditRequest(), Envelope(), Deadline.after(60)
            )
            assert answer == report
    assert {delivery.sender for delivery in got} == {OPERATOR}


async def test_an_answer_can_be_given_once(closed: ClosedBus) -> None:
    asked: asyncio.Queue[Msg] = asyncio.Queue()
    async with closed.raw("prefill-0") as prefill, closed.raw("decode-0") as decode:
        await prefill.client.subscribe(everything_at(inbox("prefill", "prefill-0")), cb=asked.put)
        await prefill.settle()
        subject = subject_of(inbox("prefill", "prefill-0"), "KvProbe", "decode-0")
        asking = asyncio.create_task(decode.client.request(subject, b"", timeout=60))
        question = await asyncio.wait_for(asked.get(), 60)
        await question.respond(b"first")
        await question.respond(b"second")
        await prefill.settle()
        assert (await asking).data == b"first"
    assert [answers("decode-0").lower() in sentence for sentence in prefill.refused] == [True]


async def test_an_instance_that_may_not_read_its_inbox_hears_it_when_it_begins_to(closed: ClosedBus) -> None:
    async with closed.bus("decode-0") as bus:
        with pytest.raises(Unavailable, match=r"penstock\.decode\.decode-1.*credentials"):
            await bus.serve(inbox("decode", "decode-1"), lambda _: None)
    bulk = await BulkConnection.connect(closed.url, name="kv", credentials=closed.credentials("decode-0"))
    try:
        with pytest.raises(Unavailable, match=r"penstock\.kv\.decode-1.*credentials"):
            await bulk.serve(kv("decode-1", 7), Sink())
    finally:
        await bulk.close()


class Sink:
    """Takes the bodies of one subject and keeps none."""

    header_bytes = 1

    def __init__(self) -> None:
        self.headers: list[bytes] = []

    def open(self, header: bytes, body_bytes: int) -> None:
        del body_bytes
        self.headers.append(header)

    def done(self) -> None:
        pass

    def lost(self) -> None:
        pass


async def test_kv_goes_from_prefill_to_decode(closed: ClosedBus) -> None:
    sink, subject = Sink(), kv("decode-0", 7)
    receiver = await BulkConnection.connect(closed.url, name="d", credentials=closed.credentials("decode-0"))
    sender = await BulkConnection.connect(closed.url, name="p", credentials=closed.credentials("prefill-0"))
    try:
        await receiver.serve(subject, sink)
        await sender.send(subject, b"h", [memoryview(b"body")])
        await until(lambda: sink.headers == [b"h"])
    finally:
        await sender.close()
        await receiver.close()


@pytest.mark.parametrize("share", [False, True], ids=["nats", "shm"])
async def test_a_prefix_goes_from_one_prefill_worker_to_another(closed: ClosedBus, share: bool) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="permission")
    async with pairs(closed.url, closed.credentials) as make:
        pair = await make(share=share, between=("prefill-0", "prefill-1"))
        pair.expect_transfer("gateway-0.1.prefix", [5, 6, 7])
        key = pair.offer_transfer("gateway-0.1.prefix", [1, 2, 3])
        pair.compute(key, 3)
        pair.sender.finish_transfer(key, (), "")
        await pair.transferred()
        assert_same(pair, [1, 2, 3], [5, 6, 7])
        pair.expect_transfer("gateway-0.2.prefix", [5, 6, 7])
        aborted = pair.offer_transfer("gateway-0.2.prefix", [1, 2, 3])
        await until(lambda: pair.heard_by_sender(KvGrant) == 2)
        pair.receiver.abort_transfer(aborted, "computed instead")
        await pair.freed()
        transports = {d.message.transport for d in pair.to_sender if isinstance(d.message, KvGrant)}
    assert transports == {"shm" if share else "nats"}
    assert metric.value("penstock_dropped_messages_total", reason="permission") == before


# ---- what a subject says is what comes ---------------------------------------------------------------


async def publish_raw(client: RawClient, subject: str, message: Message) -> None:
    await client.client.publish(subject, codec.encode(message, Envelope("r", 1)))
    await client.settle()
    assert client.refused == []


async def test_a_message_that_is_not_what_its_subject_says_is_refused(closed: ClosedBus) -> None:
    """A prefill worker may send KvDone to decode; what it puts into it is up to the worker."""
    got: list[Delivery] = []
    before = metric.value("penstock_protocol_errors_total", code=ProtocolError.code)
    async with closed.bus("decode-1") as decode, closed.raw("prefill-0") as prefill:
        await decode.serve(inbox("decode", "decode-1"), got.append)
        await publish_raw(prefill, directed("decode", "KvDone", "prefill-0"), Cancel("cancelled"))
        await until(
            lambda: metric.value("penstock_protocol_errors_total", code=ProtocolError.code) == before + 1
        )
    assert got == []


async def test_a_heartbeat_speaks_for_its_own_instance_only(closed: ClosedBus) -> None:
    view = FleetView()
    async with closed.bus("gateway-0") as gateway, closed.raw("retriever-0") as liar:
        await view.start(gateway)
        try:
            subject = subject_of(fleet("retriever", "retriever-0"), "Heartbeat", "retriever-0")
            await publish_raw(liar, subject, beat("decode", "decode-0"))
            await publish_raw(liar, subject, beat("retriever", "retriever-1"))
            await publish_raw(liar, subject, beat("retriever", "retriever-0"))
            await until(view.all)
            assert [(seen.heartbeat.role, seen.heartbeat.instance) for seen in view.all()] == [
                ("retriever", "retriever-0")
            ]
        finally:
            await view.stop()


async def test_an_answer_sent_to_an_inbox_is_no_message(closed: ClosedBus) -> None:
    """The asker names where the answer goes: it cannot make the asked one speak to others for it."""
    got: list[Delivery] = []
    async with (
        closed.bus("decode-0") as decode,
        closed.bus("detokenizer-0") as detokenizer,
        closed.raw("gateway-0") as gateway,
    ):
        await served(decode, "decode", "decode-0", Snapshot(0, b""))
        await detokenizer.serve(inbox("detokenizer", "detokenizer-0"), got.append)
        before = metric.value("penstock_protocol_errors_total", code=ProtocolError.code)
        await gateway.client.publish(
            subject_of(inbox("decode", "decode-0"), "Cancel", "gateway-0"),
            codec.encode(Cancel("cancelled"), Envelope("r", 1)),
            reply=subject_of(inbox("detokenizer", "detokenizer-0"), "Tokens", "decode-0"),
        )
        await gateway.settle()
        await until(
            lambda: metric.value("penstock_protocol_errors_total", code=ProtocolError.code) == before + 1
        )
    assert got == []


# ---- refusals are seen --------------------------------------------------------------------------------


async def test_refusals_are_counted_every_time_and_logged_once(
    closed: ClosedBus, capsys: pytest.CaptureFixture[str]
) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="permission")
    async with closed.bus("decode-0") as bus:
        for _ in range(3):
            await bus.publish(CANCEL_ALL, Cancel("cancelled"))
        await bus.flush()
        assert metric.value("penstock_dropped_messages_total", reason="permission") == before + 3
    assert capsys.readouterr().out.count("bus_permission_denied") == 1


async def test_a_refused_message_leaves_the_connection_alive(closed: ClosedBus) -> None:
    async with closed.raw("tokenizer-0") as client:
        await client.client.publish(subject_of(CANCEL_ALL, "Cancel", "tokenizer-0"), b"")
        await client.settle()
        with pytest.raises(nats.errors.NoRespondersError):
            await client.client.request(directed("decode", "SnapshotRequest", "tokenizer-0"), b"", timeout=60)
