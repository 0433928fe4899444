"""Tokens as clients are shown them: by the bytes that they stand for, with log-probabilities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb

FetchTokenBytes = Callable[[str, Sequence[int]], Awaitable[Sequence[bytes]]]
"""The bytes that ids of a model stand for."""
MAX_IDS_AT_ONCE = 1 << 14
"""Ids of one question to a tokenizer: with their spellings they are far below a message's limit."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log-probability, and those of the likeliest ones in its place; None where nothing
    comes before it."""

    text: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]

    @property
    def shown(self) -> str:
        return show_token(self.text)


def show_token(text: bytes) -> str:
    """Return the text of one token by itself; a part of a character is none."""
    return text.decode(errors="replace")


async def bytes_of_ids(fetch_bytes: FetchTokenBytes, model: str, token_ids: Sequence[int]) -> list[bytes]:
    """One for each id; each is asked for once, and not too many at a time."""
    ordered = sorted(set(token_ids))
    texts: dict[int, bytes] = {}
    for start in range(0, len(ordered), MAX_IDS_AT_ONCE):
        part = ordered[start : start + MAX_IDS_AT_ONCE]
        texts |= zip(part, await fetch_bytes(model, part), strict=True)
    return [texts[token_id] for token_id in token_ids]


async def texts_of_logprobs(
    fetch_bytes: FetchTokenBytes, model: str, logprobs: Sequence[pb.Logprob]
) -> list[TokenText]:
    ids = {logprob.token_id for logprob in logprobs}
    ids |= {top.token_id for logprob in logprobs for top in logprob.top}
    ordered = list(ids)
    texts = dict(zip(ordered, await bytes_of_ids(fetch_bytes, model, ordered), strict=True))
    return [
        TokenText(
            texts[logprob.token_id],
            logprob.logprob,
            tuple((texts[top.token_id], top.logprob) for top in logprob.top),
        )
        for logprob in logprobs
    ]


def describe_tokens(tokens: Iterable[TokenText]) -> list[dict[str, Any]]:
    """Return log-probabilities as OpenAI's chats and responses write them."""
    return [
        {
            **_describe(token.text, token.logprob),
            "top_logprobs": [_describe(text, logprob) for text, logprob in token.top],
        }
        for token in tokens
    ]


def _describe(text: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": show_token(text), "logprob": logprob, "bytes": list(text)}
