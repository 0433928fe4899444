"""A change that breaks requests is rolled back by its guard, at every gateway, and stays in the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InvalidRequest, NotFound
from shared.flags.flag_file import read_flag_file
from shared.messages import (
    AccountRequest,
    ChangeFlag,
    FlagChanged,
    FlagLogReport,
    FlagLogRequest,
    FlagTraffic,
    FlagTrafficRequest,
    Message,
    RequestAccount,
)
from tests.simulation.fleet import Fleet, fleet_of
from tests.support.client import Answer
from tests.support.models import make_tiny_checkpoint
from tests.support.wait import until

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0"]
GATEWAYS = ["gateway-0", "gateway-1"]
PROMPT = [7 * at % 200 + 5 for at in range(24)]
ROLLED_BACK_WITHIN_S = 10.0
GOOD = ChangeFlag("ada", "a trial", setting="local_prefill_tokens", value="0")
BAD = ChangeFlag(
    "ada", "a typing error", setting="default_model", value="nobody", share=0.5, guard="errors<1%"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


async def asked(fleet: Fleet, gateway: str, question: Message) -> Message:
    bus, deadline = fleet.services[GATEWAYS[1]].bus, Deadline.after(5.0)
    return await bus.ask(inbox("gateway", gateway), question, bus.envelope(deadline=deadline), deadline)


async def change(fleet: Fleet, gateway: str, what: ChangeFlag) -> FlagChanged:
    answer = await asked(fleet, gateway, what)
    assert isinstance(answer, FlagChanged)
    return answer


async def log_of(fleet: Fleet, gateway: str) -> FlagLogReport:
    answer = await asked(fleet, gateway, FlagLogRequest())
    assert isinstance(answer, FlagLogReport)
    return answer


async def versions_at(fleet: Fleet, gateway: str) -> list[str]:
    return [each.version for each in (await log_of(fleet, gateway)).changes]


def call(fleet: Fleet, gateway: str, session: str) -> asyncio.Task[Answer]:
    sampling = pb.Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT), sampling=sampling, sticky_key=session)
    return fleet.client().generate(gateway, message, name=f"call-{session}")


async def drill(fleet: Fleet) -> tuple[list[str], float]:
    """Return how calls after the rollback ended, and how long it took from the first failure."""
    await fleet.server.start()
    for name in [*WORKERS, *GATEWAYS]:
        fleet.start(name)
    await fleet.are_ready([*WORKERS, *GATEWAYS])
    clock = fleet.world.loop.time

    first = await change(fleet, "gateway-0", GOOD)
    await until(lambda: heard_by(fleet, "gateway-1", first.version))
    answer = await call(fleet, "gateway-1", "before")
    assert answer.prompt is not None
    account = await account_of(fleet, answer.prompt.request_id)
    assert account.flags == (first.version,)
    assert [each.why for each in account.attempts] == [""]
    assert any(worker.startswith("prefill") for worker in account.attempts[0].workers)

    with pytest.raises(InvalidRequest, match="cannot be changed at run time"):
        await change(fleet, "gateway-0", ChangeFlag("ada", "no", setting="grpc_port", value="1"))
    with pytest.raises(InvalidRequest, match="an author and a reason"):
        await change(fleet, "gateway-0", ChangeFlag("ada", "", setting="rerank", value="false"))
    with pytest.raises(NotFound, match="no change '99'"):
        await change(fleet, "gateway-0", ChangeFlag("ada", "no", rolls_back="99"))

    bad = await change(fleet, "gateway-1", BAD)
    began_s, number = 0.0, 0
    while not await rolled_back(fleet, bad.version):
        number += 1
        answer = await call(fleet, "gateway-1", f"session {number}")
        began_s = began_s or (clock() if answer.outcome != "finished" else 0.0)
        assert number < 200
        await asyncio.sleep(0.1)
    took_s = clock() - began_s
    told = await asked(fleet, "gateway-1", FlagTrafficRequest(0))
    assert isinstance(told, FlagTraffic)
    assert {row.flags for row in told.rows} == {(first.version,)}  # the others were not taken

    after = [await call(fleet, gateway, f"session {at}") for at in range(1, 4) for gateway in GATEWAYS]

    before = fleet.services["gateway-0"]
    fleet.crash("gateway-0")
    fleet.start("gateway-0")
    await until(lambda: is_another_life(fleet, before))
    assert await versions_at(fleet, "gateway-0") == await versions_at(fleet, "gateway-1")
    return [each.outcome for each in after], took_s


async def account_of(fleet: Fleet, request_id: str) -> RequestAccount:
    accounts = []

    async def is_there() -> bool:
        answer = await asked(fleet, "gateway-1", AccountRequest(request_id))
        accounts.append(answer)
        return isinstance(answer, RequestAccount)

    await until(is_there)
    account = accounts[-1]
    assert isinstance(account, RequestAccount)
    return account


def is_another_life(fleet: Fleet, before: object) -> bool:
    now = fleet.services.get("gateway-0")
    return now is not None and now is not before and now.state == "ready"


async def heard_by(fleet: Fleet, gateway: str, version: str) -> bool:
    return version in await versions_at(fleet, gateway)


async def rolled_back(fleet: Fleet, version: str) -> bool:
    """Whether every gateway has heard that it is."""
    logs = [await log_of(fleet, gateway) for gateway in GATEWAYS]
    return all(any(each.rolls_back == version for each in log.changes) for log in logs)


def test_a_change_that_breaks_requests_is_rolled_back_everywhere_and_kept(
    model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "flags.jsonl"
    with fleet_of(11, model, {"gateway": {"flags": str(file)}}) as fleet:
        outcomes, took_s = fleet.world.run(drill(fleet), limit_s=300.0)
    assert set(outcomes) == {"finished"}
    assert took_s < ROLLED_BACK_WITHIN_S
    kept = read_flag_file(file).history.changes
    assert [(each.version, each.author) for each in kept] == [
        ("1@gateway-0", "ada"),
        ("2@gateway-1", "ada"),
        ("3@gateway-1", "guard"),
    ]
    assert "errors<1% burns: " in kept[-1].reason
