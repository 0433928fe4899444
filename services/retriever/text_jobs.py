"""Texts that are of no corpus: their vectors, how well they answer a question, what supports an answer. What
of it runs in the retriever's worker thread, and what waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.bus import Delivery
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, InvalidRequest, NotFound, TooLarge
from shared.messages import (
    MAX_CITED_ANSWER_CHARS,
    MAX_CITED_PASSAGE_BYTES,
    MAX_CITED_PASSAGES,
    MAX_EMBED_TEXT_BYTES,
    MAX_EMBED_TEXTS,
    MAX_QUERY_CHARS,
    MAX_RERANK_TEXTS,
    AnswerCited,
    CiteAnswer,
    Embed,
    Embedded,
    RerankTexts,
    TextScores,
)
from shared.retrieval.citing.answer_citations import cite_answer
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.rerank import BATCH_PASSAGES, Reranker, ScoredTexts

FLOAT32_LE = "<f4"

TextMessage = Embed | RerankTexts | CiteAnswer
NO_RERANKER = (
    "this retriever has no reranker; set reranker under [retriever], or PENSTOCK_RETRIEVER_RERANKER, "
    "to late-interaction or the folder of a cross-encoder"
)


_PHASES: dict[type[TextMessage], str] = {Embed: "embedding", RerankTexts: "reranking", CiteAnswer: "citing"}


@dataclass(slots=True, eq=False)
class TextJob:
    """Waits for its turn and its answer, until `end`. `dropped`: nobody wants the answer any more."""

    delivery: Delivery
    message: TextMessage
    end: Deadline
    dropped: bool = False

    @property
    def request_id(self) -> str:
        return self.delivery.envelope.request_id

    @property
    def phase(self) -> str:
        return _PHASES[type(self.message)]

    def late_answer(self) -> DeadlineExpired:
        return DeadlineExpired(f"there was no time for {self.phase} the texts; allow more, or send fewer")


class TextWork:
    """The work to be done with texts."""

    def __init__(self, embedder: Embedder, reranker: Reranker | None) -> None:
        self._embedder = embedder
        self._reranker = reranker

    def run(self, job: TextJob) -> Embedded | TextScores | AnswerCited:
        """Raises DeadlineExpired when there is no time, or nobody, for the rest of it."""
        if isinstance(job.message, RerankTexts):
            return self._score(job, job.message)
        if isinstance(job.message, CiteAnswer):
            return self._cite(job, job.message)
        texts = self._embedder.embed_counted(job.message.texts)
        return Embedded(
            vectors=tuple(vector.astype(FLOAT32_LE).tobytes() for vector in texts.vectors),
            tokens=tuple(texts.tokens),
            truncated=tuple(texts.truncated),
        )

    def _cite(self, job: TextJob, message: CiteAnswer) -> AnswerCited:
        """Raises DeadlineExpired where it is too late for any of it."""
        if job.dropped or job.end.expired():
            raise job.late_answer()
        return AnswerCited(
            tuple(
                cite_answer(
                    message.question,
                    message.answer,
                    message.passages,
                    self._embedder.embed_passages,
                    lambda: not (job.dropped or job.end.expired()),
                )
            )
        )

    def _score(self, job: TextJob, message: RerankTexts) -> TextScores:
        if self._reranker is None:
            raise NotFound(NO_RERANKER)
        parts: list[ScoredTexts] = []
        for start in range(0, len(message.texts), BATCH_PASSAGES):
            if job.dropped or job.end.expired():
                raise job.late_answer()
            batch = message.texts[start : start + BATCH_PASSAGES]
            parts.append(self._reranker.score_texts(message.query, batch, f"tenant {message.tenant}"))
        return TextScores(
            scores=tuple(score for part in parts for score in part.scores),
            tokens=tuple(count for part in parts for count in part.tokens),
            truncated=tuple(cut for part in parts for cut in part.truncated),
        )


def check_texts(message: TextMessage) -> None:
    """Raises InvalidRequest or TooLarge for what a gateway would not send."""
    if isinstance(message, Embed):
        _check_each(message.texts, MAX_EMBED_TEXTS)
        return
    if isinstance(message, CiteAnswer):
        _check_cited(message)
        return
    if not message.query.strip():
        raise InvalidRequest("the question is empty; texts are ranked by how well they answer one")
    if len(message.query) > MAX_QUERY_CHARS:
        raise TooLarge(
            f"the question has {len(message.query)} characters; "
            f"texts are ranked for one of at most {MAX_QUERY_CHARS}"
        )
    _check_each(message.texts, MAX_RERANK_TEXTS)


def _check_cited(message: CiteAnswer) -> None:
    if not 1 <= len(message.passages) <= MAX_CITED_PASSAGES:
        raise InvalidRequest(
            f"{len(message.passages)} passages were sent; an answer is cited from 1 to {MAX_CITED_PASSAGES}"
        )
    if max(len(message.answer), len(message.question)) > MAX_CITED_ANSWER_CHARS:
        raise TooLarge(f"an answer and its question have at most {MAX_CITED_ANSWER_CHARS} characters each")
    if sum(len(text.encode(errors="surrogatepass")) for text in message.passages) > MAX_CITED_PASSAGE_BYTES:
        raise TooLarge(f"the passages are over the limit of {MAX_CITED_PASSAGE_BYTES} bytes; send fewer")


def _check_each(texts: Sequence[str], most: int) -> None:
    if not 1 <= len(texts) <= most:
        raise InvalidRequest(f"{len(texts)} texts were sent; a retriever takes 1 to {most}")
    for index, text in enumerate(texts):
        if not text.strip():
            raise InvalidRequest(f"text {index} is blank; send some words")
        if len(text.encode(errors="surrogatepass")) > MAX_EMBED_TEXT_BYTES:
            raise TooLarge(f"text {index} is over the limit of {MAX_EMBED_TEXT_BYTES} bytes; shorten it")
