"""Identity: with the credentials of each instance, everything that is not its to say is said, and refused.

Streams are live meanwhile, and are what they would have been (design §16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import get_args

import nats

from shared import messages
from shared.bus import Bus
from shared.bus.permissions import MAY_SEND, OPERATOR
from shared.bus.subjects import CANCEL_ALL, fleet, inbox, kv, subject_of
from shared.errors import Unavailable
from shared.roles import ENGINE_ROLES
from tests.chaos.report import DrillReport
from tests.chaos.traffic import Stream, all_started, differences, run_streams, stream_requests
from tests.chaos.world import Models, drill_stack
from tests.support.client import connect
from tests.support.stack import Instance, Stack

MESSAGES = tuple(message.__name__ for message in get_args(messages.Message))
PAYLOAD = b"\x93not a message"
"""A payload that does no more harm than to be counted where it is let through by mistake."""


@dataclass(frozen=True, slots=True)
class Scale:
    streams: int
    tokens: int


FULL = Scale(12, 4000)
SHORT = Scale(4, 150)


def forbidden(user: str, role: str, instances: list[Instance]) -> Iterator[str]:
    """Every subject of this stack that `user` has no business on, in its own name and in others'."""
    allowed = MAY_SEND[role]
    names = [*(instance.id for instance in instances), OPERATOR]
    for instance, message, sender in product(instances, MESSAGES, names):
        snapshot = message == "SnapshotRequest" and instance.role in ENGINE_ROLES and role != OPERATOR
        may = snapshot or message in {kind.__name__ for kind in allowed.get(instance.role, ())}
        if sender != user or not may:
            yield subject_of(inbox(instance.role, instance.id), message, sender)
    for instance, sender in product(instances, names):
        if (instance.id, sender) != (user, user):
            yield subject_of(fleet(instance.role, instance.id), "Heartbeat", sender)
    for sender in names:
        if role != "gateway" or sender != user:
            yield subject_of(CANCEL_ALL, "Cancel", sender)
    if role not in ("prefill", "decode"):  # who sends KV
        yield kv("decode-0", 1)
    yield "$SYS.REQ.SERVER.PING"


async def attack(stack: Stack, user: str, role: str) -> tuple[int, int]:
    """How much was said, and how much of it the server refused."""
    refused = 0

    async def on_error(error: Exception) -> None:
        nonlocal refused
        refused += "permissions violation for publish" in str(error).lower()

    credentials = stack.credentials(user)
    client = await nats.connect(
        stack.nats, user=credentials.user, password=credentials.password, error_cb=on_error
    )
    try:
        subjects = list(forbidden(user, role, stack.instances()))
        for subject in subjects:
            await client.publish(subject, PAYLOAD)
        await client.flush()
        await client.flush()
    finally:
        await client.close()
    return len(subjects), refused


def new_report() -> DrillReport:
    return DrillReport("identity: what is not theirs to say", ("user", "said", "refused"))


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    requests = stream_requests(scale.streams, scale.tokens)
    async with connect(stack.grpc) as stub:
        undisturbed = await run_streams(stub, requests)
        streams = [Stream(message) for message in requests]
        calls = [asyncio.create_task(stream.follow(stub)) for stream in streams]
        await all_started(streams)
        through = 0
        for user, role in [*((one.id, one.role) for one in stack.instances()), (OPERATOR, OPERATOR)]:
            said, refused = await attack(stack, user, role)
            through += said - refused
            report.add(user, said, refused)
        await asyncio.gather(*calls)
    wrong = differences(streams, undisturbed)
    report.claim("everything forbidden is refused", f"{through} got through", holds=through == 0)
    report.claim("live streams are exact meanwhile", wrong or "all", holds=not wrong)
    stranger = await strangers_welcome(stack)
    report.claim("a stranger does not get in", stranger or "refused", holds=not stranger)


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    with drill_stack(models) as stack:
        await hold_on(stack, scale, report)
    return report


async def strangers_welcome(stack: Stack) -> str:
    try:
        bus = await Bus.connect(stack.nats, name="stranger")
    except Unavailable:
        return ""
    await bus.close()
    return "it is let in"
