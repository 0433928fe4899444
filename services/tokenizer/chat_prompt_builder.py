"""A chat as ids, its question told with as many of its passages as there is room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.errors import InvalidRequest, TooLarge
from shared.messages import MAX_PROMPT_TOKENS, ChatTurn, Spans, Tokenize, TrimmedPart
from shared.text.passage_room import fitting_places, utf8_bytes
from shared.text.retrieval_prompt import passage_line, retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from shared.trimming.chat_budget import trim_chat
from shared.trimming.chat_summary import with_summary
from shared.trimming.compact_chat import CompactChat, compact_chat
from shared.trimming.kept_text import NOTHING
from shared.trimming.passage_compression import compress_passages
from shared.trimming.tool_choice import ToolChoice, choose_tools

MAX_PASSAGES_OF_PROMPT = 64
"""The most passages that a message may bring for a prompt."""


@dataclass(frozen=True, slots=True)
class BuiltChat:
    """`passage_places`, `passage_spans`, `trimmed` and `tool_places` are those of `Tokenized`."""

    token_ids: list[int]
    passage_places: tuple[int, ...] = ()
    passage_spans: tuple[Spans, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()
    tool_places: tuple[int, ...] = ()


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
        trimming = message.trimming
        budgets = trimming.prompt_tokens, trimming.summary_tokens, trimming.tool_tokens
        if min(budgets) < 0:
            raise InvalidRequest(
                "a budget of a prompt, a summary or tools is at least 0 tokens; 0 leaves it open, or is none"
            )
        if message.trimming.passage_tokens < 0 or not 0.0 < message.trimming.passage_share <= 1.0:
            raise InvalidRequest(
                "a budget of passages is at least 0 tokens, and a share above 0 and at most 1"
            )
        asked = message.trimming.query or (message.chat[-1].content if message.chat else "")
        self._left = compress_passages(message.passages, asked, message.trimming, self._count_tokens)
        self._passages = self._left.texts
        written = CompactChat(message.chat)
        if message.trimming.compact:
            written = compact_chat(message.chat, self._count_tokens)
        self._turns, self._compacted = written.turns, written.parts
        self._summary = ""
        self._tool_choice = self._choose_tools()
        self._tools = tuple(message.tools[place] for place in self._tool_choice.places)

    def build(self, room_bytes: int) -> BuiltChat:
        """Build the prompt with the best passages that fit into `room_bytes`, then into the message's limits.

        Their tokens are counted line by line, as they stand in the prompt; the prompt is measured whole.
        """
        message = self._message
        sizes = [utf8_bytes(passage) for passage in self._passages]
        fitting = fitting_places(sizes, room_bytes)
        places = tuple(place for place in fitting if self._left.spans[place] != NOTHING)
        trimmed = self._trim_turns(places)
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
            self._left.spans if any(self._left.spans) else (),
            (*self._left.parts, *trimmed, *parts_of(self._tool_choice.part), *self._compacted),
            self._tool_choice.places if self._tool_choice.part is not None else (),
        )

    def _trim_turns(self, places: Sequence[int]) -> tuple[TrimmedPart, ...]:
        """Leave out the oldest turns of a chat that is over its budget, with the passages of `places`."""
        budget = self._message.trimming.chat_tokens(self._message.room_tokens)
        if not budget:
            return ()
        texts = [self._passages[place] for place in self._standing(places)]
        left = trim_chat(
            self._turns,
            budget,
            lambda turns, summary: len(self._encode_turns(turns, texts, summary)),
            self._count_tokens,
            self._message.trimming.summary_tokens,
        )
        self._turns, self._summary = left.turns, left.summary
        return parts_of(left.part)

    def _choose_tools(self) -> ToolChoice:
        """Leave out tools that nobody asks for where all of them are over their budget."""
        message, trimming = self._message, self._message.trimming
        if not trimming.tool_tokens:
            return ToolChoice(tuple(range(len(message.tools))))
        return choose_tools(
            message.tools, message.chat, trimming.tool_tokens, self._count_tokens, trimming.tool
        )

    def _fitting(self, places: Sequence[int], tokens: int, room: int) -> tuple[int, ...]:
        """Return those of `places` that fit; with all of them the prompt has `tokens`."""
        lines = [passage_line(place + 1, self._passages[place]) for place in places]
        sizes = [self._count_tokens(f"{line}\n") for line in lines]
        left = room - (tokens - sum(sizes))
        limit = self._message.max_passage_tokens
        return tuple(places[at] for at in fitting_places(sizes, min(limit, left) if limit else left))

    def _standing(self, places: Sequence[int]) -> list[int]:
        return [place for place in self._order if place in places]

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode_text(text, add_special_tokens=False))

    def _encode(self, places: Sequence[int]) -> list[int]:
        texts = [self._passages[place] for place in self._standing(places)]
        return self._encode_turns(self._turns, texts, self._summary)

    def _encode_turns(self, turns: Sequence[ChatTurn], passages: Sequence[str], summary: str) -> list[int]:
        """Encode turns with these passages in their question, in the form that the model was taught, and
        with a summary of those before them."""
        message = self._message
        if passages:
            asked = retrieval_prompt(passages, turns[-1].content, self._tokenizer.retrieval_form)
            turns = [*turns[:-1], replace(turns[-1], content=asked)]
        return self._tokenizer.encode_chat(
            with_summary(turns, summary),
            tools=self._tools,
            template_optional=message.template_optional,
            effort=message.reasoning_effort,
        )


def parts_of(part: TrimmedPart | None) -> tuple[TrimmedPart, ...]:
    """Return what was left out, nothing for None."""
    return () if part is None else (part,)
