"""A chat as ids, its question told with as many of its passages as there is room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.errors import InvalidRequest, TooLarge
from shared.messages import MAX_PROMPT_TOKENS, Tokenize
from shared.text.passage_room import fitting_places, utf8_bytes
from shared.text.retrieval_prompt import passage_line, retrieval_prompt
from shared.text.tokenizer import TextTokenizer

MAX_PASSAGES_OF_PROMPT = 64
"""The most passages that a message may bring for a prompt."""


@dataclass(frozen=True, slots=True)
class BuiltChat:
    """`passage_places` are those of `Tokenized`."""

    token_ids: list[int]
    passage_places: tuple[int, ...] = ()


class ChatPromptBuilder:
    """A builder of the prompt of one `Tokenize` that has a chat."""

    def __init__(self, tokenizer: TextTokenizer, message: Tokenize) -> None:
        """Raises TooLarge or InvalidRequest for passages, or an order of them, that cannot be meant."""
        self._tokenizer = tokenizer
        self._message = message
        count = len(message.passages)
        if count > MAX_PASSAGES_OF_PROMPT:
            raise TooLarge(f"{count} passages are over the limit of {MAX_PASSAGES_OF_PROMPT}; send fewer")
        self._order = message.passage_order or tuple(range(count))
        if sorted(self._order) != list(range(count)):
            raise InvalidRequest(f"passage_order is no order of {count} passages; name each place once")
        if message.max_passage_tokens < 0 or message.room_tokens < 0:
            raise InvalidRequest("max_passage_tokens and room_tokens are at least 0; 0 leaves them open")

    def build(self, room_bytes: int) -> BuiltChat:
        """Build the prompt with the best passages that fit into `room_bytes`, then into the message's limits.

        Their tokens are counted line by line, as they stand in the prompt; the prompt is measured whole.
        """
        message = self._message
        sizes = [utf8_bytes(passage) for passage in message.passages]
        places = fitting_places(sizes, room_bytes)
        token_ids = self._encode(places)
        room = min(message.room_tokens or MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS)
        if places and (message.max_passage_tokens or len(token_ids) > room):
            fitting = self._fitting(places, len(token_ids), room)
            token_ids = token_ids if fitting == places else self._encode(fitting)
            places = fitting
        while places and len(token_ids) > room:  # lines that cost more beside each other than alone
            places = places[:-1]
            token_ids = self._encode(places)
        standing = self._standing(places)
        return BuiltChat(
            token_ids,
            tuple(standing.index(place) + 1 if place in standing else 0 for place in range(len(sizes))),
        )

    def _fitting(self, places: Sequence[int], tokens: int, room: int) -> tuple[int, ...]:
        """Return those of `places` that fit; with all of them the prompt has `tokens`."""
        lines = [passage_line(place + 1, self._message.passages[place]) for place in places]
        sizes = [len(self._tokenizer.encode_text(f"{line}\n", add_special_tokens=False)) for line in lines]
        left = room - (tokens - sum(sizes))
        limit = self._message.max_passage_tokens
        return tuple(places[at] for at in fitting_places(sizes, min(limit, left) if limit else left))

    def _standing(self, places: Sequence[int]) -> list[int]:
        return [place for place in self._order if place in places]

    def _encode(self, places: Sequence[int]) -> list[int]:
        return self._encode_passages([self._message.passages[place] for place in self._standing(places)])

    def _encode_passages(self, passages: Sequence[str]) -> list[int]:
        """Encode the chat with these passages in its question, in the form that the model was taught."""
        message, turns = self._message, self._message.chat
        if passages:
            asked = retrieval_prompt(passages, turns[-1].content, self._tokenizer.retrieval_form)
            turns = (*turns[:-1], replace(turns[-1], content=asked))
        return self._tokenizer.encode_chat(
            turns,
            tools=message.tools,
            template_optional=message.template_optional,
            effort=message.reasoning_effort,
        )
