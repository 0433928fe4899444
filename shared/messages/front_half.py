"""What the gateway asks retriever and tokenizer: for the front half of a request, or for a client itself."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EMBED_TEXTS = 8
"""Of one `Embed`; a gateway splits what a client sends."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Exactly one of `text`, `chat`, `token_ids` is set.

    `template_optional`: render the turns as plain text when the model has no chat template,
    instead of refusing. The blocks are named for workers of `layout` (as in `Heartbeat`) and for `tenant`
    alone. `add_special_tokens`: those that the tokenizer puts around a text.
    """

    text: str | None = None
    chat: tuple[ChatTurn, ...] = ()
    token_ids: bytes | None = None
    template_optional: bool = False
    layout: str = ""
    tenant: str = ""
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Tokenized:
    token_ids: bytes
    block_hashes: bytes
    tokenize_us: int


@dataclass(frozen=True, slots=True)
class Detokenize:
    """gateway → tokenizer: what text are these ids?"""

    token_ids: bytes


@dataclass(frozen=True, slots=True)
class Detokenized:
    """Without special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Embed:
    """gateway → retriever: at most MAX_EMBED_TEXTS, so that questions do not wait for long behind them."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Columns of equal length, one row for each text; a vector is float32, little-endian."""

    vectors: tuple[bytes, ...]
    tokens: tuple[int, ...]
    truncated: tuple[bool, ...]


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
