"""The bytes of token ids: asked for once, and whole whatever others ask for meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from services.gateway.asks import token_bytes_cache
from services.gateway.asks.text_asks import TextAsks
from services.gateway.asks.token_bytes_cache import TokenBytesCache
from shared.deadline import Deadline
from tests.support.wait import until


class Tokenizer:
    """It spells each id as its number, once it may."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def token_bytes(self, _model: str, token_ids: Sequence[int], _deadline: Deadline) -> list[bytes]:
        self.asked.append(list(token_ids))
        await self.go.wait()
        return [str(each).encode() for each in token_ids]


def opened(tokenizer: Tokenizer) -> TokenBytesCache:
    return TokenBytesCache(cast(TextAsks, tokenizer))


async def test_an_id_is_asked_for_once_and_given_in_its_place() -> None:
    tokenizer = Tokenizer()
    cache = opened(tokenizer)
    assert await cache.bytes_of("m", [2, 1, 2]) == [b"2", b"1", b"2"]
    assert await cache.bytes_of("m", [1, 3]) == [b"1", b"3"]
    assert await cache.bytes_of("other", [1]) == [b"1"]
    assert tokenizer.asked == [[2, 1], [3], [1]]


async def test_what_others_make_it_forget_meanwhile_is_given_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_bytes_cache, "MAX_KNOWN", 4)
    tokenizer = Tokenizer()
    cache = opened(tokenizer)
    await cache.bytes_of("m", [1, 2, 3])
    tokenizer.go.clear()
    calls = [asyncio.create_task(cache.bytes_of("m", ids)) for ids in ([1, 2, 4], [1, 5, 6, 7], [3, 8])]
    await until(lambda: len(tokenizer.asked) == 4)
    tokenizer.go.set()
    assert await asyncio.gather(*calls) == [
        [b"1", b"2", b"4"],
        [b"1", b"5", b"6", b"7"],
        [b"3", b"8"],
    ]


async def test_no_more_ids_are_known_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bytes_cache, "MAX_KNOWN", 4)
    cache = opened(Tokenizer())
    for first in range(0, 40, 3):
        await cache.bytes_of("m", range(first, first + 3))
        assert len(cache._known) <= 4
    assert await cache.bytes_of("m", range(6)) == [str(each).encode() for each in range(6)]
