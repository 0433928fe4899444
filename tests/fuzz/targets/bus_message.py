"""Messages on the bus of a real fleet, as its roles may send them: short sequences, with any fields."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgpack
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.bus import codec
from shared.bus.codec import MESSAGE_TYPES
from shared.bus.permissions import MAY_SEND, OPERATOR
from shared.bus.subjects import CANCEL_ALL, answers, fleet, heartbeat_request, inbox, subject_of
from shared.errors import ProtocolError
from shared.messages import Drain, Envelope, Failure
from shared.roles import ENGINE_ROLES, ROLES
from tests.fuzz.fleet import opened_fleet
from tests.fuzz.messages import random_message
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, RunOne, Target
from tests.fuzz.targets.bus_codec import NO_VERSION, with_version
from tests.support.stack import Stack

REQUEST_IDS = ("r-0", "r-1", "gateway-0.1", "", "x" * 300, "*")
EPOCHS = (0, 1, 1, 2, 3, 2**32, 2**63)
ORIGINS = ("gateway-0", "gateway-0", "nobody", "")
SOON_US = 1
"""Stands for a deadline in a moment; all other numbers are what they are."""
DEADLINES = (0, SOON_US, SOON_US, SOON_US, 2**63, 2**64 - 1)
AFTER_US = 2_000_000
ANSWER_S = 0.05
SENDERS = (*ROLES, OPERATOR)


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of an input; a line of its text."""

    user: str
    subject: str
    wants_answer: bool
    payload: bytes

    def line(self) -> str:
        return f"{self.user} {self.subject} {int(self.wants_answer)} {self.payload.hex()}"


def make(rng: random.Random) -> bytes:
    request_id, epoch = rng.choice(REQUEST_IDS), rng.choice(EPOCHS)
    sent = [_sent(rng, request_id, epoch) for _ in range(rng.choice((1, 1, 2, 4, 8)))]
    return "\n".join(each.line() for each in sent).encode()


def _sent(rng: random.Random, request_id: str, epoch: int) -> Sent:
    role = rng.choice(SENDERS)
    user = role if role == OPERATOR else f"{role}-0"
    places = [
        (inbox(receiver, f"{receiver}-0"), message.__name__)
        for receiver, allowed in MAY_SEND[role].items()
        for message in allowed
        if message is not Drain
    ] * 3
    if role != OPERATOR:
        places += [(fleet(role, user), "Heartbeat")]
        places += [(inbox(peer, f"{peer}-0"), "SnapshotRequest") for peer in ENGINE_ROLES]
        places += [(heartbeat_request("all", "all"), "HeartbeatRequest")]
    if role == "gateway":
        places += [(CANCEL_ALL, "Cancel")]
    address, name = rng.choice(places)
    message = random_message(MESSAGE_TYPES[name], rng)
    said = rng.choice((request_id, request_id, request_id, rng.choice(REQUEST_IDS)))
    envelope = Envelope(said, epoch, rng.choice(DEADLINES), rng.choice(ORIGINS), "")
    whole = msgpack.unpackb(codec.encode(message, envelope), use_list=True)
    whole[1] = NO_VERSION
    payload = msgpack.packb(whole)
    if rng.random() < 0.05:
        payload = mutated_bytes(payload, rng)
    return Sent(user, subject_of(address, name, user), rng.random() < 0.5, payload)


def sent_of(data: bytes) -> list[Sent]:
    """Read the lines that are messages."""
    found = []
    for line in data.decode(errors="replace").split("\n"):
        words = line.split(" ")
        try:
            found.append(Sent(words[0], words[1], words[2] == "1", bytes.fromhex(words[3])))
        except (IndexError, ValueError):
            continue
    return found


class Senders:
    """A connection for each user of a stack's bus, and what was answered to it."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._clients: dict[str, Client] = {}
        self._answers: list[bytes] = []
        self._asked = 0

    async def send(self, data: bytes) -> None:
        """Raise Fault for an answer that says that there is a bug."""
        self._answers.clear()
        sent = sent_of(data)
        for each in sent:
            client = await self._client(each.user)
            if client is None or not all(each.subject.split(".")):
                continue
            self._asked += 1  # a subject may be answered once
            reply = f"{answers(each.user)}.fuzz.{self._asked}" if each.wants_answer else ""
            await client.publish(each.subject, _timely(with_version(each.payload)), reply)
        for client in self._clients.values():
            await client.flush()
        if any(each.wants_answer for each in sent):
            await asyncio.sleep(ANSWER_S)
        for answer in self._answers:
            check_answer(answer)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _client(self, user: str) -> Client | None:
        if user in self._clients:
            return self._clients[user]
        if user not in (OPERATOR, *(f"{role}-0" for role in ROLES)):
            return None
        credentials = self._stack.credentials(user)

        async def on_answer(msg: Msg) -> None:
            if not msg.headers:  # that of a server says that nobody listens
                self._answers.append(msg.data)

        async def on_error(_error: Exception) -> None:
            """A subject that this user may not use is refused, as it should be."""

        client = await nats.connect(
            self._stack.nats, user=credentials.user, password=credentials.password, error_cb=on_error
        )
        await client.subscribe(f"{answers(user)}.fuzz.*", cb=on_answer)
        self._clients[user] = client
        return client


def _timely(payload: bytes) -> bytes:
    """Put the deadline into a message that has one in a moment."""
    try:
        whole = msgpack.unpackb(payload, use_list=True)
    except Exception:  # noqa: BLE001 - what is no message is sent as it is
        return payload
    if isinstance(whole, list) and len(whole) == 8 and whole[4] == SOON_US:
        whole[4] = time.time_ns() // 1000 + AFTER_US
        return bytes(msgpack.packb(whole))
    return payload


def check_answer(answer: bytes) -> None:
    """Raise Fault unless it is a message, and no failure for a bug."""
    try:
        _, message = codec.decode(answer)
    except ProtocolError as error:
        raise Fault(f"answered with what is no message: {error}") from error
    if isinstance(message, Failure):
        if message.code in ("internal", "engine_fault"):
            raise Fault(f"answered with {message.code}: {message.message}")
        if len(message.message.split()) < 3:
            raise Fault(f"answered without a sentence: {message.message!r}")


@contextmanager
def opened() -> Iterator[RunOne]:
    with asyncio.Runner() as runner:
        made: list[Senders] = []

        def sender(stack: Stack) -> RunOne:
            senders = Senders(stack)
            made.append(senders)
            return lambda data: runner.run(senders.send(data))

        with opened_fleet(sender) as run_one:
            try:
                yield run_one
            finally:
                for senders in made:
                    runner.run(senders.close())


TARGET = Target("bus_message", make, opened, tries=20, has_stack=True)
