"""How often a follow-up of a chat finds its passage: searched for as it is, and with what it leans on.

    python -m tests.bench.bench_follow_ups --xquad DIR

Made of XQuAD's English questions: in one, what another one about its passage names (or that one's answer)
gives way to a pronoun; "whole" is the question before that. Beside them all questions, and those of the
documentation, each behind one about something else: as little as may be is to be lost there.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.gateway.question.follow_ups import USER, leans, with_history
from services.retriever.question import SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.text.passage_source import document_of
from tests.bench.bench_retrieval import MOST_PASSAGES, PATIENCE_S, index_of
from tests.bench.ranking_scores import ranking_scores
from tests.bench.retrieval_sets import RetrievalSet, documentation_set, xquad_set

NAME = re.compile(r"(?<=[a-z,] )(?:the )?(?:[A-Z][\w.-]+)(?: (?:of |the )*[A-Z][\w.-]+)*('s)?")
"""Words with capitals behind one that has none."""
BATCH = 16
LIKELY_PERSON = re.compile(r"\bwho\b|\bborn\b|\bdie|\bhis\b|\bmarr", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """`whole` asks the same as `question` and names what it is about, as `before` does."""

    before: str
    answer: str
    question: str
    whole: str
    right: str


@dataclass(frozen=True, slots=True)
class SearchedSet:
    searcher: Searcher
    corpus: ServedCorpus


def answers(folder: Path) -> list[str]:
    """Of XQuAD's English questions, in the order of its set."""
    articles = json.loads((folder / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    rows = (row for article in articles for paragraph in article["paragraphs"] for row in paragraph["qas"])
    return [row["answers"][0]["text"] for row in rows]


def follow_ups(asked: RetrievalSet, said: Sequence[str], *, by_answer: bool) -> Iterator[FollowUp]:
    """At most one of each question, behind the first one of its passage that names the same; `by_answer`:
    that does not name it, and its answer (of `said`) does."""

    def names(at: int, stem: str) -> tuple[bool, bool]:
        return stem in asked.questions[at], stem in said[at]

    for place, (whole, right) in enumerate(zip(asked.questions, asked.right, strict=True)):
        if leans(whole):
            continue
        for name in NAME.finditer(whole):
            stem = name[0].removeprefix("the ").removesuffix("'s")
            others = [at for at in range(len(said)) if asked.right[at] == right and at != place]
            before = next((at for at in others if names(at, stem) == (not by_answer, by_answer)), None)
            if before is None:
                continue
            is_person = LIKELY_PERSON.search(whole) is not None
            pronoun = ("his" if is_person else "its") if name[1] else ("he" if is_person else "it")
            question = whole[: name.start()] + pronoun + whole[name.end() :]
            yield FollowUp(asked.questions[before], said[before], question, whole, right)
            break


def found(search: SearchedSet, queries: Sequence[str]) -> list[list[str]]:
    """The documents of each query's passages, best first."""
    end = Deadline.after(PATIENCE_S)
    rankings = []
    for at in range(0, len(queries), BATCH):
        wanted = [Retrieve(each, MOST_PASSAGES, may_degrade=True) for each in queries[at : at + BATCH]]
        asks = [SearchAsk(each, end, search.corpus) for each in wanted]
        for answer in search.searcher.search_passages(asks):
            assert isinstance(answer, Retrieved)
            rankings.append([document_of(passage.source) for passage in answer.passages])
    return rankings


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--show", type=int, default=0, help="so many questions that are judged wrongly")
    options = parser.parse_args()
    embedder = Embedder.load()
    said = answers(options.xquad)
    for asked in (xquad_set(options.xquad, "en"), documentation_set()):
        with tempfile.TemporaryDirectory(prefix="penstock-follow-ups-") as folder:
            corpus = ServedCorpus.of_index(index_of(asked, embedder, Path(folder)))
        search = SearchedSet(Searcher(QuestionVectors(embedder)), corpus)
        if asked.name.startswith("xquad"):
            for by_answer, where in ((False, "question"), (True, "answer")):
                made = list(follow_ups(asked, said, by_answer=by_answer))
                report_follow_ups(search, made, f"{asked.name}, named by the {where} before", options.show)
        report_others(search, asked, options.show)


def report_follow_ups(search: SearchedSet, made: Sequence[FollowUp], title: str, show: int) -> None:
    """With so many of those that are not seen to lean."""
    missed = [each for each in made if not leans(each.question)]
    right = [{each.right: 1.0} for each in made]
    print(f"{title}: {len(made)} follow-ups, {len(made) - len(missed)} seen to lean")
    ways = {
        "whole": [each.whole for each in made],
        "as it is": [each.question for each in made],
        "with history": [with_history(each.question, [(USER, each.before)]) for each in made],
    }
    for name, queries in ways.items():
        print(f"  {name:13} {ranking_scores(found(search, queries), right)}")
    for each in missed[:show]:
        print(f"    {each.question}")


def report_others(search: SearchedSet, asked: RetrievalSet, show: int) -> None:
    """With so many of those that are taken for follow-ups. Before each comes one from half the set away:
    about another passage, and mostly of another article."""
    half = len(asked.questions) // 2
    others = [*asked.questions[half:], *asked.questions[:half]]
    pairs = list(zip(asked.questions, others, strict=True))
    behind = [with_history(question, [(USER, other)]) for question, other in pairs]
    taken = [question for question in asked.questions if leans(question)]
    print(f"{asked.name}: {len(behind)} questions behind another topic, {len(taken)} taken for follow-ups")
    print(f"  {'as it is':13} {ranking_scores(found(search, asked.questions), asked.gains)}")
    print(f"  {'with history':13} {ranking_scores(found(search, behind), asked.gains)}")
    for question in taken[:show]:
        print(f"    {question}")


if __name__ == "__main__":
    main()
