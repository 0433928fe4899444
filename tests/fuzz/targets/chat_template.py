"""Chat templates: one of a model is changed, then renders conversations with tools and without."""

from __future__ import annotations

import random

from shared.messages import ChatTurn, Tool, ToolCall
from shared.text.chat_rendering import render_chat
from shared.text.chat_template import ChatTemplate
from tests.fuzz.mutation import mutated_text
from tests.fuzz.target import Target, in_memory

CHATML = """{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}{% endfor %}
<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>{% endif %}
{%- set ns = namespace(found=false, index=0) %}
{%- for message in messages[::-1] %}{% if loop.first and message.role == 'user' %}
{% set ns.found = true %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
{{ raise_exception('Unknown role') }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + (message.content | trim | default('')) + '<|im_end|>' }}
{%- for call in message.tool_calls or [] %}
{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{%- endfor %}
{%- macro said(text, times=2) %}{{ text * times }}{% endmacro %}
{{- said(strftime_now('%d %b'), 1) }}{% generation %}{{ bos_token }}{% endgeneration %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content.split('\\n')[-1] }}{% endfor %}"
)
TEMPLATES = (CHATML, LLAMA)
WORDS = (
    "{{",
    "}}",
    "{%",
    "%}",
    "{% for x in range(99999) %}",
    "{% endfor %}",
    "{% for x in range(999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
    "{% set x = 'a' * 2000000000 %}",
    "{{ 9 ** 9 ** 7 }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ messages.__class__ }}",
    "{{ ('a' * 99999).center(2000000000) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% include 'x' %}",
    "{{ loop(messages) }}",
    "messages",
    "| tojson",
    "| list",
    "| join",
    "|",
    "range",
    "cycler",
    "lipsum(100, true, 9, 99)",
    "joiner",
    "{{ messages | map(attribute='content') | join }}",
    "{{ ''.join(messages) }}",
    "{{ strftime_now('%' * 9) }}",
    "{{ tojson(1) }}",
    "{{ messages | batch(0) | list }}",
    "{{ messages[0] | xmlattr }}",
)
TURNS = (ChatTurn("system", "be\nbrief"), ChatTurn("user", "hello"))
TOOLS = (Tool("look_up", "d", '{"type": "object"}'),)
CALLED = (
    ChatTurn("user", "hello", "me"),
    ChatTurn("assistant", "", "", (ToolCall("c1", "look_up", '{"a": [1]}'),)),
    ChatTurn("tool", "4", "", (), "c1"),
)


def make(rng: random.Random) -> bytes:
    return mutated_text(rng.choice(TEMPLATES), rng, WORDS).encode("utf-8", "surrogatepass")


def run(data: bytes) -> None:
    template = ChatTemplate(data.decode("utf-8", "replace"), {"bos_token": "<s>"})
    render_chat(template, TURNS)
    render_chat(template, CALLED, TOOLS)


TARGET = Target("chat_template", make, in_memory(run), tries=150)
