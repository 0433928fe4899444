"""Tools and roles in a prompt: as transformers renders them, or in our words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool, ToolCall
from shared.text.chat_rendering import render_chat
from shared.text.chat_template import ChatTemplate
from shared.text.tokenizer import TextTokenizer
from shared.text.tool_formats import HERMES, LLAMA, MISTRAL, ToolFormat
from shared.text.tool_prompt import PLAIN_FORMAT, plain_turns, tool_prompt, written_calls
from tests.unit.shared.text.test_tokenizer import TEMPLATES, write_model

WEATHER = Tool("get_weather", 'of a "city"', '{"type": "object", "properties": {"city": {"type": "string"}}}')
CLOCK = Tool("clock", "", "")
CALLS = (ToolCall("abcdefgh1", "get_weather", '{"city": "Zürich"}'), ToolCall("abcdefgh2", "clock", "{}"))
TALK = (
    ChatTurn("user", "Weather?"),
    ChatTurn("assistant", "", tool_calls=CALLS),
    ChatTurn("tool", "rain", tool_call_id="abcdefgh1"),
    ChatTurn("tool", "noon", tool_call_id="abcdefgh2"),
)
QWEN = r"""
{%- if tools %}{{- '<|im_start|>system\n# Tools\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\nReturn <tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>' }}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
{{- tool_call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>tool ' + message.name + ' ' + message.tool_call_id + '\n' }}
{{- message.content + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
LLAMA_31 = r"""{%- if tools is not none %}
{{- 'Respond in the format {"name": function name, "parameters": dictionary of its arguments}. ' }}
{%- endif %}{{ messages[0].content }}"""
MISTRAL_V3 = r"""{%- for message in messages %}{%- if message.tool_calls is defined %}{{- '[TOOL_CALLS] [' }}
{%- else %}{{- message.content }}{%- endif %}{%- endfor %}{%- if tools %}{{- tools | tojson }}{%- endif %}"""
CHATML = TEMPLATES["chatml"]


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (QWEN, HERMES),
        (LLAMA_31, LLAMA),
        (MISTRAL_V3, MISTRAL),
        (CHATML, None),
        (QWEN.replace("if tools", "if xml_tools").replace("in tools", "in xml_tools"), None),
        (QWEN.replace(r"\"name\"", "<function="), None),
        (MISTRAL_V3.replace("[TOOL_CALLS] [", "[TOOL_CALLS]name[ARGS]"), None),
        ("{{ tools }} <tool_call>name(1)</tool_call>", None),
    ],
)
def test_the_format_of_calls_is_known_by_the_template(template: str, wanted: ToolFormat | None) -> None:
    assert ChatTemplate(template, {}).tool_format is wanted


def test_a_template_that_knows_tools_renders_them_as_transformers_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path, chat_template=QWEN)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}
                for call, arguments in zip(CALLS, ({"city": "Zürich"}, {}), strict=True)
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "abcdefgh1", "name": "get_weather"},
        {"role": "tool", "content": "noon", "tool_call_id": "abcdefgh2", "name": "clock"},
    ]
    none = {"type": "object", "properties": {}}
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": parameters}
        for tool, parameters in ((WEATHER, json.loads(WEATHER.parameters)), (CLOCK, none))
    ]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages,
        tools=[{"type": "function", "function": tool} for tool in tools],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert TextTokenizer.load(folder).encode_chat(TALK, tools=(WEATHER, CLOCK)) == expected


def test_a_call_of_an_earlier_answer_is_rendered_as_the_model_wrote_it() -> None:
    rendered = render_chat(ChatTemplate(QWEN, {}), TALK, (WEATHER,))
    assert written_calls(CALLS, HERMES) in rendered
    assert "<|im_start|>system\n# Tools" in rendered


def test_a_template_without_tools_is_told_of_them_in_our_words() -> None:
    template = ChatTemplate(CHATML, {})
    rendered = render_chat(template, (ChatTurn("system", "Be brief."), *TALK), (WEATHER, CLOCK))
    turns = rendered.removesuffix("<|im_start|>assistant\n").split("<|im_end|>\n")
    assert turns == [
        f"<|im_start|>system\nBe brief.\n\n{tool_prompt((WEATHER, CLOCK))}",
        "<|im_start|>user\nWeather?",
        f"<|im_start|>assistant\n{written_calls(CALLS, PLAIN_FORMAT)}",
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
        "",
    ]


def test_our_prompt_names_every_tool_with_its_schema() -> None:
    described = [
        json.loads(line) for line in tool_prompt((WEATHER, CLOCK)).splitlines() if '"parameters"' in line
    ]
    assert [each["name"] for each in described] == ["get_weather", "clock"]
    assert described[0]["parameters"] == json.loads(WEATHER.parameters)


def test_text_beside_calls_stands_in_front_of_them() -> None:
    (turn,) = plain_turns((ChatTurn("assistant", "I look.", tool_calls=CALLS[:1]),), ())
    assert turn.content == f"I look.\n{written_calls(CALLS[:1], PLAIN_FORMAT)}"


def test_a_model_that_takes_no_system_hears_of_tools_from_the_user() -> None:
    template = ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML, {}
    )
    rendered = render_chat(template, TALK[:1], (CLOCK,))
    assert rendered.startswith(f"<|im_start|>user\n{tool_prompt((CLOCK,))}\n\nWeather?<|im_end|>")
    with pytest.raises(InvalidRequest, match="no system"):
        render_chat(template, (ChatTurn("system", "a"), *TALK[:1]), (CLOCK,))


@pytest.mark.parametrize(
    ("role", "template", "said_by"),
    [
        ("developer", CHATML, "system"),
        ("developer", CHATML + "{# knows 'developer' #}", "developer"),
        ("function", QWEN, "tool"),
        ("tool", CHATML, "user"),
        ("function", CHATML, "user"),
    ],
)
def test_roles_are_said_by_what_the_template_has_for_them(role: str, template: str, said_by: str) -> None:
    turn = ChatTurn(role, "x", name="f", tool_call_id="abcdefgh1" if role in ("tool", "function") else "")
    rendered = render_chat(ChatTemplate(template, {}), (ChatTurn("user", "u"), turn))
    assert f"<|im_start|>{said_by}" in rendered.removeprefix("<|im_start|>user\nu<|im_end|>\n")


def test_the_name_of_who_speaks_is_told_to_templates_that_ask() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}", {})
    assert render_chat(template, (ChatTurn("user", "hi", name="Ann"),)) == "Ann: hi"


def test_without_a_template_a_chat_with_tools_is_plain_text(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_model(tmp_path))
    ids = tokenizer.encode_chat(TALK[:1], tools=(CLOCK,), template_optional=True)
    assert ids == tokenizer.encode_text(f"{tool_prompt((CLOCK,))}\n\nWeather?")
    assert tokenizer.tool_format is PLAIN_FORMAT


def test_markers_that_are_special_tokens_are_found_and_can_be_shown(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_model(tmp_path))
    ids = tokenizer.special_ids_of(("<s>", "<tool_call>"))
    assert set(ids) == {"<s>"}
    stream = [*tokenizer.encode_text("a", add_special_tokens=False), ids["<s>"]]
    assert tokenizer.decoder().push(stream) == "a"
    assert tokenizer.decoder(shown_ids=frozenset(ids.values())).push(stream) == "a<s>"
