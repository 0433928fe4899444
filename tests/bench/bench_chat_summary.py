"""Measure what a summary of turns that are left out still tells: chats made of XQuAD's questions.

    python -m tests.bench.bench_chat_summary --xquad DIR [--language en]

An exchange is a question and, as its answer, the sentence in which the marked answer stands between those
next to it, as far as these were not said before. Of all exchanges of an article it is counted how many marked
answers still stand in a summary within a share of their tokens, beside as many tokens of the latest turns,
and of the first sentences of each answer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.messages import ChatTurn
from shared.retrieval.citing.sentences import sentence_spans
from shared.text.default_model import find_default_model
from shared.text.tokenizer import TextTokenizer
from shared.trimming.chat_summary import summarize_turns
from tests.bench.bench_trimming import Shortener

SHARES = (0.5, 0.25, 0.1)
MOST_SENTENCES = 64
MOST_EXCHANGES = 24


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns, and the marked answers that stand in them."""

    turns: list[ChatTurn]
    marked: list[str]


def read_chats(folder: Path, language: str) -> list[Chat]:
    articles = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    return [_chat_of(article["paragraphs"]) for article in articles]


def _chat_of(paragraphs: Sequence[dict[str, object]]) -> Chat:
    chat = Chat([], [])
    for paragraph in paragraphs:
        text, rows = str(paragraph["context"]), paragraph["qas"]
        spans = sentence_spans(text, MOST_SENTENCES)
        told: set[int] = set()
        assert isinstance(rows, list)
        for row in rows:
            if len(chat.marked) == MOST_EXCHANGES:
                break
            (answer, *_) = row["answers"]
            at = next(place for place, span in enumerate(spans) if answer["answer_start"] < span.end)
            if at in told:
                continue
            fresh = [place for place in (at - 1, at, at + 1) if 0 <= place < len(spans) and place not in told]
            told |= {*fresh}
            said = " ".join(spans[place].of(text) for place in fresh)
            chat.turns.extend((ChatTurn("user", row["question"]), ChatTurn("assistant", said)))
            chat.marked.append(answer["text"])
    return chat


def latest_turns(chat: Chat, budget: int, shortener: Shortener) -> str:
    left: list[str] = []
    for turn in reversed(chat.turns):
        budget -= shortener.count(turn.content)
        if budget < 0:
            break
        left.append(turn.content)
    return "\n".join(left)


def first_sentences(chat: Chat, budget: int, shortener: Shortener) -> str:
    left: list[str] = []
    for turn in chat.turns:
        if turn.role == "assistant":
            first = sentence_spans(turn.content, MOST_SENTENCES)[0].of(turn.content)
            budget -= shortener.count(first)
            if budget < 0:
                break
            left.append(first)
    return "\n".join(left)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--language", default="en")
    options = parser.parse_args()
    file = find_default_model()
    if file is None:
        parser.error("the default model, whose tokenizer counts, is not installed")
    shortener = Shortener(TextTokenizer.load(file))
    chats = read_chats(options.xquad, options.language)
    total = sum(len(chat.marked) for chat in chats)
    print(f"{total} marked answers in {len(chats)} chats")
    print("share  summary  latest turns  first sentences  ms of a summary")
    for share in SHARES:
        kept, took_s = [0, 0, 0], 0.0
        for chat in chats:
            budget = int(share * sum(shortener.count(turn.content) for turn in chat.turns))
            began_s = time.perf_counter()
            summary = summarize_turns(chat.turns, budget, shortener.count)
            took_s += time.perf_counter() - began_s
            ways = (summary, latest_turns(chat, budget, shortener), first_sentences(chat, budget, shortener))
            for place, text in enumerate(ways):
                kept[place] += sum(answer in text for answer in chat.marked)
        cells = "  ".join(f"{count / total:8.1%}" for count in kept)
        print(f"{share:4.2f}  {cells}  {1e3 * took_s / len(chats):8.1f}")


if __name__ == "__main__":
    main()
