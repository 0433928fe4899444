"""Vectors of texts, ids of texts and texts of ids over HTTP."""

from __future__ import annotations

import base64
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from services.gateway.asks.text_asks import MAX_DETOKENIZE_IDS
from shared.messages import MAX_EMBED_TEXT_BYTES, Tokenize
from tests.integration.gateway_peers import Fleet, fleet, gateway
from tests.integration.test_gateway_text_asks import scripted
from tests.support.http import call, http_client

EMBEDDINGS = "/v1/embeddings"


@asynccontextmanager
async def edge(nats_url: str) -> AsyncIterator[tuple[Fleet, aiohttp.ClientSession]]:
    """A vector is the length of its text and a half; the text of ids is their characters."""
    async with (
        fleet(nats_url, "tokenizer", "retriever") as peers,
        gateway(nats_url) as running,
        http_client(running.http.address) as client,
    ):
        await scripted(peers, running)
        yield peers, client


async def test_texts_become_vectors_with_exact_usage(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        reply = await call(client, EMBEDDINGS, {"input": ["a", "bcd"]})
        single = await call(client, EMBEDDINGS, {"input": "ab"})
    assert [row["embedding"] for row in reply.body["data"]] == [[1.0, 0.5], [3.0, 0.5]]
    assert [row["index"] for row in reply.body["data"]] == [0, 1]
    assert reply.body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert [row["embedding"] for row in single.body["data"]] == [[2.0, 0.5]]


async def test_texts_that_were_cut_are_told_by_their_places(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        cut = await call(client, EMBEDDINGS, {"input": ["a", "abcdef", "b", "abcdefg"]})
        whole = await call(client, EMBEDDINGS, {"input": ["a", "abcde"]})
    assert cut.body["penstock"] == {"truncated": [1, 3]}
    assert "penstock" not in whole.body


async def test_vectors_come_in_base64_when_they_are_wanted_so(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        reply = await call(client, EMBEDDINGS, {"input": "ab", "encoding_format": "base64", "dimensions": 2})
    assert array("f", base64.b64decode(reply.body["data"][0]["embedding"])).tolist() == [2.0, 0.5]


async def test_a_text_and_a_chat_become_their_ids(nats_url: str) -> None:
    chat = [{"role": "user", "content": "ab"}]
    async with edge(nats_url) as (peers, client):
        text = await call(client, "/tokenize", {"prompt": "ab", "add_special_tokens": False})
        turns = await call(client, "/v1/tokenize", {"messages": chat})
        asked = [message for _, message in peers["tokenizer-0"].of(Tokenize)]
    assert (text.body["tokens"], text.body["count"], turns.body["tokens"]) == ([97, 98], 2, [97, 98])
    assert [one.add_special_tokens for one in asked if isinstance(one, Tokenize)] == [False, True]


async def test_ids_become_their_text(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        reply = await call(client, "/detokenize", {"tokens": [97, 98]})
    assert reply.body == {"prompt": "ab"}


async def test_as_many_ids_as_are_taken_become_their_text(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        reply = await call(client, "/detokenize", {"tokens": [97] * MAX_DETOKENIZE_IDS})
    assert reply.body == {"prompt": "a" * MAX_DETOKENIZE_IDS}


WRONG: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no input": (EMBEDDINGS, {}, 400, "input"),
    "ids": (EMBEDDINGS, {"input": [1, 2]}, 400, "input[0]"),
    "blank": (EMBEDDINGS, {"input": ["a", " "]}, 400, "input[1]"),
    "long": (EMBEDDINGS, {"input": ["x" * (MAX_EMBED_TEXT_BYTES + 1)]}, 413, "input[0]"),
    "format": (EMBEDDINGS, {"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
    "dimensions": (EMBEDDINGS, {"input": "a", "dimensions": 3}, 400, "dimensions"),
    "no dimensions": (EMBEDDINGS, {"input": "a", "dimensions": 0}, 400, "dimensions"),
    "deadline": (EMBEDDINGS, {"input": "a", "penstock": {"deadline_ms": 0}}, 400, "penstock.deadline_ms"),
    "model": (EMBEDDINGS, {"input": "a", "model": "other"}, 404, "model"),
    "no prompt": ("/tokenize", {}, 400, "prompt"),
    "role": ("/tokenize", {"messages": [{"role": "x", "content": "a"}]}, 400, "messages[0].role"),
    "special": ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, 400, "add_special_tokens"),
    "no tokens": ("/detokenize", {}, 400, "tokens"),
    "empty tokens": ("/detokenize", {"tokens": []}, 400, "tokens"),
    "many tokens": ("/detokenize", {"tokens": [1] * (MAX_DETOKENIZE_IDS + 1)}, 400, "tokens"),
    "tokens": ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
}


@pytest.mark.thorough(but="blank | long | many tokens | no prompt")
@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_field_is_named(nats_url: str, name: str) -> None:
    path, body, status, param = WRONG[name]
    async with edge(nats_url) as (_, client):
        reply = await call(client, path, body)
    assert (reply.status, reply.error["param"]) == (status, param)


async def test_without_a_retriever_it_is_a_503(nats_url: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        reply = await call(client, EMBEDDINGS, {"input": "a"})
    assert (reply.status, reply.error["code"]) == (503, "unavailable")
