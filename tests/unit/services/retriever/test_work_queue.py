"""Whose turn it is, and that nothing that is asked for is lost or done twice."""

from __future__ import annotations

from typing import cast

from services.retriever.passage_ranker import Unranked
from services.retriever.question import Question, accept_question
from services.retriever.served_corpus import ServedCorpus
from services.retriever.text_jobs import TextJob
from services.retriever.work_queue import WorkKind, WorkQueue
from shared.bus import Delivery
from shared.deadline import Deadline
from shared.messages import Embed, Envelope, RerankTexts, Retrieve, Retrieved

CORPUS = cast(ServedCorpus, None)
FOUND = Unranked(Retrieved((), "", 1, 1), (), ())


def question(name: str) -> Question:
    retrieve = Retrieve(name, 3, may_degrade=True)
    delivery = Delivery(Envelope(name), retrieve)
    return accept_question(delivery, retrieve, CORPUS, Deadline.after(60), 0.7)


def texts(name: str, *, ranked: bool = False) -> TextJob:
    message = RerankTexts("?", ("a",)) if ranked else Embed(("a",))
    return TextJob(Delivery(Envelope(name), message), message, Deadline.after(60))


def names(work_queue: WorkQueue) -> list[str]:
    """Of what is done next, until nothing waits."""
    found = []
    while (work := work_queue.next_work()) is not None:
        found.append(f"{work.kind.value} {' '.join(asked.request_id for asked in work.asked)}")
        assert all(work_queue.done(asked) for asked in work.asked)
    return found


def work_queue() -> WorkQueue:
    return WorkQueue(batch=16, batch_bytes=2048)


def test_searches_rerankings_and_texts_take_turns() -> None:
    made = work_queue()
    for name in ("r1", "r2"):
        made.rerank_later(question(name), FOUND)
    for name in ("t1", "t2"):
        made.add(texts(name))
    made.add(question("q"))
    assert names(made) == ["searching q", "reranking r1", "texts t1", "reranking r2", "texts t2"]


def test_questions_that_wait_are_searched_for_together() -> None:
    made = work_queue()
    for name in ("a", "b", "c"):
        made.add(question(name))
    assert names(made) == ["searching a b c"]


def test_what_is_reranked_comes_with_what_was_found() -> None:
    made = work_queue()
    made.rerank_later(question("a"), FOUND)
    work = made.next_work()
    assert work is not None
    assert (work.kind, work.unranked) == (WorkKind.RERANK, FOUND)


def test_all_that_is_held_is_told_with_its_phase() -> None:
    made = work_queue()
    made.add(texts("scored", ranked=True))
    made.next_work()
    made.add(question("new"))
    made.rerank_later(question("found"), FOUND)
    made.add(texts("embedded"))
    held = {held.request_id: held.phase for held in made.held()}
    assert held == {"scored": "reranking", "found": "reranking", "new": "queued", "embedded": "queued"}
    assert (made.waiting, made.computing) == (3, 1)


def test_what_is_forgotten_is_dropped_wherever_it_is() -> None:
    made = work_queue()
    computed = question("computed")
    made.add(computed)
    made.next_work()
    waiting, found, job = question("waiting"), question("found"), texts("job")
    made.add(waiting)
    made.add(job)
    made.rerank_later(found, FOUND)
    assert [made.forget(asked) for asked in (computed, waiting, found, job)] == [True, False, False, False]
    assert made.everything() == []
    assert all((computed.ask.dropped, waiting.ask.dropped, found.ask.dropped, job.dropped))
    assert not made.done(computed)
