"""Every route of a running stack answers as its own document says, and refuses what is not in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from tests.support.http import Reply, call, http_client
from tests.support.stack import Stack

SCHEMATHESIS_S = 240
"""Both runs take about ten seconds together; a machine that is busy gets more."""
WAYS = (
    ("--phases", "coverage", "--mode", "negative"),
    ("--phases", "fuzzing", "--max-examples", "1", "--max-time", "6"),
)
REFUSALS = (400, 403, 404, 405, 408, 413, 415)
"""The statuses of what is not as it should be."""
CHAT = {"messages": [{"role": "user", "content": "How many tokens does a block hold?"}], "max_tokens": 8}
ASKED: dict[str, tuple[str, Any]] = {
    "POST /v1/chat/completions": (
        "",
        {**CHAT, "logprobs": True, "top_logprobs": 2, "penstock": {"retrieval": True, "timeline": True}},
    ),
    "POST /v1/completions": ("", {"prompt": ["A", "B"], "max_tokens": 4, "logprobs": 1, "echo": True}),
    "POST /v1/responses": ("", {"input": "Hello", "max_output_tokens": 8, "instructions": "Be brief."}),
    "POST /v1/embeddings": ("", {"input": ["a", "b"]}),
    "POST /v1/rerank": ("", {"query": "q", "documents": ["a", "b"], "return_documents": True}),
    "POST /v2/rerank": ("", {"query": "q", "documents": ["a", {"text": "b"}]}),
    "POST /rerank": ("", {"query": "q", "texts": ["a", "b"], "return_text": True}),
    "POST /v1/vector_stores/{corpus}/search": ("/v1/vector_stores/default/search", {"query": "block"}),
    "POST /tokenize": ("", {"prompt": "a"}),
    "POST /v1/tokenize": ("", {"messages": CHAT["messages"]}),
    "POST /detokenize": ("", {"tokens": [1, 2]}),
    "POST /v1/detokenize": ("", {"tokens": [1]}),
    "GET /v1/models": ("", None),
    "GET /v1/models/{model}": ("/v1/models/penstock-demo", None),
    "POST /v1/requests/{request_id}/cancel": ("/v1/requests/none/cancel", None),
    "GET /health": ("", None),
    "GET /healthz": ("", None),
    "GET /ready": ("", None),
    "GET /metrics": ("", None),
    "GET /version": ("", None),
    "GET /openapi.json": ("", None),
    "GET /docs": ("", None),
    "GET /": ("", None),
    "GET /console/access": ("", None),
    "GET /console/pipeline": ("", None),
    "GET /console/requests": ("", None),
    "GET /console/files/{file}": ("/console/files/penstock.svg", None),
}
"""A call for each route: its path where that has names in it, and its body."""
OTHERWISE = {"POST /v1/requests/{request_id}/cancel": 404}
"""The status of a call that is not answered with a 200: there is no such request."""


@pytest.fixture
def stack(documented_stack: Stack) -> Stack:
    return documented_stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with http_client(stack.http) as client:
        yield client


async def document_of(client: aiohttp.ClientSession) -> dict[str, Any]:
    body: dict[str, Any] = (await call(client, "/openapi.json")).body
    return body


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def check_described(document: dict[str, Any], operation: dict[str, Any], reply: Reply) -> None:
    """An answer has a status, a type and a shape that the operation has."""
    content = operation["responses"][str(reply.status)]["content"]
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in content or "*/*" in content, (kind, content)
    schema = content.get(kind, {}).get("schema")
    if schema and kind == "application/json":
        Draft202012Validator({**schema, "components": document["components"]}).validate(reply.body)


async def test_every_route_answers_as_it_is_described(client: aiohttp.ClientSession) -> None:
    document = await document_of(client)
    described = operations(document)
    assert set(described) == set(ASKED)
    for name, (path, body) in ASKED.items():
        method, _, template = name.partition(" ")
        reply = await call(client, path or template, body, method)
        assert reply.status == OTHERWISE.get(name, 200), (name, reply.body)
        check_described(document, described[name], reply)


async def test_a_stream_is_what_is_described(client: aiohttp.ClientSession) -> None:
    described = operations(await document_of(client))
    for name, operation in described.items():
        if "text/event-stream" not in operation["responses"]["200"]["content"]:
            continue
        path, (_, body) = name.removeprefix("POST "), ASKED[name]
        async with client.post(path, json={**body, "stream": True}) as response:
            assert response.content_type == "text/event-stream"
            assert (await response.read()).startswith((b"data: {", b"event: "))


def wrong_values(schema: dict[str, Any]) -> list[Any]:
    """Values next to those of a field: one beyond each end, and one of no type that it has."""
    values: list[Any] = [[[]]]
    for each in (schema, *schema.get("anyOf", ())):
        values += [each["maximum"] + 1] if "maximum" in each else []
        values += [each["minimum"] - 1] if "minimum" in each else []
        values += ["none of them"] if "enum" in each or "const" in each else []
    return values


async def test_what_is_not_described_is_refused_by_the_name_of_its_field(
    client: aiohttp.ClientSession,
) -> None:
    document = await document_of(client)
    schemas, tried = document["components"]["schemas"], 0
    for name, operation in operations(document).items():
        if "requestBody" not in operation:
            continue
        path, body = ASKED[name]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        valid = Draft202012Validator({**schema, "components": document["components"]})
        for field, one in schemas[schema["$ref"].rpartition("/")[2]]["properties"].items():
            for value in wrong_values(one):
                sent = {**body, field: value}
                if valid.is_valid(sent):
                    continue
                reply = await call(client, path or name.partition(" ")[2], sent)
                assert 400 <= reply.status < 500, (name, field, value, reply.body)
                named = ("documents", "texts") if field in ("documents", "texts") else field
                assert str(reply.error["param"]).startswith(named), (name, field, value, reply.error)
                check_described(document, operation, reply)
                tried += 1
    assert tried > 200


async def test_numbers_at_the_ends_of_what_is_described_are_taken(client: aiohttp.ClientSession) -> None:
    document = await document_of(client)
    schemas, tried = document["components"]["schemas"], 0
    for name, operation in operations(document).items():
        if "requestBody" not in operation:
            continue
        path, body = ASKED[name]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for field, one in schemas[schema]["properties"].items():
            for value in [one[end] for end in ("minimum", "maximum") if end in one]:
                sent = {**body, field: value, "penstock": {"deadline_ms": 5}}
                reply = await call(client, path or name.partition(" ")[2], sent)
                refused = reply.status == 400 and str(reply.error["param"]) == field
                fits_no_other = field in ("n", "best_of", "dimensions", "top_logprobs", "min_tokens")
                assert not refused or fits_no_other, (name, field, value, reply.body)
                tried += 1
    assert tried > 40


@pytest.mark.parametrize("path", ["/nothing", "/console/files/..%2Frouter.py", "/console/files/none.js"])
async def test_a_path_that_is_none_is_refused_in_the_shape_of_an_error(
    client: aiohttp.ClientSession, path: str
) -> None:
    document = await document_of(client)
    reply = await call(client, path)
    assert reply.status == 404
    schema = document["components"]["schemas"]["Error"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(reply.body)


def schemathesis() -> str:
    beside = Path(sys.executable).with_name("schemathesis")
    found = str(beside) if beside.exists() else shutil.which("schemathesis")
    if found is None:
        pytest.skip("schemathesis is not installed: it comes with penstock[dev]")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_schemathesis_finds_no_answer_that_is_not_described(
    stack: Stack, tmp_path: Path, way: tuple[str, ...]
) -> None:
    """Leave out what a schema cannot say of fields together, and deadlines that are too short."""
    (tmp_path / "schemathesis.toml").write_text(
        f"[checks]\nnegative_data_rejection.expected-statuses = {list(REFUSALS)}\n"
    )
    left_out = ("--exclude-checks", "positive_data_acceptance,not_a_server_error", "--no-color")
    command = (schemathesis(), "run", f"http://{stack.http}/openapi.json", "--seed", "1", *way, *left_out)
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SCHEMATHESIS_S, check=False
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
