"""A gateway adds up what tenants use, and tells an operator who asks on the bus."""

from __future__ import annotations

import asyncio

from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import AccountRequest, Mark, Message, RequestAccount, UsageReport, UsageRequest
from tests.integration.gateway_peers import GATEWAY, Fleet, ask, fleet, gateway
from tests.support.client import generate
from tests.support.metric import value


async def asked(peers: Fleet, question: Message) -> Message:
    deadline = Deadline.after(20.0)
    return await peers.bus.ask(
        inbox("gateway", GATEWAY), question, peers.bus.envelope(deadline=deadline), deadline
    )


async def test_what_workers_count_for_a_request_is_its_tenants_use(nats_url: str) -> None:
    before = value(
        "penstock_tenant_compute_seconds_total", tenant="", model="test-model", role="decode", unit="core"
    )
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=4)))
        envelope, _ = await peers.placed()
        marks = (Mark("count:prefill_core_us", 700), Mark("count:kv_kib_s", 3))
        await peers.text(envelope.request_id, 5, "ab", marks=marks)
        last = (
            Mark("count:decode_core_us", 500_000),
            Mark("count:draft_accepted", 1),
            Mark("count:kv_kib_s", 2),
        )
        await peers.text(envelope.request_id, 7, "cd", finish="length", marks=last)
        await call
        account = await asked(peers, AccountRequest(envelope.request_id))
        report = await asked(peers, UsageRequest())
    assert isinstance(account, RequestAccount)
    assert isinstance(report, UsageReport)
    (row,) = report.rows
    assert account.usage == (row,)
    assert (row.tenant, row.model, row.requests, row.finished) == ("", "test-model", 1, 1)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.drafted_tokens) == (5, 3, 4, 1)
    assert (row.prefill_core_us, row.decode_core_us, row.kv_kib_s) == (700, 500_000, 5)
    spent_s = value(
        "penstock_tenant_compute_seconds_total", tenant="", model="test-model", role="decode", unit="core"
    )
    assert spent_s == before + 0.5
