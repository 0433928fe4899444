"""Cache the bytes that token ids of a model stand for, as its tokenizers tell them."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.asks.text_asks import TextAsks
from shared.deadline import Deadline

ASK_TIMEOUT_S = 2.0
MAX_KNOWN = 1 << 19
"""Ids of all models together; where there would be more, all are forgotten."""


class TokenBytesCache:
    def __init__(self, text_asks: TextAsks) -> None:
        self._text_asks = text_asks
        self._known: dict[tuple[str, int], bytes] = {}

    async def bytes_of(self, model: str, token_ids: Sequence[int]) -> list[bytes]:
        """One for each id. Raises what the last tokenizer that was asked failed with."""
        # What is known now stays with this call, whatever others forget while a tokenizer is asked.
        spelled = {each: self._known[model, each] for each in token_ids if (model, each) in self._known}
        missing = [each for each in dict.fromkeys(token_ids) if each not in spelled]
        if missing:
            found = await self._text_asks.token_bytes(model, missing, Deadline.after(ASK_TIMEOUT_S))
            spelled.update(zip(missing, found, strict=True))
            if len(self._known) + len(missing) > MAX_KNOWN:
                self._known.clear()
            self._known.update(((model, each), spelled[each]) for each in missing)
        return [spelled[each] for each in token_ids]
