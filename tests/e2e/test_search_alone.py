"""Searches without an answer, of a whole stack with two retrievers, corpora of several tenants and keys."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import openai
import pytest

from penstock.client import AsyncClient, NotFound
from protos.penstock.v1 import inference_pb2 as pb
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.support.client import connect
from tests.support.stack import Stack

pytestmark = pytest.mark.thorough
CALL_TIMEOUT_S = 60
SECRETS = {"acme": new_api_key(), "rival": new_api_key()}
GATES = """\
# Gates
## Of iron
An iron gate is opened by hand, and closed again at night.
## Of wood
A wooden gate swings by itself when the wind blows.
"""
TORE = """\
# Tore
Ein eisernes Tor wird von Hand geöffnet.
"""
PRICES = "# Prices\nAn iron gate costs 400 crowns, a wooden one costs 120.\n"


@pytest.fixture(scope="module")
def stack(model_dir: Path, draft_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("corpora")
    for name, text in {"docs/gates.md": GATES, "docs/de/tore.md": TORE, "prices/list.md": PRICES}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    keys = [ApiKey(tenant, tenant, hash_api_key(secret)) for tenant, secret in SECRETS.items()]
    (folder / "keys.toml").write_text("\n".join(map(describe_api_key, keys)))
    corpora = ["--corpus", f"docs={folder / 'docs'}", "--corpus", f"prices@acme={folder / 'prices'}"]
    environ = {"PENSTOCK_GATEWAY_API_KEYS": str(folder / "keys.toml")}
    models = ["--model", str(model_dir), "--draft", str(draft_dir), "--speculator", "0"]
    with Stack(*models, "--retriever", "2", *corpora, environ=environ) as stack:
        yield stack


async def test_a_tenant_searches_its_corpora_and_nobody_elses(stack: Stack) -> None:
    async with AsyncClient(stack.grpc, api_key=SECRETS["acme"]) as acme:
        own = await acme.retrieve("What does a gate cost?", corpus="prices", k=1)
        public = await acme.retrieve("Which gate swings by itself?", corpus="docs", k=1)
    async with AsyncClient(stack.grpc, api_key=SECRETS["rival"]) as rival:
        only = await rival.retrieve("Which gate swings by itself?", k=1)
        told = []
        for corpus in ("prices", "nothing"):
            with pytest.raises(NotFound) as refused:
                await rival.retrieve("What does a gate cost?", corpus=corpus)
            told.append(refused.value.message.replace(repr(corpus), "it"))
    assert "400 crowns" in own.passages[0].text
    assert (own.corpus, public.corpus, only.corpus) == ("prices", "docs", "docs")
    assert public.passages[0].source == "gates.md § Gates > Of wood"
    assert only.passages[0].text == public.passages[0].text
    assert told[0] == told[1]


async def test_openais_client_searches_a_corpus_by_the_places_of_its_documents(stack: Stack) -> None:
    address = f"http://{stack.http}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key=SECRETS["rival"]) as client:
        german = await client.vector_stores.search(
            "docs", query="iron gate", filters={"type": "eq", "key": "folder", "value": "de"}
        )
        both = await client.vector_stores.search(
            "docs",
            query=["iron gate", "wooden gate"],
            max_num_results=2,
            filters={
                "type": "and",
                "filters": [
                    {"type": "in", "key": "suffix", "value": ["md", "txt"]},
                    {"type": "eq", "key": "source", "value": "gates.md"},
                ],
            },
        )
        with pytest.raises(openai.NotFoundError, match="there is no corpus 'prices'"):
            await client.vector_stores.search("prices", query="iron gate")
    assert {found.filename for found in german.data} == {"de/tore.md"}
    assert german.data[0].attributes is not None
    assert german.data[0].attributes["folder"] == "de"
    assert [found.filename for found in both.data] == ["gates.md"] * 2


async def test_a_retriever_that_is_killed_in_the_middle_costs_no_search(stack: Stack) -> None:
    """It stands still, so that it has a search when it is killed."""
    victim = stack.instances("retriever")[0]
    async with AsyncClient(stack.grpc, api_key=SECRETS["rival"]) as client:
        os.kill(victim.pid, signal.SIGSTOP)
        searches = [
            asyncio.ensure_future(client.retrieve("iron gate", k=1, deadline_s=CALL_TIMEOUT_S))
            for _ in range(4)
        ]
        await asyncio.wait(searches, timeout=CALL_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        os.kill(victim.pid, signal.SIGKILL)
        found = await asyncio.gather(*searches)
    assert {answer.passages[0].source for answer in found} == {"gates.md § Gates > Of iron"}
    await stack.until_idle(timeout_s=CALL_TIMEOUT_S)


async def test_nothing_is_held_for_a_client_that_has_gone(stack: Stack) -> None:
    metadata = (("authorization", f"Bearer {SECRETS['rival']}"),)
    async with connect(stack.grpc) as stub:
        searches = [
            asyncio.ensure_future(
                stub.Retrieve(pb.RetrieveRequest(query=f"gate number {number}"), metadata=metadata)
            )
            for number in range(16)
        ]
        await asyncio.wait(searches, timeout=CALL_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for search in searches:
            search.cancel()
        ended = await asyncio.gather(*searches, return_exceptions=True)
    await stack.until_idle(timeout_s=CALL_TIMEOUT_S)
    assert all(isinstance(one, pb.RetrieveResponse | asyncio.CancelledError | grpc.RpcError) for one in ended)
