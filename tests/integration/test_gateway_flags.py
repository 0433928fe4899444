"""Changes of settings as workers see them, and `penstock flags` as an operator runs it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.flags.flag_match import is_in_share
from shared.messages import ChangeFlag, Message, Prefill, Reserve, Retrieve, Retrieved, ScoredPassage
from tests.integration.gateway_peers import GATEWAY, Fleet, Running, ask, default_answer, fleet, gateway
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.test_cli_fleet import penstock
from tests.support.client import Answer, generate

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever", "speculator")
FOUND = tuple(ScoredPassage("doc.md", f"Passage {n}.", 0.5) for n in range(16))


def retriever(message: Message) -> PeerAnswer:
    return (
        Retrieved(FOUND[: message.k], "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)
    )


def question(*, k: int = 0) -> pb.GenerateRequest:
    message = ask("what flows?")
    message.retrieval.enabled = True
    if k:
        message.retrieval.k = k
    return message


async def answered(
    peers: Fleet, running: Running, message: pb.GenerateRequest
) -> tuple[Answer, Reserve, list[Retrieve]]:
    """The answer to the next request, and what a decode worker and the retriever were asked."""
    peers["retriever-0"].answers = retriever
    for role in ROLES:
        await running.knows(role, 1)
    for peer in peers.peers.values():
        peer.got.clear()
    call = asyncio.create_task(generate(running.stub, message))
    envelope, prefill = await peers.placed()
    assert isinstance(prefill, Prefill)
    await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
    answer = await call
    ((_, reserve),) = peers["decode-0"].of(Reserve)
    assert isinstance(reserve, Reserve)
    return answer, reserve, [m for _, m in peers["retriever-0"].of(Retrieve) if isinstance(m, Retrieve)]


async def test_a_change_reaches_the_workers_and_what_a_client_says_wins(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        _, reserve, asked = await answered(peers, running, question())
        assert (reserve.speculator, [(each.k, each.rerank) for each in asked]) == (
            "speculator-0",
            [(3, True)],
        )
        for setting, value in (("retrieval_passages", "7"), ("rerank", "false"), ("use_speculator", "false")):
            await running.registry.flags.change(ChangeFlag("ada", "a test", setting=setting, value=value))
        _, reserve, asked = await answered(peers, running, question())
        assert (reserve.speculator, [(each.k, each.rerank) for each in asked]) == ("", [(7, False)])
        _, _, asked = await answered(peers, running, question(k=2))
        assert [each.k for each in asked] == [2]
        trial = ChangeFlag("ada", "a test", setting="retrieval_passages", value="9", share=0.5)
        made = await running.registry.flags.change(trial)
        change = next(
            each for each in running.registry.flags.report().changes if each.version == made.version
        )
        jobs = {is_in_share(change, f"\0job {number}"): f"job {number}" for number in range(20)}
        for has_it, passages in ((True, 9), (False, 7)):
            message = question()
            message.agent.session, message.agent.parent_session = "a helper", jobs[has_it]
            _, _, asked = await answered(peers, running, message)
            assert [each.k for each in asked] == [passages]
        await running.registry.flags.change(
            ChangeFlag("ada", "a test", setting="least_degradation", value="retrieval")
        )
        answer, _, asked = await answered(peers, running, question())
        assert answer.prompt is not None
        assert (answer.prompt.degraded, asked) == ("retrieval", [])


async def flags(nats_url: str, *words: str) -> tuple[int, str, str]:
    return await penstock("flags", *words, "--nats-url", nats_url)


async def test_an_operator_makes_a_change_sees_it_and_takes_it_back(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "flags.jsonl"
    setting = ("set", "use_speculator=false", "--share", "5%", "--reason", "a trial")
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, flags=str(file)) as running:
        beats = HeartbeatPublisher(peers.bus, "gateway", GATEWAY, running.registry.status)
        beats.start()
        await answered(peers, running, ask("hello"))
        try:
            unasked = await flags(nats_url, *setting)
            made = await flags(nats_url, *setting, "--yes")
            ended = await flags(nats_url, "rollback", "1", "--reason", "enough", "--author", "ada")
        finally:
            await beats.stop()
    assert (unasked[0], "pass --yes" in unasked[2]) == (1, True)
    assert "(open edge)" in unasked[1]
    assert made[0] == 0, made
    assert "use_speculator=false in place of true, for 5% of all" in made[1]
    assert f"1@{GATEWAY} is in force at {GATEWAY}" in made[1]
    assert ended[0] == 0, ended
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line.get("rolls_back", "") for line in lines] == ["", f"1@{GATEWAY}"]
