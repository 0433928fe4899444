"""Limit prompts to what one message on the bus carries beside everything else that is in it."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.request.request import Request
from shared.blocks.block_hash import HASH_BLOCK_TOKENS, HASH_BYTES
from shared.errors import InvalidRequest, TooLarge

ID_BYTES = 4
IDS_SHARE = 0.75
"""The share of ids in one message to a worker. The rest is for sampling options, for all of them at their own
limits."""
TEXT_SHARE = 31 / 32
"""The share of texts in a tokenizer's message. The rest is for what surrounds the texts."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """`max_payload_bytes` is the NATS server's."""

    max_payload_bytes: int

    @property
    def max_ids(self) -> int:
        """The most token ids that fit into a message with the hashes of their blocks."""
        block_bytes = HASH_BLOCK_TOKENS * ID_BYTES + HASH_BYTES
        return int(IDS_SHARE * self.max_payload_bytes) * HASH_BLOCK_TOKENS // block_bytes

    @property
    def max_text_bytes(self) -> int:
        return int(TEXT_SHARE * self.max_payload_bytes)

    def check_request(self, request: Request) -> None:
        """Raises InvalidRequest that names the field."""
        if request.token_ids is not None:
            if len(request.token_ids) > self.max_ids:
                raise InvalidRequest(
                    f"token_ids.ids has {len(request.token_ids)} ids: send at most {self.max_ids}"
                )
        elif request.prompt_bytes > self.max_text_bytes:
            field = "chat.messages hold" if request.chat else "text has"
            raise InvalidRequest(
                f"{field} {request.prompt_bytes} bytes of UTF-8: send at most {self.max_text_bytes}"
            )

    def check_tokens(self, tokens: int) -> None:
        """Raise TooLarge when a text has become more tokens than a message carries."""
        if tokens > self.max_ids:
            raise TooLarge(
                f"the prompt has {tokens} tokens, and the bus carries {self.max_ids}: shorten it, or raise "
                "max_payload of the NATS server"
            )
