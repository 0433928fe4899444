"""Cache the bytes that token ids of a model stand for, as its tokenizers tell them."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.asks.text_asks import TextAsks
from shared.deadline import Deadline

ASK_TIMEOUT_S = 2.0
MAX_KNOWN = 1 << 19
"""Ids of all models together; then all are asked for anew."""


class TokenBytesCache:
    def __init__(self, text_asks: TextAsks) -> None:
        self._text_asks = text_asks
        self._known: dict[tuple[str, int], bytes] = {}

    async def bytes_of(self, model: str, token_ids: Sequence[int]) -> list[bytes]:
        """One for each id. Raises what the last tokenizer that was asked failed with."""
        missing = [token_id for token_id in token_ids if (model, token_id) not in self._known]
        if missing:
            if len(self._known) + len(missing) > MAX_KNOWN:
                self._known.clear()
                missing = list(token_ids)
            found = await self._text_asks.token_bytes(model, missing, Deadline.after(ASK_TIMEOUT_S))
            self._known.update(zip(((model, token_id) for token_id in missing), found, strict=True))
        return [self._known[model, token_id] for token_id in token_ids]
