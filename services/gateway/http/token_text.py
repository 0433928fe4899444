"""Tokens as clients are shown them: by the bytes that they stand for, with log-probabilities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb

Spell = Callable[[str, Sequence[int]], Awaitable[Sequence[bytes]]]
"""The bytes that ids of a model stand for."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log-probability, and those of the likeliest ones in its place."""

    text: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


async def spell_logprobs(spell: Spell, model: str, logprobs: Iterable[pb.Logprob]) -> list[TokenText]:
    ids = {logprob.token_id for logprob in logprobs}
    ids |= {top.token_id for logprob in logprobs for top in logprob.top}
    ordered = sorted(ids)
    texts = dict(zip(ordered, await spell(model, ordered), strict=True))
    return [
        TokenText(
            texts[logprob.token_id],
            logprob.logprob,
            tuple((texts[top.token_id], top.logprob) for top in logprob.top),
        )
        for logprob in logprobs
    ]


def describe_tokens(tokens: Iterable[TokenText]) -> list[dict[str, Any]]:
    """As OpenAI's chats and responses write them."""
    return [
        {
            **_describe(token.text, token.logprob),
            "top_logprobs": [_describe(text, logprob) for text, logprob in token.top],
        }
        for token in tokens
    ]


def _describe(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text.decode(errors="replace"), "logprob": logprob, "bytes": list(text)}
