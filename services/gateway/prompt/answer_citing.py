"""Ask which of its passages support what an answer says, of the retriever that found them, once it has
ended.

No token waits for it: what waits, for `cite_wait_ms` at most, is the end. An answer whose support is not
known by then goes out without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request_scope import RequestScope
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.errors import PenstockError
from shared.messages import (
    MAX_CITED_ANSWER_CHARS,
    MAX_CITED_PASSAGE_BYTES,
    AnswerCited,
    CiteAnswer,
    CitedSentence,
    ScoredPassage,
    Spans,
)
from shared.text.passage_room import utf8_bytes
from shared.trimming.kept_text import WHOLE, kept_text, place_in_whole

log = structlog.get_logger()


class AnswerCiting:
    """`sentences` are what the passages support, and what they do not; () where nobody has looked."""

    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._retriever = ""
        self._model: ModelIdentity | None = None
        self._passages: tuple[str, ...] = ()
        self._spans: tuple[Spans, ...] = ()
        self.sentences: tuple[CitedSentence, ...] = ()

    def record_prompt(
        self,
        model: ModelIdentity,
        passages: Sequence[ScoredPassage],
        prompt_places: Sequence[int],
        passage_spans: Sequence[Spans],
        retriever: str,
    ) -> None:
        """Note what the answer is made from, and by which model; `retriever` found it. Of each passage
        `passage_spans` stand in the prompt, and those alone can support it."""
        told = (passage.text for passage in passages)
        standing = sorted(zip(prompt_places, told, passage_spans or repeat(WHOLE), strict=False))
        texts = tuple(kept_text(text, spans) for place, text, spans in standing if place)
        if sum(map(utf8_bytes, texts)) <= MAX_CITED_PASSAGE_BYTES:
            self._retriever, self._model, self._passages = retriever, model, texts
            self._spans = tuple(spans for place, _, spans in standing if place)

    @property
    def wanted(self) -> bool:
        """Whether the text of the answer is needed at its end."""
        return bool(self._passages and self._retriever and self._scope.config.cite_wait_ms)

    @property
    def _is_pressed(self) -> bool:
        return self._model is not None and self._scope.level_of(self._model) >= DegradationLevel.RERANK

    def take_earlier(self, sentences: tuple[CitedSentence, ...]) -> None:
        """The answer was given before, with these."""
        self.sentences = sentences

    async def cite_answer(self, left_s: float) -> None:
        """Ask, for `left_s` at most; under pressure, and of calls of tools, nothing is asked."""
        context, text = self._scope.context, self._said()
        wait_s = min(left_s, self._scope.config.cite_wait_ms / 1e3)
        if not self.wanted or not text or self._is_pressed or self._scope.response.has_called or wait_s <= 0:
            return
        question = self._scope.request.question[:MAX_CITED_ANSWER_CHARS]
        message = CiteAnswer(question, text[:MAX_CITED_ANSWER_CHARS], self._passages)
        end = Deadline.after(wait_s)
        envelope = context.bus.envelope(f"{self._scope.request_id}.cite", 1, end, context.instance)
        try:
            answer = await context.bus.ask(inbox("retriever", self._retriever), message, envelope, end)
        except PenstockError as error:
            log.info("answer_not_cited", request_id=self._scope.request_id, error=str(error))
            return
        if isinstance(answer, AnswerCited) and all(
            self._is_possible(each, text) for each in answer.sentences
        ):
            self.sentences = tuple(map(self._in_whole_passage, answer.sentences))

    def _in_whole_passage(self, cited: CitedSentence) -> CitedSentence:
        """Return it with the characters of the passage as the client has it: of all of it."""
        if not cited.place:
            return cited
        spans = self._spans[cited.place - 1]
        start, end = place_in_whole(spans, cited.passage_start, cited.passage_end)
        return replace(cited, passage_start=start, passage_end=end)

    def _said(self) -> str:
        """Return what the answer says, without what was thought before."""
        written = self._scope.state.log.kept_text or ""
        return self._scope.response.answer_format.read_whole(written).text

    def _is_possible(self, cited: CitedSentence, text: str) -> bool:
        """Whether what a retriever says can be: its numbers go out to clients, who cut texts by them."""
        if not (0 <= cited.start < cited.end <= len(text) and 0.0 <= cited.support <= 1.0):
            return False
        if not cited.place:
            return cited.passage_start == cited.passage_end == 0
        return 1 <= cited.place <= len(
            self._passages
        ) and 0 <= cited.passage_start < cited.passage_end <= len(self._passages[cited.place - 1])


def citation_event(cited: CitedSentence) -> pb.Citation:
    """Return it in the contract's form."""
    return pb.Citation(
        start=cited.start,
        end=cited.end,
        prompt_place=cited.place,
        passage_start=cited.passage_start,
        passage_end=cited.passage_end,
        support=cited.support,
    )
