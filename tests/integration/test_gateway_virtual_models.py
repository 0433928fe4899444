"""A virtual name gets the model that its rules say, and the next one where that is down, full, slow or
lost."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.keys.keys_in_force import NOBODY
from services.gateway.request.resume_token import ResumeTokens
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Overloaded, StreamLost
from shared.files.difficulty_head import DifficultyHead, write_difficulty_head
from shared.messages import (
    NO_ADAPTER,
    Embed,
    Embedded,
    HandedOver,
    Message,
    Reserve,
    TakeOver,
    pack_ids,
)
from shared.sampling.parameters import NO_LOGPROBS, TokenLogprob
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Fleet, Running, ask, default_answer, fleet, gateway
from tests.support.client import Answer, generate
from tests.support.http import http_client
from tests.support.metric import value
from tests.support.sampling import sampling
from tests.support.wait import until

SMALL: dict[str, Any] = {"model": "small", "tokenizer_digest": "t"}
LARGE: dict[str, Any] = {"model": "large", "tokenizer_digest": "t"}
RULES = """
[auto]
fallback = ["large", "small"]
max_ttft_ms = 2000

[[auto.rules]]
name = "long"
min_chars = 100
to = "large"

[[auto.rules]]
to = "small"

[[canary.rules]]
to = { small = 1, large = 1 }
"""


@asynccontextmanager
async def two_models(
    nats_url: str, tmp_path: Path, *, rules: str = RULES, **options: object
) -> AsyncIterator[tuple[Fleet, Running]]:
    """Workers number 0 have the small model, those number 1 the large one."""
    file = tmp_path / "models.toml"
    file.write_text(rules)
    async with (
        fleet(nats_url, "retriever") as peers,
        gateway(nats_url, virtual_models=str(file), **options) as running,
    ):
        for number, served in enumerate((SMALL, LARGE)):
            for role in ("tokenizer", "prefill", "decode", "detokenizer"):
                await peers.add(role, number, **served)
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 2)
        yield peers, running


def asked(model: str = "auto", text: str = "hello", **fields: Any) -> pb.GenerateRequest:
    message = ask(text)
    message.MergeFrom(pb.GenerateRequest(model=model, **fields))
    return message


async def answered(
    peers: Fleet, running: Running, message: pb.GenerateRequest, *, by: int, epoch: int = 1
) -> Answer:
    """The answer to it, which the workers number `by` give under this epoch."""
    for peer in peers.peers.values():
        peer.got.clear()  # of earlier calls
    call = asyncio.create_task(generate(running.stub, message))
    envelope, routed = await peers.placed(epoch, prefill=f"prefill-{by}")
    assert (routed.decode, routed.detokenizer) == (f"decode-{by}", f"detokenizer-{by}")
    await peers.text(envelope.request_id, len(message.text), "a", epoch=epoch, finish="stop")
    answer = await call
    assert (answer.outcome, answer.ends) == ("finished", 1)
    return answer


def choice_of(answer: Answer) -> pb.ModelChoice:
    assert answer.prompt is not None
    return answer.prompt.model_choice


async def test_the_rules_say_which_model_and_the_answer_says_why(nats_url: str, tmp_path: Path) -> None:
    async with two_models(nats_url, tmp_path) as (peers, running):
        short = await answered(peers, running, asked(), by=0)
        long = await answered(peers, running, asked(text="x" * 100), by=1)
        own = await answered(peers, running, asked("large", "own"), by=1)
    assert short.prompt is not None
    assert (short.prompt.model, choice_of(short).why) == ("small", "auto is small by rule 2")
    assert (choice_of(long).rule, choice_of(long).asked) == ("long", "auto")
    assert own.prompt is not None
    assert not own.prompt.HasField("model_choice")


async def test_the_choice_is_in_the_timeline_the_account_and_the_metrics(
    nats_url: str, tmp_path: Path
) -> None:
    labels = {"asked": "auto", "model": "small", "by": "rule"}
    before = value("penstock_model_choices_total", **labels)
    async with two_models(nats_url, tmp_path) as (peers, running):
        answer = await answered(peers, running, asked(), by=0)
        assert answer.prompt is not None
        ended = running.context.ended_requests
        record = await until(lambda: ended.find(answer.prompt.request_id))  # type: ignore[union-attr]
        account = ended.account(record)  # type: ignore[arg-type]
    assert answer.end is not None
    assert "route.model" in [phase.name for phase in answer.end.timeline.phases]
    assert (account.model, account.model_choice) == ("small", "auto is small by rule 2")
    assert value("penstock_model_choices_total", **labels) == before + 1


async def test_a_model_that_is_down_is_passed_over_if_the_request_allows_it(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path, admit_wait_s=0.2) as (peers, running):
        peers["decode-0"].say(state="draining")
        await running.knows("decode", 1)
        answer = await answered(peers, running, asked(), by=1)
        alone = await generate(running.stub, asked(fallback=pb.Fallback(allowed=False)))
        named = await generate(running.stub, asked("small"))
        listed = asked("small", "listed", fallback=pb.Fallback(allowed=True, models=["large"]))
        with_list = await answered(peers, running, listed, by=1)
    assert choice_of(answer).why == "auto is large by rule 2; small was down"
    assert (alone.outcome, named.outcome) == ("failed", "failed")
    assert [(each.model, each.why) for each in choice_of(with_list).skipped] == [("small", "down")]
    assert choice_of(with_list).asked == "small"


async def test_a_model_whose_first_token_would_be_late_is_passed_over(nats_url: str, tmp_path: Path) -> None:
    async with two_models(nats_url, tmp_path) as (peers, running):
        peers["prefill-0"].say(queued_tokens=50_000, tokens_per_s=10_000.0)
        view = running.fleet.get
        await until(lambda: (seen := view("prefill", "prefill-0")) and seen.heartbeat.worker.queued_tokens)
        limited = await answered(peers, running, asked(), by=1)  # 5 s, where auto allows 2
        urgent = asked("small", ttft_deadline_ms=3000, fallback=pb.Fallback(allowed=True, models=["large"]))
        late = await answered(peers, running, urgent, by=1)
        peers["prefill-1"].say(queued_tokens=90_000, tokens_per_s=10_000.0)
        await until(lambda: (seen := view("prefill", "prefill-1")) and seen.heartbeat.worker.queued_tokens)
        both = await answered(peers, running, asked(text="both"), by=0)  # slow is better than nothing
    assert choice_of(limited).why == "auto is large by rule 2; small was too slow"
    assert [each.why for each in choice_of(late).skipped] == ["slow"]
    assert (choice_of(both).rule, list(choice_of(both).skipped)) == ("2", [])


async def test_a_prompt_too_long_for_the_chosen_model_goes_to_one_that_takes_it(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path) as (peers, running):
        for role in ("prefill", "decode"):
            peers[f"{role}-0"].say(context_tokens=4)
            peers[f"{role}-1"].say(context_tokens=400)
        seen = running.fleet.instances
        await until(lambda: all(v.heartbeat.context_tokens for r in ("prefill", "decode") for v in seen(r)))
        call = asyncio.create_task(generate(running.stub, asked()))
        envelope, _ = await peers.placed(2, prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "a", epoch=2, finish="stop")
        answer = await call
    assert (answer.outcome, choice_of(answer).why) == (
        "finished",
        "auto is large by rule 2; small was too short for the prompt",
    )


async def test_a_model_that_sheds_is_passed_over_and_one_prompt_is_told(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path) as (peers, running):

        def full(message: Message) -> PeerAnswer:
            if isinstance(message, Reserve):
                return Overloaded("no room", retry_after_ms=60_000)
            return default_answer(message)

        peers["decode-0"].answers = full
        call = asyncio.create_task(generate(running.stub, asked(ttft_deadline_ms=20_000)))
        await until(lambda: peers["prefill-1"].got)
        envelope, _ = peers["prefill-1"].got[0]
        await peers.placed(envelope.epoch, prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "ab", epoch=envelope.epoch, finish="stop")
        answer = await call  # `Answer.add` holds that there is one prompt, before any text
        await until(lambda: not running.registry.audit().held)
    assert (answer.outcome, answer.text) == ("finished", "ab")
    assert choice_of(answer).why == "auto is large by rule 2; small was shed"


async def test_what_workers_of_a_model_say_that_was_passed_over_is_not_in_the_answer(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path) as (peers, running):
        call = asyncio.create_task(generate(running.stub, asked()))
        envelope, _ = await peers.placed()
        peers["decode-0"].say(state="draining")
        await running.knows("decode", 1)
        await peers.lost(envelope.request_id, 1, "unavailable")
        await until(lambda: peers["prefill-1"].got)
        later, _ = peers["prefill-1"].got[0]
        await peers.placed(later.epoch, prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "old", epoch=1)
        await peers.text(envelope.request_id, 5, "new", epoch=later.epoch, finish="stop")
        answer = await call
        await until(lambda: not running.registry.audit().held)
    assert (answer.outcome, answer.text) == ("finished", "new")
    assert choice_of(answer).why == "auto is large by rule 2; small was lost before its first token"


async def test_after_the_first_token_nobody_falls_back(nats_url: str, tmp_path: Path) -> None:
    async with two_models(nats_url, tmp_path, admit_wait_s=0.2) as (peers, running):
        call = asyncio.create_task(generate(running.stub, asked()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        session = running.registry.live_sessions(1)[0]
        await until(lambda: session.state.log.ids)
        peers["decode-0"].say(state="draining")
        await running.knows("decode", 1)
        await peers.lost(envelope.request_id, 1, "unavailable")
        answer = await call
        assert peers["prefill-1"].got == []
    assert (answer.outcome, answer.text) == ("failed", "a")


async def test_a_key_keeps_to_one_of_the_models_that_share(nats_url: str, tmp_path: Path) -> None:
    async with two_models(nats_url, tmp_path) as (_, running):
        taken: Counter[tuple[str, str]] = Counter()
        for number in range(24):
            call = asyncio.create_task(
                generate(running.stub, asked("canary", sticky_key=f"session-{number % 8}"))
            )
            await until(lambda: running.registry.live_count)
            (session,) = running.registry.live_sessions(1)
            taken[session.request.sticky_key, session.request.model] += 1
            call.cancel()
            await until(lambda: not running.registry.live_count)
    assert set(taken.values()) == {3}
    assert {model for _, model in taken} == {"small", "large"}


async def test_virtual_names_are_listed_with_what_may_answer_for_them(nats_url: str, tmp_path: Path) -> None:
    async with (
        two_models(nats_url, tmp_path, default_model="auto") as (_, running),
        http_client(running.http.address) as client,
    ):
        models = (await running.stub.ListModels(pb.ListModelsRequest())).models
        async with client.get("/v1/models/auto") as response:
            described = await response.json()
        with pytest.raises(grpc.aio.AioRpcError, match="stands for several models"):
            await running.stub.Tokenize(pb.TokenizeRequest(model="auto", text="hello"))
    (auto,) = [model for model in models if model.name == "auto"]
    assert (list(auto.targets), auto.is_default) == (["large", "small"], True)
    assert models[0].name == "auto"
    assert described["penstock"]["targets"] == ["large", "small"]


async def test_over_http_the_model_and_the_choice_are_in_the_body(nats_url: str, tmp_path: Path) -> None:
    body = {"model": "auto", "prompt": "hello", "user": "me"}
    async with (
        two_models(nats_url, tmp_path) as (peers, running),
        http_client(running.http.address) as client,
    ):
        call = asyncio.ensure_future(client.post("/v1/completions", json=body))
        envelope, _ = await peers.placed()
        assert running.registry.live_sessions(1)[0].request.sticky_key == "me"
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await (await call).json()
        refused = await client.post(
            "/v1/completions", json=body | {"model": "small", "penstock": {"fallback": True}}
        )
        sentence = (await refused.json())["error"]["message"]
    assert answer["model"] == "small"
    assert answer["penstock"]["requests"][0]["model_choice"] == {
        "asked": "auto",
        "model": "small",
        "rule": "2",
        "why": "auto is small by rule 2",
        "skipped": [],
    }
    assert "send fallback.models" in sentence


HARD = """
[auto]
classifier = "hard.safetensors"

