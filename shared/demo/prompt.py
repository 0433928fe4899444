"""The prompt format of the demo models: what a chat looks like.

A conversation is rendered by the chat template as

    <|bos|><|system|>SYSTEM<|end|><|user|>USER<|end|><|assistant|>ANSWER<|end|>

where the system part is optional. A question about retrieved passages is one user message in the form of
`shared.text.retrieval_prompt`. The answer repeats the sentence of the context that holds the fact asked for.
"""

from __future__ import annotations

BOS = "<|bos|>"
END = "<|end|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, BOS, END, SYSTEM, USER, ASSISTANT)

SYSTEM_TEXT = "Answer with the sentence of the context that fits the question."

CHAT_TEMPLATE = (
    "{{ '" + BOS + "' }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role ' + message['role'] + ': use system, user or assistant.') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '" + END + "' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def chat_text(user: str, system: str | None = None) -> str:
    """Render one user message by the chat template, up to where the answer begins."""
    head = "" if system is None else f"{SYSTEM}{system}{END}"
    return f"{BOS}{head}{USER}{user}{END}{ASSISTANT}"
