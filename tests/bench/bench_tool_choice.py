"""Measure which tools are left within a budget, and whether the needed one is: questions of BFCL.

    pip download --no-deps bfcl-eval && unzip bfcl_eval-*.whl -d bfcl
    python -m tests.bench.bench_tool_choice --bfcl bfcl/bfcl_eval/data [--tools 64]

Each question has a list of so many tools: its own ones, and others that are drawn from those of all
questions. Counted is whether the tool that it needs is among those that are left, and how many tokens of
the list are left; beside the first ones of the list, as they come. Then questions are asked one after
another in one chat: how often a prompt begins with the same tools as the one before, and were each message
to choose anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from shared.messages import ChatTurn, Tool
from shared.text.default_model import find_default_model
from shared.text.tokenizer import TextTokenizer
from shared.trimming.tool_choice import choose_tools
from shared.trimming.tool_ranking import ToolRanking

FILES = ("BFCL_v4_multiple.json", "BFCL_v4_live_multiple.json")
SHARES = (0.5, 0.25, 0.125)
RANKS = (1, 3, 8)
SEED = 28
DIALOGUE = 8
"""The questions of one chat."""

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Needing:
    """A question, its own tools, and the name of the one that it needs."""

    question: str
    tools: tuple[Tool, ...]
    needed: str


def read_questions(folder: Path) -> list[Needing]:
    """Return questions that need one tool of which it is known which one."""
    found = []
    for name in FILES:
        answers = {row["id"]: row["ground_truth"] for row in _rows(folder / "possible_answer" / name)}
        for row in _rows(folder / name):
            needed = {call for each in answers.get(row["id"], ()) for call in each}
            asked = [turn["content"] for turn in row["question"][0] if turn["role"] == "user"]
            tools = tuple(
                Tool(each["name"], each["description"], json.dumps(each["parameters"]))
                for each in row["function"]
            )
            if len(needed) == 1 and asked and needed <= {tool.name for tool in tools}:
                found.append(Needing(asked[-1], tools, needed.pop()))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


class ToolLists:
    """Lists of so many tools, with the needed ones anywhere in them."""

    def __init__(self, questions: Sequence[Needing], count: int) -> None:
        self._known = {tool.name: tool for each in questions for tool in each.tools}
        self._count = count
        self._drawn = Random(SEED)

    def of(self, *needing: Needing) -> list[Tool]:
        own = {tool.name: tool for each in needing for tool in each.tools}
        others = [tool for name, tool in self._known.items() if name not in own]
        tools = [*own.values(), *self._drawn.sample(others, max(0, self._count - len(own)))]
        self._drawn.shuffle(tools)
        return tools


def tokens_of(tools: Sequence[Tool], count_tokens: CountTokens) -> int:
    return sum(count_tokens(f"{each.name} {each.description} {each.parameters}") for each in tools)


def first_ones(tools: Sequence[Tool], budget: int, count_tokens: CountTokens) -> list[Tool]:
    for count in range(len(tools), 0, -1):
        if tokens_of(tools[:count], count_tokens) <= budget:
            return list(tools[:count])
    return []


def report_questions(questions: Sequence[Needing], lists: ToolLists, count_tokens: CountTokens) -> None:
    """Print how often the needed tool is left."""
    told = [(each, lists.of(each)) for each in questions]
    ranks = []
    for each, tools in told:
        scores = ToolRanking(tools).scores(each.question)
        ranked = sorted(range(len(tools)), key=lambda place: (-scores[place], place))
        ranks.append([tools[place].name for place in ranked].index(each.needed))
    print(f"{len(told)} questions; the needed tool is ranked among the first", end=" ")
    print(", ".join(f"{most}: {sum(rank < most for rank in ranks) / len(ranks):.1%}" for most in RANKS))
    print("share  needed tool left  tokens left  by the first ones  ms of a choice")
    for share in SHARES:
        left = by_order = kept = whole = 0
        took_s = 0.0
        for each, tools in told:
            tokens = tokens_of(tools, count_tokens)
            began_s = time.perf_counter()
            choice = choose_tools(tools, [ChatTurn("user", each.question)], int(share * tokens), count_tokens)
            took_s += time.perf_counter() - began_s
            chosen = [tools[place] for place in choice.places]
            left += each.needed in {tool.name for tool in chosen}
            by_order += each.needed in {
                tool.name for tool in first_ones(tools, int(share * tokens), count_tokens)
            }
            kept, whole = kept + tokens_of(chosen, count_tokens), whole + tokens
        print(
            f"{share:5.3f}  {left / len(told):16.1%}  {kept / whole:11.1%}  {by_order / len(told):17.1%}  "
            f"{1e3 * took_s / len(told):8.1f}"
        )


def report_dialogues(questions: Sequence[Needing], lists: ToolLists, count_tokens: CountTokens) -> None:
    """Print how often a message of a chat finds its tool, and the prompt begins as the one before."""
    print("share  needed tool left  same tools as before  each message anew: left  same")
    for share in SHARES:
        left, same, turns_seen = [0, 0], [0, 0], 0
        for start in range(0, len(questions) - DIALOGUE + 1, DIALOGUE):
            asked = questions[start : start + DIALOGUE]
            tools = lists.of(*asked)
            budget = int(share * tokens_of(tools, count_tokens))
            turns: list[ChatTurn] = []
            before: list[tuple[int, ...]] = [(), ()]
            for each in asked:
                turns.append(ChatTurn("user", each.question))
                turns_seen += 1
                for way, of in enumerate((turns, turns[-1:])):
                    places = choose_tools(tools, of, budget, count_tokens).places
                    left[way] += each.needed in {tools[place].name for place in places}
                    same[way] += places == before[way]
                    before[way] = places
        changes = turns_seen * (DIALOGUE - 1) / DIALOGUE
        print(
            f"{share:5.3f}  {left[0] / turns_seen:16.1%}  {same[0] / changes:20.1%}  "
            f"{left[1] / turns_seen:22.1%}  {same[1] / changes:6.1%}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bfcl", type=Path, required=True, help="folder of BFCL's data")
    parser.add_argument("--tools", type=int, default=64, help="tools of each list")
    parser.add_argument("--limit", type=int, default=400, help="questions")
    options = parser.parse_args()
    file = find_default_model()
    if file is None:
        parser.error("the default model, whose tokenizer counts, is not installed")
    tokenizer = TextTokenizer.load(file)

    @cache
    def count_tokens(text: str) -> int:
        return len(tokenizer.encode_text(text, add_special_tokens=False))

    questions = read_questions(options.bfcl)
    Random(SEED).shuffle(questions)
    lists = ToolLists(questions, options.tools)
    report_questions(questions[: options.limit], lists, count_tokens)
    report_dialogues(questions[: options.limit], lists, count_tokens)


if __name__ == "__main__":
    main()
