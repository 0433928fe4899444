"""Place passages in a prompt: their order, the room they have, and what the client is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.retrieval_use import BEST_FIRST, RetrievalUse
from shared.errors import NoPassages
from shared.messages import Retrieved, ScoredPassage, Spans, TrimmedPart
from shared.text.passage_source import document_of
from shared.trimming.kept_text import NOTHING, WHOLE

ANSWER_SHARE = 0.25
"""The largest share of a model's context that is kept free of passages for an answer, however long it may
be."""


def standing_order(passages: Sequence[ScoredPassage], order: str) -> tuple[int, ...]:
    """Places among `passages`, which come best first, in the order in which they stand in a prompt.

    Unless the best are to be first, by document and place in it: the same passages stand alike whatever was
    asked, so that prompts which have them begin alike, and what is told in a row is read in a row.
    """
    places = range(len(passages))
    return tuple(places if order == BEST_FIRST else sorted(places, key=lambda at: _place_of(passages[at])))


def near_places(passages: Sequence[ScoredPassage], least_share: float) -> tuple[int, ...]:
    """Return the places of passages with at least that share of the best one's score.

    What hardly answers leads a small model astray more often than it helps, and costs every model its time.
    """
    best = max((passage.score for passage in passages), default=0.0)
    return tuple(at for at, passage in enumerate(passages) if not passage.score < least_share * best)


def prompt_room_tokens(context_tokens: int, max_tokens: int, most_tokens: int) -> int:
    """Return how long a prompt may become by its passages.

    The model has `context_tokens` (0: nobody knows), the answer `max_tokens`, and a prompt of `most_tokens`
    reaches a worker.
    """
    if not context_tokens:
        return most_tokens
    answer_tokens = max(1, min(max_tokens, int(ANSWER_SHARE * context_tokens)))
    return max(1, min(context_tokens - answer_tokens, most_tokens))


def check_found(found: Retrieved, use: RetrievalUse) -> None:
    """Raises NoPassages where passages have to have some score, and none has."""
    if use.score_threshold and not found.passages:
        why = f" ({found.degraded} was left out)" if found.degraded else ""
        raise NoPassages(
            f"no passage has a score of {use.score_threshold:g} or more{why}: lower "
            "retrieval.score_threshold, or ask in other words",
            hop="retriever",
        )


def left_out_warning(prompt_places: Sequence[int], use: RetrievalUse, spans: Sequence[Spans] = ()) -> str:
    """ "" where all of them are in the prompt, but for those of which a budget has left nothing: that is told
    by itself."""
    left_out = prompt_places.count(0) - spans.count(NOTHING)
    if left_out <= 0:
        return ""
    limit = f" (retrieval.max_tokens is {use.max_tokens})" if use.max_tokens else ""
    return f"the prompt had no room for {left_out} of {len(prompt_places)} passages{limit}"


def retrieved_passage(
    passage: ScoredPassage, prompt_place: int = 0, spans: Spans = WHOLE
) -> pb.RetrievedPassage:
    """Return the passage in the contract's form, as its client is told of it; `spans` of it stand in the
    prompt."""
    return pb.RetrievedPassage(
        source=passage.source,
        text=passage.text,
        score=passage.score,
        start=passage.start,
        end=passage.end,
        page=passage.page,
        prompt_place=prompt_place,
        metadata=dict(passage.metadata),
        in_prompt=text_spans(spans) if prompt_place else (),
    )


def text_spans(spans: Spans) -> list[pb.TextSpan]:
    """Return parts of a text in the contract's form."""
    return [pb.TextSpan(start=start, end=end) for start, end in zip(spans[::2], spans[1::2], strict=True)]


def trimmed_events(parts: Sequence[TrimmedPart]) -> list[pb.TrimmedPart]:
    """Return what was left out of a prompt in the contract's form."""
    return [pb.TrimmedPart(what=part.what, count=part.count, tokens=part.tokens) for part in parts]


def _place_of(passage: ScoredPassage) -> tuple[str, int, int, str]:
    return document_of(passage.source), passage.start, passage.end, passage.text


def joined_warnings(*warnings: str) -> str:
    """Join what a client should know into one text: those that say something, in their order, none twice."""
    return "; ".join(dict.fromkeys(filter(None, warnings)))
