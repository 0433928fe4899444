"""Questions of the gateway to retriever and tokenizer, for a request's preprocessing or for a client."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages.trimming import NO_TRIMMING, Spans, TrimmedPart, Trimming

MAX_QUERY_CHARS = 16_384
"""The longest question that is searched for, or that texts are ranked by. A prompt's is cut by the gateway,
which says so."""
MAX_EMBED_TEXTS = 8
"""The most texts of one `Embed`; a gateway splits what a client sends."""
MAX_EMBED_TEXT_BYTES = 16_384
"""The largest of them: far more than the model's context."""
MAX_RERANK_TEXTS = 32
"""The most texts of one `RerankTexts`, each of at most MAX_EMBED_TEXT_BYTES; a gateway splits what a client
sends."""
MAX_CORPUS_CHARS = 64
"""The longest name of a corpus."""
MAX_FILTERS = 16
"""The most fields that a search may be narrowed by."""
MAX_FILTER_VALUES = 64
"""The most values of one of them."""
MAX_FILTER_CHARS = 256
"""The longest field and the longest value, as of the metadata that they are compared with."""
Filters = tuple[tuple[str, tuple[str, ...]], ...]
"""Fields of metadata, each with the values of which a passage has to have one."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call. `parameters` is the JSON Schema of its arguments, "" where it takes
    none."""

    name: str
    description: str
    parameters: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """`name` is that of who speaks, `tool_call_id` which call a tool's turn is the result of; "" = none.
    `reasoning`: what an assistant thought before it said the content."""

    role: str
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Exactly one of `text`, `chat`, `token_ids` is set.

    `template_optional`: render the turns as plain text when the model has no chat template,
    instead of refusing. The blocks are named for workers of `layout` (as in `Heartbeat`), for the adapter
    whose digest is `adapter` ("" = none) and for `tenant` alone. `add_special_tokens`: those that the
    tokenizer puts around a text. `tools`: what the model of a chat is told that it may call. `passages`: what
    the last turn of a chat, a question, is to be answered from, best first; they stand in the prompt in
    `passage_order`, places among them (() as they come). As many of them are put in, whole ones, as there is
    room for: within `max_passage_tokens` (0 any number), in a prompt of `room_tokens` (0 as many as any may
    have). A prompt of `context_tokens` or more is refused by its length (0: of no length), as not every
    answer has room for it. `reasoning_effort`: how much the model of a chat is to think, "none" to "high",
    told to its template where that takes such; "" leaves it to the template.
    `trimming` are budgets that the prompt is shortened to.
    """

    text: str | None = None
    chat: tuple[ChatTurn, ...] = ()
    token_ids: bytes | None = None
    template_optional: bool = False
    layout: str = ""
    tenant: str = ""
    add_special_tokens: bool = True
    tools: tuple[Tool, ...] = ()
    adapter: str = ""
    passages: tuple[str, ...] = ()
    passage_order: tuple[int, ...] = ()
    max_passage_tokens: int = 0
    room_tokens: int = 0
    context_tokens: int = 0
    reasoning_effort: str = ""
    trimming: Trimming = NO_TRIMMING


@dataclass(frozen=True, slots=True)
class PromptThinking:
    """The way in which the model of a prompt thinks before it answers: a `format`'s name, "" for none.

    `begun`: the prompt has opened the thinking. `marker_ids` has those of the format's markers that are
    special tokens. `opening_id` and `closing_id` are the tokens that open and close the thinking, -1 where
    those are several. `close_ids` are the tokens that close it where it has to end.
    """

    format: str = ""
    begun: bool = False
    marker_ids: tuple[tuple[str, int], ...] = ()
    opening_id: int = -1
    closing_id: int = -1
    close_ids: tuple[int, ...] = ()


NO_THINKING = PromptThinking()


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a prompt. With tools, `tool_format` is the name of the format that the model was taught
    for its calls, `marker_ids` has those of the format's markers that are special tokens. `passage_places`:
    of each passage its place among those in the prompt, from 1; 0: there was no room for it, or nothing is
    left of it. `passage_spans`: of each passage what is left of it for the budgets of the message, () for all
    of each. `trimmed` is what was left out for them. `tool_places`: the tools that stand in the
    prompt, as places among those of the message, in order; () for all. `thinking`: how the model of a chat
    thinks."""

    token_ids: bytes
    block_hashes: bytes
    tool_format: str = ""
    marker_ids: tuple[tuple[str, int], ...] = ()
    passage_places: tuple[int, ...] = ()
    thinking: PromptThinking = NO_THINKING
    passage_spans: tuple[Spans, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()
    tool_places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenize:
    """gateway → tokenizer: what text are these ids?"""

    token_ids: bytes


@dataclass(frozen=True, slots=True)
class Detokenized:
    """A text, without special tokens."""

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
class RerankTexts:
    """gateway → retriever: how well does each text of `tenant` answer the question? At most
    MAX_RERANK_TEXTS."""

    query: str
    texts: tuple[str, ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class TextScores:
    """Columns of equal length, one row for each text. `scores`: the higher, the better; those of one question
    by one reranker may be compared, whichever messages they came in. `tokens` counts what was read of the
    question and of the text, `truncated` says that one of the two was longer than the model takes."""

    scores: tuple[float, ...]
    tokens: tuple[int, ...]
    truncated: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Retrieve:
    """`rerank`: whether there is time for a closer look at what was found, where the retriever takes one.

    `corpus` is searched for `tenant`; "" is the only one that it may search. `send_first_passages`: while
    what was found is looked at more closely, the gateway wants to hear of it as it is, by `FoundFirst`.
    Passages with a lower score than `score_threshold` are not wanted.
    """

    query: str
    k: int
    may_degrade: bool
    rerank: bool = True
    corpus: str = ""
    tenant: str = ""
    filters: Filters = ()
    send_first_passages: bool = False
    score_threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    """`score` estimates from 0 to 1 how likely it is that the passage answers the question. Made of the
    characters `start` to `end` of the document that `source` names, which begin on `page`
    (0: it has no pages). `metadata` is what filters may name, each field once."""

    source: str
    text: str
    score: float
    start: int = 0
    end: int = 0
    page: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieved:
    """`degraded` names what was skipped for want of time ("" = nothing), `warning` what the client should
    know of its question ("" = nothing). `corpus` is the name of what was searched, "" where nothing was."""

    passages: tuple[ScoredPassage, ...]
    degraded: str
    embed_us: int
    search_us: int
    rerank_us: int = 0
    warning: str = ""
    corpus: str = ""


@dataclass(frozen=True, slots=True)
class FoundFirst:
    """retriever → gateway: what its question would be answered with now; a reranker may change that. No
    reply, and nothing is lost where it does not come. Its envelope is that of the question."""

    passages: tuple[ScoredPassage, ...]


@dataclass(frozen=True, slots=True)
class GetTokenBytes:
    """gateway → tokenizer: what does each of these ids stand for?"""

    token_ids: bytes


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """One for each id: bytes, since a character may be spread over several tokens."""

    token_bytes: tuple[bytes, ...]
