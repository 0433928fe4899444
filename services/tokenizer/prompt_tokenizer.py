"""Answer `Tokenize` and `Detokenize` messages. Pure, thread-safe, takes as long as the text is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.tokenizer.chat_prompt_builder import BuiltChat, ChatPromptBuilder
from shared.blocks.block_hash import BlockHasher
from shared.errors import ContextExceeded, InvalidRequest, TooLarge
from shared.messages import (
    MAX_PROMPT_TOKENS,
    NO_THINKING,
    ChatTurn,
    Detokenize,
    Detokenized,
    GetTokenBytes,
    PromptThinking,
    TokenBytes,
    Tokenize,
    Tokenized,
    pack_hashes,
    pack_ids,
    unpack_ids,
)
from shared.text.chat_roles import CHAT_ROLES
from shared.text.passage_room import utf8_bytes
from shared.text.tokenizer import TextTokenizer

MAX_TURNS = 4096
"""The most turns of a chat in a message."""


class PromptTokenizer:
    """The tokenizer of one model, its limits, and what names its blocks."""

    def __init__(self, tokenizer: TextTokenizer, hasher: BlockHasher, max_text_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._hasher = hasher
        self._max_text_bytes = max_text_bytes

    def tokenize_prompt(self, message: Tokenize) -> Tokenized:
        """Raises InvalidRequest for a prompt that cannot be used, TooLarge for one over a limit."""
        prompt = self._build_prompt(message)
        token_ids = prompt.token_ids
        if not token_ids:
            raise InvalidRequest("the prompt has no tokens; send some text")
        if 0 < message.context_tokens <= len(token_ids):
            raise ContextExceeded.of(len(token_ids), message.context_tokens)
        if len(token_ids) > MAX_PROMPT_TOKENS:
            raise TooLarge(f"a prompt of {len(token_ids)} tokens is over the limit of {MAX_PROMPT_TOKENS}")
        seed = self._hasher.seed(message.layout, message.tenant, message.adapter)
        hashes = pack_hashes(self._hasher.block_hashes(token_ids, seed))
        thinking = self._thinking(token_ids) if message.chat else NO_THINKING
        answer = Tokenized(
            pack_ids(token_ids),
            hashes,
            passage_places=prompt.passage_places,
            thinking=thinking,
            passage_spans=prompt.passage_spans,
            trimmed=prompt.trimmed,
            tool_places=prompt.tool_places,
        )
        if not message.tools:
            return answer
        taught = self._tokenizer.tool_format
        markers = self._tokenizer.special_ids_of(taught.markers)
        return replace(answer, tool_format=taught.name, marker_ids=tuple(markers.items()))

    def _thinking(self, prompt_ids: Sequence[int]) -> PromptThinking:
        """Say how the model thinks in its answer to a chat; where the chat template has closed the thinking
        already, it does not."""
        taught = self._tokenizer.thinking_format
        if taught is None or self._tokenizer.ends_with(prompt_ids, taught.closing):
            return NO_THINKING
        marks = taught.opening_word or taught.opening, taught.closing
        opening_id, closing_id = map(self._tokenizer.token_id, marks)
        close_ids = self._tokenizer.encode_text(taught.close, add_special_tokens=False)
        return PromptThinking(
            format=taught.name,
            begun=self._tokenizer.ends_with(prompt_ids, taught.opening),
            marker_ids=tuple(self._tokenizer.special_ids_of(taught.markers).items()),
            opening_id=-1 if opening_id is None else opening_id,
            closing_id=-1 if closing_id is None else closing_id,
            close_ids=() if closing_id is None else tuple(close_ids),
        )

    def token_bytes(self, message: GetTokenBytes) -> TokenBytes:
        """Raises InvalidRequest for an id that is none of the vocabulary."""
        token_ids = unpack_ids(message.token_ids)
        self._tokenizer.check_ids(token_ids)
        return TokenBytes(tuple(map(self._tokenizer.token_bytes, token_ids)))

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer.has_chat_template

    @property
    def vocab_tokens(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def most_token_bytes(self) -> int:
        return self._tokenizer.most_token_bytes

    def detokenize_ids(self, message: Detokenize) -> Detokenized:
        """Raises InvalidRequest for ids that are not in the vocabulary."""
        token_ids = unpack_ids(message.token_ids)
        self._tokenizer.check_ids(token_ids)
        return Detokenized(self._tokenizer.decode(token_ids))

    def _build_prompt(self, message: Tokenize) -> BuiltChat:
        given = (message.text is not None) + bool(message.chat) + (message.token_ids is not None)
        if given != 1:
            raise InvalidRequest(f"a prompt is text, chat or token ids; {given} of the three were sent")
        if message.token_ids is not None:
            token_ids = unpack_ids(message.token_ids)
            self._tokenizer.check_ids(token_ids)
            return BuiltChat(token_ids)
        if message.text is not None:
            self._room_beside((message.text,))
            ids = self._tokenizer.encode_text(message.text, add_special_tokens=message.add_special_tokens)
            return BuiltChat(ids)
        self._check_turns(message.chat)
        room_bytes = self._room_beside(_chat_texts(message))
        return ChatPromptBuilder(self._tokenizer, message).build(room_bytes)

    def _check_turns(self, turns: Sequence[ChatTurn]) -> None:
        if len(turns) > MAX_TURNS:
            raise TooLarge(f"a chat of {len(turns)} messages is over the limit of {MAX_TURNS}; send fewer")
        for turn in turns:
            if turn.role not in CHAT_ROLES:
                roles = ", ".join(CHAT_ROLES)
                raise InvalidRequest(f"{turn.role[:40]!r} is not a role; use one of {roles}")

    def _room_beside(self, texts: Sequence[str]) -> int:
        """Bytes that are left beside them."""
        if not any(texts):
            raise InvalidRequest("the prompt is empty; send some text")
        room_bytes = self._max_text_bytes - sum(map(utf8_bytes, texts))
        if room_bytes < 0:
            raise TooLarge(f"the prompt is over the limit of {self._max_text_bytes} bytes; shorten it")
        return room_bytes


def text_chars(message: Tokenize | Detokenize) -> int:
    """Return roughly how long the work will be, in characters."""
    if message.token_ids is not None:
        return len(message.token_ids)
    assert isinstance(message, Tokenize)
    return len(message.text or "") + sum(map(len, (*_chat_texts(message), *message.passages)))


def _chat_texts(message: Tokenize) -> list[str]:
    """Return all that is written in a chat and about its tools, but for passages."""
    texts = [text for turn in message.chat for text in (turn.content, turn.reasoning)]
    texts += [call.arguments for turn in message.chat for call in turn.tool_calls]
    return texts + [part for tool in message.tools for part in (tool.description, tool.parameters)]
