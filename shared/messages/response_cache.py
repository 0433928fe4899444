"""Answers that are known already: a gateway asks a retriever for one, and gives it those to be known later.

Nobody is told that a lookup is over: it ends with the deadline in its envelope, which is a moment away.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages.citing import CitedSentence
from shared.messages.preprocessing import NO_THINKING, PromptThinking, ScoredPassage
from shared.messages.trimming import Spans, TrimmedPart

CACHE_DIGEST_BYTES = 32
MAX_KEPT_TOKENS = 4096
"""The longest answer that is kept."""
MAX_KEPT_BYTES = 1 << 18
"""The largest answer that is kept, with the passages that it is from."""
MAX_COMPARED_BYTES = 4096
"""The longest question that is compared with others: more is beyond the encoder's context anyway."""


@dataclass(frozen=True, slots=True)
class ResponseKey:
    """`tenant` is that of the API key, whose share of the room it takes. `exact` is a digest of everything
    that an answer depends on, tenant and `cache_salt` too, `near` of all that but the question; both are
    keyed. `question` is "" where no other question's answer will do."""

    tenant: str
    exact: bytes
    near: bytes
    question: str = ""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """An answer as it went out. `text` has calls of tools in it as the model wrote them, in `tool_format`,
    and before them what it thought, as `thinking` says. `prompt_places` are those at which the passages stood
    in the prompt, one for each; `retrieval_query` is as in PromptInfo, `cited` what the passages support of
    it; `passage_spans` (() where all stood there whole) and `trimmed` are as in `Tokenized`."""

    request_id: str
    model: str
    seed: int
    prompt_tokens: int
    token_ids: bytes
    text: str
    finish: str
    tool_format: str = ""
    passages: tuple[ScoredPassage, ...] = ()
    prompt_places: tuple[int, ...] = ()
    retrieval_query: str = ""
    cited: tuple[CitedSentence, ...] = ()
    thinking: PromptThinking = NO_THINKING
    passage_spans: tuple[Spans, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LookUpResponse:
    """gateway → retriever. `max_age_ms`: 0 takes any that is kept; `min_similarity`: 0.0 takes the
    retriever's own. `retrieves`: the answer is from passages, so that it has to be of the index that is
    searched now for the key's tenant in `corpus`, as in `Retrieve`."""

    key: ResponseKey
    retrieves: bool
    max_age_ms: int = 0
    min_similarity: float = 0.0
    corpus: str = ""


@dataclass(frozen=True, slots=True)
class ResponseFound:
    """`similarity` is below 1 where the answer is that to another question."""

    response: KeptResponse
    age_ms: int
    similarity: float


@dataclass(frozen=True, slots=True)
class ResponseMissing:
    """`generation` names the corpus that would be searched now, and the state of its index; "" where there is
    none."""

    generation: str


@dataclass(frozen=True, slots=True)
class KeepResponse:
    """gateway → retriever, unanswered. `generation`: what the lookup said, where the answer is from passages:
    it is of no use when there is another index by now."""

    key: ResponseKey
    response: KeptResponse
    retrieves: bool
    generation: str


def passage_bytes(passage: ScoredPassage) -> int:
    """Count what a passage takes of MAX_KEPT_BYTES."""
    texts = (passage.text, passage.source, *(part for pair in passage.metadata for part in pair))
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
