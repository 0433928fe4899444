"""The front half of a request: the gateway asks retriever and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatTurn:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Exactly one of `text`, `chat`, `token_ids` is set.

    `template_optional`: render the turns as plain text when the model has no chat template,
    instead of refusing. The blocks are named for workers of `layout` (as in `Heartbeat`) and for `tenant`
    alone.
    """

    text: str | None = None
    chat: tuple[ChatTurn, ...] = ()
    token_ids: bytes | None = None
    template_optional: bool = False
    layout: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Tokenized:
    token_ids: bytes
    block_hashes: bytes
    tokenize_us: int


@dataclass(frozen=True, slots=True)
class Retrieve:
    query: str
    k: int
    may_degrade: bool


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    source: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Retrieved:
    """`degraded` names what was skipped for want of time ("" = nothing)."""

    passages: tuple[ScoredPassage, ...]
    degraded: str
    embed_us: int
    search_us: int


@dataclass(frozen=True, slots=True)
class SpellTokens:
    """gateway → tokenizer: what does each of these ids stand for?"""

    token_ids: bytes


@dataclass(frozen=True, slots=True)
class TokenSpellings:
    """One for each id: bytes, since a character may be spread over several tokens."""

    spellings: tuple[bytes, ...]
