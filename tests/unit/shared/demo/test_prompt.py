"""The demo prompt format: one definition, rendered alike by the constants and by the chat template."""

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.demo.prompt import CHAT_TEMPLATE, SYSTEM_TEXT, chat_text
from shared.text.retrieval_prompt import retrieval_prompt


def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    def raise_exception(sentence: str) -> None:
        raise jinja2.TemplateError(sentence)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def test_retrieval_prompt_numbers_the_passages_and_puts_the_question_last() -> None:
    assert retrieval_prompt(["First fact.", "Second fact."], "Which one?") == (
        "Context:\n[1] First fact.\n[2] Second fact.\n\nQuestion: Which one?"
    )


def test_line_breaks_inside_passages_and_questions_become_spaces() -> None:
    assert retrieval_prompt(["one\n\ntwo\n"], "why\nso?") == "Context:\n[1] one two\n\nQuestion: why so?"


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