[[auto.rules]]
name = "free"
tools = true
to = "large"

[[auto.rules]]
name = "hard"
hard_above = 0.6
to = "large"

[[auto.rules]]
to = "small"
"""


@asynccontextmanager
async def with_classifier(
    nats_url: str,
    tmp_path: Path,
    embed: Callable[[Message], PeerAnswer] | None,
    *,
    wait_ms: float = 10_000.0,
) -> AsyncIterator[tuple[Fleet, Running]]:
    """Two models and a classifier by the first of two dimensions; `embed` None: there is no retriever."""
    write_difficulty_head(
        tmp_path / "hard.safetensors", DifficultyHead("minilm", array("f", [4.0, 0.0]), 0.0)
    )
    async with two_models(nats_url, tmp_path, rules=HARD, classifier_wait_ms=wait_ms) as (peers, running):
        if embed is not None:
            retriever = await peers.add("retriever", 1, model="minilm")
            retriever.answers = embed
            await running.knows("retriever", 2)
        yield peers, running


def embedded(*vector: float) -> Callable[[Message], PeerAnswer]:
    return lambda _: Embedded((array("f", vector).tobytes(),), (3,), (False,))


@pytest.mark.parametrize(("first", "by"), [(1.0, 1), (-1.0, 0)])
async def test_a_hard_question_goes_to_the_model_that_its_rule_says(
    nats_url: str, tmp_path: Path, first: float, by: int
) -> None:
    async with with_classifier(nats_url, tmp_path, embedded(first, 0.0)) as (peers, running):
        answer = await answered(peers, running, asked(), by=by)
        (asks,) = peers["retriever-1"].of(Embed)
    assert asks[1] == Embed(("hello",))
    assert choice_of(answer).hardness == pytest.approx(1 / (1 + math.exp(-4 * first)))


@pytest.mark.parametrize(
    ("embed", "why"),
    [
        (None, "no retriever with minilm tells how hard it is"),
        (lambda _: Overloaded("no room"), "retriever-1 does not tell how hard it is (overloaded)"),
        (embedded(1.0), "retriever-1 embeds in 1 dimensions, and the classifier has 2"),
    ],
)
async def test_without_an_estimate_no_rule_that_asks_holds_and_the_answer_says_why(
    nats_url: str, tmp_path: Path, embed: Callable[[Message], PeerAnswer] | None, why: str
) -> None:
    async with with_classifier(nats_url, tmp_path, embed) as (peers, running):
        answer = await answered(peers, running, asked(), by=0)
    assert choice_of(answer).why == f"auto is small by rule 3; {why}"
    assert not choice_of(answer).HasField("hardness")


async def test_an_estimate_is_not_waited_for_longer_than_is_said(nats_url: str, tmp_path: Path) -> None:
    async with with_classifier(nats_url, tmp_path, lambda _: None, wait_ms=20.0) as (peers, running):
        answer = await answered(peers, running, asked(), by=0)
    assert choice_of(answer).why.endswith("; retriever-1 did not tell within 20 ms how hard it is")


async def test_a_request_whose_rule_does_not_ask_waits_for_no_estimate(nats_url: str, tmp_path: Path) -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello")], tools=[pb.Tool(name="t")])
    async with with_classifier(nats_url, tmp_path, embedded(-1.0, 0.0)) as (peers, running):
        call = asyncio.create_task(generate(running.stub, pb.GenerateRequest(model="auto", chat=chat)))
        await peers.placed(prefill="prefill-1")
        call.cancel()
        assert peers["retriever-1"].of(Embed) == []


CASCADE = """
[auto]
[[auto.rules]]
to = "small"
cascade = { to = "large", min_logprob = -0.5 }
"""


async def small_says_ab(peers: Fleet, logprob: float) -> None:
    """The small model answers with "ab", each token with this log-probability."""
    envelope, prefill = await peers.placed()
    assert prefill.sampling.logprobs == 0
    for position, char in enumerate("ab"):
        row = (TokenLogprob(ord(char), logprob, ()),)
        finish = "stop" if char == "b" else ""
        await peers.text(envelope.request_id, 5 + position, char, finish=finish, logprobs=row)


async def test_a_small_model_that_is_sure_answers_itself_and_no_log_probability_is_told(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path, rules=CASCADE) as (peers, running):
        call = running.stub.Generate(asked())
        telling = asyncio.create_task(small_says_ab(peers, -0.4))
        prompt, text, end = [event async for event in call]
        await telling
        assert peers["prefill-1"].got == []
        await until(lambda: not running.registry.audit().held)
    assert prompt.prompt.model_choice.why == "auto is small by rule 1"
    assert (text.text.text, list(text.text.logprobs)) == ("ab", [])
    assert end.end.outcome == pb.OUTCOME_FINISHED


async def test_where_the_small_model_was_unsure_the_large_one_answers_anew(
    nats_url: str, tmp_path: Path
) -> None:
    async with two_models(nats_url, tmp_path, rules=CASCADE) as (peers, running):
        call = asyncio.create_task(generate(running.stub, asked()))
        await small_says_ab(peers, -0.6)
        await until(lambda: peers["prefill-1"].got)
        envelope, _ = peers["prefill-1"].got[0]
        _, prefill = await peers.placed(envelope.epoch, prefill="prefill-1")
        await peers.text(envelope.request_id, 5, "large", epoch=envelope.epoch, finish="stop")
        answer = await call
        await until(lambda: not running.registry.audit().held)
    assert prefill.sampling.logprobs == NO_LOGPROBS
    assert (answer.outcome, answer.text, answer.ends) == ("finished", "large", 1)
    assert choice_of(answer).why == "auto is large by rule 1; small was unsure of its answer"
    assert answer.end is not None
    assert answer.end.usage.completion_tokens == 5


async def test_an_unsure_answer_is_better_than_none(nats_url: str, tmp_path: Path) -> None:
    async with two_models(nats_url, tmp_path, rules=CASCADE) as (peers, running):
        peers["decode-1"].say(state="draining")
        await running.knows("decode", 1)
        call = asyncio.create_task(generate(running.stub, asked()))
        await small_says_ab(peers, -0.6)
        answer = await call
    assert (answer.outcome, answer.text) == ("finished", "ab")


@pytest.mark.thorough(but="longer than what is held")
@pytest.mark.parametrize(
    "fields",
    [
        {"fallback": pb.Fallback(allowed=False)},
        {"resumable": True},
        {"sampling": pb.Sampling(max_tokens=5000)},
    ],
    ids=["no other model", "resumable", "longer than what is held"],
)
async def test_an_answer_that_cannot_be_held_streams_as_any_other(
    nats_url: str, tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with two_models(nats_url, tmp_path, rules=CASCADE) as (peers, running):
        call = asyncio.create_task(generate(running.stub, asked(**fields)))
        envelope, prefill = await peers.placed()
        assert prefill.sampling.logprobs == NO_LOGPROBS
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).text == "a"


async def test_a_stream_of_a_virtual_name_goes_on_with_the_model_that_it_began_with(
    nats_url: str, tmp_path: Path
) -> None:
    message = asked(resumable=True, sampling=pb.Sampling(max_tokens=8))
    kept = HandedOver(
        pack_ids([*map(ord, "helloab")]), 5, sampling(max_tokens=8, seed=77), NO_ADAPTER, finished=False
    )
    tokens = ResumeTokens.of("", NOBODY, message, "")
    token = tokens.make("gateway-0.abcdef", SYSTEM_CLOCK.unix_us() + 60_000_000)
    async with two_models(nats_url, tmp_path) as (peers, running):
        nobody = StreamLost("not here", hop="decode")
        peers["decode-0"].answers = lambda m: nobody if isinstance(m, TakeOver) else default_answer(m)
        peers["decode-1"].answers = lambda m: kept if isinstance(m, TakeOver) else default_answer(m)
        call = running.stub.Resume(pb.ResumeRequest(token=token, received_tokens=2, request=message))
        envelope, _ = await peers.placed(prefill="prefill-1")
        await peers.text(envelope.request_id, 7, "c", finish="stop")
        prompt, text, end = [event async for event in call]
    assert (prompt.prompt.model, text.text.text) == ("large", "c")
    assert end.end.outcome == pb.OUTCOME_FINISHED
