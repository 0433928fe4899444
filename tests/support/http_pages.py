"""A valid body for each page that takes one, with every field that it knows."""

from __future__ import annotations

from typing import Any

CALL = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "seed": 3,
    "stop": ["a"],
    "logit_bias": {"7": 1.0},
    "stop_token_ids": [3],
    "ignore_eos": False,
}
PENSTOCK = {
    "deadline_ms": 20_000,
    "ttft_deadline_ms": 20_000,
    "priority": "low",
    "cache_salt": "s",
    "timeline": True,
    "retrieval": {"k": 2, "corpus": "c", "order": "best_first", "filters": {"a": ["b"]}},
    "cache": {"mode": "exact", "max_age_ms": 5},
}
CHAT = {
    "model": "test-model",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "n"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "call-1"},
        {"role": "user", "content": "and?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": PARAMETERS}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "parallel_tool_calls": False,
    "n": 1,
    "max_tokens": 4,
    "logprobs": True,
    "top_logprobs": 1,
    "stream": False,
    "stream_options": {},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}},
    "penstock": PENSTOCK,
    **SAMPLING,
}
TEXT = {
    "model": "test-model",
    "prompt": ["a", "b"],
    "echo": True,
    "best_of": 1,
    "suffix": "",
    "n": 1,
    "max_tokens": 4,
    "logprobs": 1,
    "penstock": {"regex": "a+"},
    **SAMPLING,
}
RESPONSE = {
    "model": "test-model",
    "instructions": "i",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ],
    "tools": [{"type": "function", "name": "look_up", "description": "d", "parameters": PARAMETERS}],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}},
    "metadata": {"a": "b"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "max_output_tokens": 4,
    "truncation": "disabled",
    "store": False,
    "penstock": {"grammar": "start: A"},
    **SAMPLING,
}
PAGES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": RESPONSE,
    "/v1/embeddings": {"model": "m", "input": ["a"], "encoding_format": "base64", "dimensions": 3},
    "/tokenize": {"model": "test-model", "prompt": "a", "messages": CHAT["messages"], "tools": CHAT["tools"]},
    "/detokenize": {"model": "test-model", "tokens": [1, 2]},
    "/v2/rerank": {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
    "/v1/vector_stores/docs/search": {
        "query": ["q"],
        "max_num_results": 2,
        "filters": {"type": "and", "filters": [{"type": "eq", "key": "a", "value": "b"}]},
        "ranking_options": {"score_threshold": 0.1},
        "rewrite_query": False,
    },
}
