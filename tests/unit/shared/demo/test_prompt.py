"""The demo prompt format: one definition, rendered alike by the constants and by the chat template."""

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.demo.prompt import CHAT_TEMPLATE, SYSTEM_TEXT, chat_text


def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    def raise_exception(sentence: str) -> None:
        raise jinja2.TemplateError(sentence)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def test_chat_template_renders_what_the_model_was_trained_on() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert render(messages) == chat_text("Hello") == "<|bos|><|user|>Hello<|end|><|assistant|>"


def test_chat_template_renders_the_system_part_before_the_user() -> None:
    messages = [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": "Hello"}]
    assert render(messages) == chat_text("Hello", SYSTEM_TEXT)


def test_chat_template_closes_an_answer_with_end() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    rendered = render(messages, add_generation_prompt=False)
    assert rendered == "<|bos|><|user|>Hi<|end|><|assistant|>Yes.<|end|>"


def test_chat_template_refuses_an_unknown_role() -> None:
    with pytest.raises(jinja2.TemplateError, match="Unknown role tool"):
        render([{"role": "tool", "content": "x"}])
