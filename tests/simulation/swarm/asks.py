"""What clients of a simulated fleet ask for: requests of every kind that ends at the engines, ready made.

Seeds choose among these few, so that what they answer undisturbed is computed once for all seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from tests.simulation.corpora import SHARED as HANDBOOK
from tests.simulation.swarm.keys import OWNER

VOCABULARY = 300
"""Ids up to this are tokens of the model, whichever one was made."""
BLOCK_TOKENS = 16
OPEN = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
OPEN |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
GRPC_ALONE = {"allowed_token_ids", "prompt_logprobs", "json_schema"}
"""What of sampling is said over HTTP in another way, or not at all."""
PRIORITIES = {pb.PRIORITY_LOW: "low", pb.PRIORITY_NORMAL: "normal", pb.PRIORITY_HIGH: "high"}


@dataclass(frozen=True, slots=True)
class Ask:
    """`sampling`: what differs from a draw at temperature 0.8. `prompt`: ids, a text, or messages.

    `corpus`: where passages are searched, "" for none; `strict`: it may not do without. `keeps`: an earlier
    answer will do.
    """

    what: str
    prompt: list[int] | str | tuple[str, ...]
    max_tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    priority: pb.Priority = pb.PRIORITY_NORMAL
    ignores_end: bool = True
    corpus: str = ""
    strict: bool = False
    keeps: bool = False

    @property
    def over_http(self) -> bool:
        """Whether it can be said over HTTP too; the model there has no template for chats."""
        return GRPC_ALONE.isdisjoint(self.sampling) and (
            not isinstance(self.prompt, tuple) or bool(self.corpus)
        )

    def message(self, deadline_s: float = 0.0, ttft_deadline_s: float = 0.0) -> pb.GenerateRequest:
        """Say it as a client of gRPC does; 0: no such deadline."""
        how = {**OPEN, "seed": 7, "ignore_eos": self.ignores_end, **self.sampling}
        message = pb.GenerateRequest(
            sampling=pb.Sampling(max_tokens=self.max_tokens, **how), n=self.n, priority=self.priority
        )
        match self.prompt:
            case str() as text:
                message.text = text
            case tuple() as turns:
                chat = [pb.ChatMessage(role="user", content=turn) for turn in turns]
                message.chat.CopyFrom(pb.ChatPrompt(messages=chat, template_optional=True))
            case ids:
                message.token_ids.CopyFrom(pb.TokenIds(ids=ids))
        if self.corpus:
            message.retrieval.MergeFrom(
                pb.Retrieval(enabled=True, corpus=self.corpus, k=2, may_degrade=not self.strict)
            )
        if self.keeps:
            message.cache.mode = pb.CACHE_MODE_EXACT
        for name, seconds in (("deadline_ms", deadline_s), ("ttft_deadline_ms", ttft_deadline_s)):
            if seconds:
                setattr(message, name, max(1, round(seconds * 1000)))
        return message

    def body(self, deadline_s: float, ttft_deadline_s: float, *, stream: bool) -> dict[str, Any]:
        """The same as a client of HTTP says it, to `path`."""
        how = {**OPEN, "seed": 7, "ignore_eos": self.ignores_end, **self.sampling}
        own: dict[str, Any] = {"priority": PRIORITIES[self.priority]}
        if "regex" in how:
            own["regex"] = how.pop("regex")
        if self.corpus:
            own["retrieval"] = {"corpus": self.corpus, "k": 2, "may_degrade": not self.strict}
        if self.keeps:
            own["cache"] = "exact"
        for name, seconds in (("deadline_ms", deadline_s), ("ttft_deadline_ms", ttft_deadline_s)):
            if seconds:
                own[name] = max(1, round(seconds * 1000))
        body = {"max_tokens": self.max_tokens, "n": self.n, "stream": stream, "penstock": own, **how}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if isinstance(self.prompt, tuple):
            return body | {"messages": [{"role": "user", "content": turn} for turn in self.prompt]}
        return body | {"prompt": self.prompt}

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if isinstance(self.prompt, tuple) else "/v1/completions"


def share_blocks(one: Ask, other: Ask) -> bool:
    """Return whether their prompts may begin with the same block of KV."""
    if isinstance(one.prompt, list) and isinstance(other.prompt, list):
        return one.prompt[:BLOCK_TOKENS] == other.prompt[:BLOCK_TOKENS]
    return type(one.prompt) is type(other.prompt)


def _ids(first: int, count: int) -> list[int]:
    return [(first * 31 + at * 7) % (VOCABULARY - 10) + 5 for at in range(count)]


SHARED = _ids(1, 48)
"""Prompts that begin alike share three blocks of KV."""
COLOURS = "(red|green|blue)( (red|green|blue)){2,5}"
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "at": {"enum": [1, 22]}}, '
    '"required": ["name", "at"], "additionalProperties": false}'
)
TEXT = "Once upon a time there was a little girl who lived near the forest. "

ASKS = (
    Ask("a short prompt", _ids(2, 5), 8),
    Ask("one token", _ids(3, 20), 1),
    Ask("a prompt of whole blocks", _ids(4, 32), 12),
    Ask("a shared beginning", SHARED + _ids(5, 9), 10),
    Ask("another end to it", SHARED + _ids(6, 20), 16, {"seed": 9}),
    Ask("the shared beginning alone", SHARED, 6, {"seed": 11}),
    Ask("a long prompt", _ids(7, 170), 12),
    Ask("a long answer", _ids(8, 18), 40),
    Ask("a greedy answer", _ids(9, 24), 20, {"temperature": 0.0}),
    Ask("penalties", _ids(10, 30), 16, {"repetition_penalty": 1.3, "presence_penalty": 0.5}),
    Ask("filters", _ids(11, 30), 16, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}),
    Ask("log-probabilities", _ids(12, 22), 8, {"logprobs": 2}),
    Ask("log-probabilities of the prompt", _ids(13, 40), 4, {"prompt_logprobs": 1}),
    Ask("allowed ids alone", _ids(14, 12), 12, {"allowed_token_ids": list(range(20, 60))}),
    Ask("biased ids", _ids(15, 12), 10, {"logit_bias": {30: 8.0, 40: -9.0}}),
    Ask("two choices", _ids(16, 26), 8, n=2),
    Ask("three choices of a shared beginning", SHARED + _ids(17, 3), 6, n=3),
    Ask("a text", TEXT * 2, 10),
    Ask("a text with stops", TEXT, 40, {"stop": ["e", "0"], "seed": 3}),
    Ask("a text that ends where it likes", TEXT, 40, {"logit_bias": {1: 2.0}}, ignores_end=False),
    Ask("a chat", ("The dog ran after the ball.", "And then?"), 10),
    Ask("a low priority", _ids(18, 60), 10, priority=pb.PRIORITY_LOW),
    Ask("a high priority", _ids(19, 60), 10, priority=pb.PRIORITY_HIGH),
    Ask("a stop id", _ids(20, 16), 40, {"stop_token_ids": list(range(60, 110)), "min_tokens": 3}),
    Ask("what a pattern allows", _ids(21, 30), 40, {"regex": COLOURS}, ignores_end=False),
    Ask("what a schema allows", _ids(22, 20), 48, {"json_schema": SCHEMA}, ignores_end=False),
    Ask("an answer that may be kept", _ids(23, 34), 12, keeps=True),
    Ask("passages", "what carries water to a turbine", 12, corpus=HANDBOOK),
    Ask("passages, or nothing", "what turns water into light", 10, corpus=HANDBOOK, strict=True),
    Ask("passages for a chat", ("who lowers the gate of a dam",), 12, corpus=HANDBOOK),
    Ask(
        "an answer from passages that may be kept", "when is the gate lowered", 8, corpus=HANDBOOK, keeps=True
    ),
    Ask("passages of one tenant", "what is the secret plan", 8, corpus=OWNER, strict=True),
    Ask("a very long answer", _ids(23, 21), 160),
    Ask("a text with a pattern that ends it", TEXT, 40, {"stop_regex": ["o.{1,8}?n"], "seed": 3}),
)
