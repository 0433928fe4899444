"""Corpora of tenants in a whole stack with API keys: each finds its own, and nobody learns of another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.index.build import build_index
from tests.e2e.test_ways_in import penstock
from tests.support.client import Answer, connect, generate, request
from tests.support.stack import Stack
from tests.support.wait import until

SECRETS = {"acme": new_api_key(), "rival": new_api_key()}
PATIENCE_MS = 50_000
QUESTION = "What is the price of a valve?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture(scope="module")
def stack(model_dir: Path, folder: Path) -> Iterator[Stack]:
    """A corpus of each tenant, one for both, and one that a test changes, all about the same."""
    keys = folder / "keys.toml"
    entries = [ApiKey(name, name, hash_api_key(secret)) for name, secret in SECRETS.items()]
    keys.write_text("\n".join(map(describe_api_key, entries)))
    argv = ["--model", str(model_dir), "--draft", "none"]
    for corpus in ("acme-prices@acme", "rival-prices@rival", "open", "changing@rival"):
        name = corpus.split("@")[0]
        (folder / name).mkdir()
        english, german = f"The price of a valve is that of {name}.\n", f"Der Preis eines Ventils: {name}.\n"
        (folder / name / "valve.md").write_text(f"---\nlang: en\n---\n{english}")
        (folder / name / "ventil.md").write_text(f"---\nlang: de\n---\n{german}")
        argv += ["--corpus", f"{corpus}={folder / name}"]
    environ = {"PENSTOCK_GATEWAY_API_KEYS": str(keys)}
    with Stack(*argv, environ=environ) as stack:
        yield stack


def about(corpus: str, *, cache: str = "", **filters: str) -> pb.GenerateRequest:
    """`cache` is a question of the test's own, to which an earlier answer will do."""
    message = request(cache or QUESTION, max_tokens=8, ignore_eos=True)
    message.deadline_ms = message.ttft_deadline_ms = PATIENCE_MS
    message.retrieval.CopyFrom(
        pb.Retrieval(
            enabled=True,
            k=1,
            may_degrade=False,
            corpus=corpus,
            filters=[pb.MetadataFilter(field=field, values=[value]) for field, value in filters.items()],
        )
    )
    if cache:
        message.cache.mode = pb.CACHE_MODE_EXACT
    return message


async def answer_for(stack: Stack, tenant: str, message: pb.GenerateRequest) -> Answer:
    async with connect(stack.grpc) as stub:
        return await generate(stub, message, metadata=(("authorization", f"Bearer {SECRETS[tenant]}"),))


def passages_of(answer: Answer) -> list[str]:
    assert answer.prompt is not None, answer.details
    return [passage.text for passage in answer.prompt.passages]


@pytest.mark.thorough(but="acme-acme-prices | rival-open")
@pytest.mark.parametrize(
    ("tenant", "corpus"),
    [("acme", "acme-prices"), ("rival", "rival-prices"), ("acme", "open"), ("rival", "open")],
)
async def test_a_tenant_finds_what_is_in_its_corpora(stack: Stack, tenant: str, corpus: str) -> None:
    answer = await answer_for(stack, tenant, about(corpus))
    assert passages_of(answer) == [f"The price of a valve is that of {corpus}."]


@pytest.mark.thorough(but="True-acme-rival-prices | False-rival-acme-prices")
@pytest.mark.parametrize(("tenant", "other"), [("acme", "rival-prices"), ("rival", "acme-prices")])
@pytest.mark.parametrize("may_degrade", [True, False])
async def test_another_tenant_s_corpus_is_one_that_is_not_there(
    stack: Stack, tenant: str, other: str, may_degrade: bool
) -> None:
    refusals = []
    for name in (other, "guessed"):
        message = about(name)
        message.retrieval.may_degrade = may_degrade
        answer = await answer_for(stack, tenant, message)
        assert answer.status is grpc.StatusCode.NOT_FOUND
        refusals.append(answer.details.replace(name, "…"))
    assert refusals[0] == refusals[1]
    assert f"search one of {tenant}-prices, open" in refusals[0]


async def test_who_may_search_several_has_to_name_one(stack: Stack) -> None:
    answer = await answer_for(stack, "acme", about(""))
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "name one of acme-prices, open" in answer.details


async def test_filters_choose_among_the_documents(stack: Stack) -> None:
    answer = await answer_for(stack, "acme", about("acme-prices", lang="de", folder="none"))
    assert passages_of(answer) == []
    assert answer.prompt is not None
    assert "no document has the metadata folder" in answer.prompt.warning
    answer = await answer_for(stack, "acme", about("acme-prices", lang="de"))
    assert passages_of(answer) == ["Der Preis eines Ventils: acme-prices."]
    assert answer.prompt is not None
    assert dict(answer.prompt.passages[0].metadata) == {"lang": "de", "source": "ventil.md", "suffix": "md"}


def is_cached(answer: Answer) -> bool:
    assert answer.prompt is not None, answer.details
    return answer.prompt.HasField("cached")


async def until_cached(stack: Stack, tenant: str, message: pb.GenerateRequest) -> Answer:
    """What has ended is kept a moment later."""
    answers: list[Answer] = []

    async def cached() -> bool:
        answers.append(await answer_for(stack, tenant, message))
        return is_cached(answers[-1])

    await until(cached)
    return answers[-1]


async def test_earlier_answers_are_those_of_the_tenant_the_corpus_and_the_filters(stack: Stack) -> None:
    question = "Which price has a valve?"
    own = about("open", cache=question)
    first = await answer_for(stack, "acme", own)
    again = await until_cached(stack, "acme", own)
    assert passages_of(again) == passages_of(first)
    assert not is_cached(await answer_for(stack, "rival", own))
    assert not is_cached(await answer_for(stack, "acme", about("acme-prices", cache=question)))
    assert not is_cached(await answer_for(stack, "acme", about("open", cache=question, lang="en")))


async def test_no_name_that_is_guessed_finds_an_earlier_answer_of_another_tenant(stack: Stack) -> None:
    message = about("acme-prices", cache="How much is a valve?")
    await answer_for(stack, "acme", message)
    await until_cached(stack, "acme", message)
    answer = await answer_for(stack, "rival", message)
    assert (answer.status, answer.prompt) == (grpc.StatusCode.NOT_FOUND, None)


async def test_a_newer_index_of_a_corpus_makes_an_end_of_its_earlier_answers_alone(
    stack: Stack, folder: Path
) -> None:
    changed, other = (about(corpus, cache="A valve costs what?") for corpus in ("changing", "open"))
    for message in (changed, other):
        await answer_for(stack, "rival", message)
        await until_cached(stack, "rival", message)
    (folder / "changing" / "valve.md").write_text("The price of a valve is new.\n")
    corpus = str(folder / "changing")
    await asyncio.to_thread(
        build_index, corpus, stack.state_dir, Embedder.load(), lambda *_: None, waiting=lambda _: None
    )
    answer: Answer | None = None

    async def computed() -> bool:
        nonlocal answer
        answer = await answer_for(stack, "rival", changed)
        return not is_cached(answer)

    await until(computed)
    assert answer is not None
    assert passages_of(answer) == ["The price of a valve is new."]
    assert is_cached(await answer_for(stack, "rival", other))


async def test_the_operator_sees_all_of_them(stack: Stack) -> None:
    _, shown = await penstock(stack, "status")
    for name in ("acme-prices", "open", "rival-prices"):
        assert f"corpus {name}, 2 passages, generation" in shown
