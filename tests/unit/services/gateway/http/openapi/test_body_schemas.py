"""The document has the fields that bodies are read by, no more and no fewer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from services.gateway.http.completions.chat import read_chat, read_chat_prompt
from services.gateway.http.completions.text_completion import read_text_completion
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.openapi.answer_schemas import answer_schemas
from services.gateway.http.openapi.body_schemas import body_schemas
from services.gateway.http.rerank_pages import _check_cut, _read_texts
from services.gateway.http.responses.responses import NOT_KEPT, read_response
from services.gateway.http.vector_store_pages import _read_search
from tests.support.http_pages import PAGES


def read_rerank(body: JsonFields) -> None:
    """What a rerank checks before it asks for anything."""
    _check_cut(body)
    _read_texts(body)


SCHEMAS = {**body_schemas(), **answer_schemas()}
REFUSED = {"functions", "function_call", "messages[].function_call", *NOT_KEPT}
"""The fields that are read to say what to send in their place."""
FREE = re.compile(r"(metadata|logit_bias|filters|tool_choice|parameters)\.")
"""The names below these are the client's own, or those of one of several shapes."""
TEXTS = {**PAGES["/v1/completions"], "prompt": "a", "stream": True, "stream_options": {"include_usage": True}}
CHAT = {**PAGES["/v1/chat/completions"], "stream": True, "stream_options": {"include_usage": True}}
RESPONSE = {name: value for name, value in PAGES["/v1/responses"].items() if name != "penstock"}
SHAPES: dict[str, Any] = {
    "ChatBody": (CHAT, lambda body: read_chat(body, {}, 5)),
    "CompletionBody": (TEXTS, lambda body: read_text_completion(body, {}, 5)),
    "ResponseBody": (RESPONSE, lambda body: read_response(body, {}, 5)),
    "TokenizeBody": (PAGES["/tokenize"], read_chat_prompt),
    "RerankBody": (PAGES["/v2/rerank"], read_rerank),
}
BODIES = {
    "/v1/chat/completions": "ChatBody",
    "/v1/completions": "CompletionBody",
    "/v1/responses": "ResponseBody",
    "/v1/embeddings": "EmbeddingBody",
    "/tokenize": "TokenizeBody",
    "/detokenize": "DetokenizeBody",
    "/v2/rerank": "RerankBody",
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}})


def described(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The paths of all fields of a schema; those of arrays have [] behind them."""
    if "$ref" in schema:
        yield from described(SCHEMAS[schema["$ref"].rpartition("/")[2]], path)
    for each in schema.get("anyOf", ()):
        yield from described(each, path)
    if isinstance(schema.get("items"), dict):
        yield from described(schema["items"], f"{path}[]")
    for name, field in schema.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner
        yield from described(field, inner)


def read_fields(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], read: Any) -> set[str]:
    """The paths of all fields that reading this body asks for."""
    asked: set[str] = set()
    value = JsonFields.value

    def noted(self: JsonFields, name: str) -> Any:
        asked.add(re.sub(r"\[\d+\]", "[]", self.param(name)))
        return value(self, name)

    monkeypatch.setattr(JsonFields, "value", noted)
    read(JsonFields(body))
    return asked


@pytest.mark.parametrize("name", SHAPES)
def test_every_field_that_is_read_is_described(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    body, read = SHAPES[name]
    asked = {path for path in read_fields(monkeypatch, body, read) if not FREE.search(path)}
    assert asked - set(described(SCHEMAS[name])) - REFUSED == set()


@pytest.mark.parametrize("name", ["ChatBody", "CompletionBody", "ResponseBody"])
def test_every_field_that_is_described_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    body, read = SHAPES[name]
    top = {path for path in described(SCHEMAS[name]) if "." not in path and "[" not in path}
    without = {**body, "penstock": None}  # a field of the body counts where that has none
    assert top - read_fields(monkeypatch, without, read) == set()


def test_a_search_reads_what_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {**PAGES["/v1/vector_stores/docs/search"], "ranking_options": {"ranker": "auto"}}
    asked = read_fields(monkeypatch, body, lambda fields: _read_search(fields, "docs"))
    assert {path for path in asked if not FREE.search(path)} - set(described(SCHEMAS["SearchBody"])) == set()


@pytest.mark.parametrize("page", BODIES)
def test_the_bodies_of_our_clients_are_what_is_described(page: str) -> None:
    validator(BODIES[page]).validate(PAGES[page])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ChatBody", {"messages": []}),
        ("ChatBody", {"messages": [{"role": "user", "content": "a"}], "temperature": 1e-9}),
        ("ChatBody", {"messages": [{"role": "user", "content": "a"}], "penstock": {"deadlin_ms": 5}}),
        ("ChatBody", {"messages": [{"role": "nobody", "content": "a"}]}),
        ("CompletionBody", {"prompt": "a", "n": 129}),
        ("RerankBody", {"query": "q", "documents": ["a"], "texts": ["a"]}),
        ("SearchBody", {"query": " "}),
    ],
)
def test_what_is_refused_is_not_described(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator(name).validate(wrong)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_names_others_that_exist(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    named = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(SCHEMAS[name]))
    assert set(named) <= set(SCHEMAS)
