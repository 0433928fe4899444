"""A prefill worker lends a prefix that it has cached; the test is the worker that asks, and receives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.prefill.prefix_loans import MAX_LOANS
from shared.bus import Delivery
from shared.engine import BLOCK_TOKENS
from shared.errors import PenstockError
from shared.fairness.share import TenantShare
from shared.messages import (
    Accepted,
    Cancel,
    Envelope,
    Failure,
    KvAbort,
    KvAbortAck,
    KvDone,
    KvGrant,
    KvReceived,
    LendPrefix,
    Message,
    pack_hashes,
)
from tests.support.block_hashes import hashes_of
from tests.support.noted_bus import REPLY
from tests.support.wait import until
from tests.unit.services.prefill.test_actor import PROMPT, Worker

NAMES = hashes_of(list(PROMPT))
ASKER = "penstock.prefill.prefill-1"
ASKED = LendPrefix(pack_hashes(NAMES), "prefill-1", TenantShare("", 1))


class Lender(Worker):
    async def warm(self) -> None:
        """It has computed the prompt, and nothing is left of that but its prefix cache."""
        await self.place(names=NAMES)
        await self.until_first_token()
        await self.send(Cancel("cancelled"))
        await self.steps_until_free()
        assert len(PROMPT) // BLOCK_TOKENS == len(NAMES)

    async def steps_until_free(self) -> None:
        async def free() -> bool:
            await self.step()
            return not list(self.held())

        await until(free)

    async def asked(
        self, request: LendPrefix = ASKED, request_id: str = "q.prefix", sender: str = ""
    ) -> Message:
        """The answer to a question for a prefix."""
        delivery = replace(self.sent.asked(request, request_id, 1), sender=sender)
        await self.handle(delivery)

        async def answered() -> list[Message]:
            await self.step()
            return self.sent.to(REPLY)

        await until(answered)
        return self.sent.to(REPLY)[-1]

    async def lends(self) -> None:
        """The asker has granted the transfer, of blocks that it has already: nothing has to be sent."""
        assert await self.asked() == Accepted()
        layout = self._driver.engine.layout.fingerprint()
        count = len(NAMES)
        self.hear(KvGrant(1, layout, (count,), count, "nats", "penstock.kv.prefill-1.1", 0))
        await until(lambda: KvDone in map(type, self.sent.to(ASKER)))

    def hear(self, message: Message) -> None:
        self.receive(Delivery(Envelope("q.prefix", 1), message, "prefill-1"))


@pytest.fixture
async def worker(llm_dir: Path) -> AsyncIterator[Lender]:
    worker = Lender(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


def code(answer: Message) -> str:
    assert isinstance(answer, Failure)
    return answer.code


async def test_what_is_lent_is_held_until_the_other_worker_has_it(worker: Lender) -> None:
    await worker.warm()
    await worker.lends()
    assert [(one.request_id, one.kind, one.phase) for one in worker.held()] == [
        ("q.prefix", "transfer", "lent"),
        ("q.prefix", "kv_blocks", ""),
    ]
    worker.hear(KvReceived(1))
    await worker.steps_until_free()


async def test_what_the_other_worker_gives_up_is_given_back(worker: Lender) -> None:
    await worker.warm()
    await worker.lends()
    worker.hear(KvAbort(1, "computed instead"))
    await until(lambda: KvAbortAck(1) in worker.sent.to(ASKER))
    await worker.steps_until_free()


async def test_a_worker_that_drains_waits_for_what_it_has_lent_and_lends_no_more(worker: Lender) -> None:
    await worker.warm()
    await worker.lends()
    worker._service.stopping.set()
    with pytest.raises(PenstockError, match="draining"):
        worker._lend(worker.sent.asked(ASKED, "other.prefix", 1), ASKED)
    assert worker.holds_work()
    worker.hear(KvReceived(1))
    await worker.steps_until_free()
    assert not worker.holds_work()


async def test_a_prefix_that_is_not_here_is_refused_and_nothing_is_held(worker: Lender) -> None:
    assert code(await worker.asked()) == "overloaded"
    await worker.steps_until_free()


async def test_another_s_prefix_cannot_be_asked_for(worker: Lender) -> None:
    with pytest.raises(PenstockError, match="asks for itself"):
        worker._lend(replace(worker.sent.asked(ASKED, "q.prefix", 1), sender="prefill-2"), ASKED)


async def test_no_more_prefixes_are_lent_at_a_time_than_the_limit_says(worker: Lender) -> None:
    await worker.warm()
    for number in range(MAX_LOANS):
        assert await worker.asked(request_id=f"{number}.prefix") == Accepted()
    with pytest.raises(PenstockError, match=f"{MAX_LOANS} prefixes are being sent"):
        worker._lend(worker.sent.asked(ASKED, "one-more.prefix", 1), ASKED)


async def test_a_question_without_a_deadline_is_refused(worker: Lender) -> None:
    with pytest.raises(PenstockError, match="needs a request_id, an epoch from 1 and a deadline"):
        worker._lend(Delivery(Envelope("q.prefix", 1), ASKED), ASKED)
