"""Collect what a chat model says by itself to general requests: `python -m shared.demo.chats --model DIR
--out FILE`.

An adapter that learns something else is kept to it (`shared.demo.teach`), so that chats do not get worse.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from shared.engine import LLM, SamplingParams
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer

MAX_ANSWER_TOKENS = 120
TEMPERATURE = 0.5
SUBJECTS = (
    "rain",
    "the moon",
    "bread",
    "chess",
    "a bicycle",
    "volcanoes",
    "honesty",
    "trains",
    "coffee",
    "mountains",
    "sleep",
    "a garden",
    "music",
    "money",
    "whales",
    "winter",
    "friendship",
    "maps",
    "clocks",
    "the sea",
    "a library",
    "bees",
    "bridges",
    "photography",
    "tea",
    "dreams",
    "running",
    "paper",
    "lighthouses",
    "glass",
    "the heart",
    "languages",
    "dogs",
    "soup",
    "satellites",
    "patience",
    "a market",
    "rivers",
    "painting",
    "computers",
)
REQUESTS = (
    "Explain {s} to a child.",
    "Write a short poem about {s}.",
    "Give me three facts about {s}.",
    "Write two sentences about {s} and {t}.",
    "What do {s} and {t} have in common?",
    "Tell me a short story about {s}.",
    "How would you describe {s} to somebody who has never heard of it?",
    "Write a friendly email to a colleague about {s}.",
    "Make a list of five words that have to do with {s}.",
    "Why do people like {s}?",
    "Write a Python function that counts how often '{s}' occurs in a text.",
    "Is {s} more important than {t}? Give one argument for each side.",
    "I want to learn about {s}. Where should I begin?",
    "Rewrite this in a formal tone: hey, {s} is just great, you know",
    "Translate 'I am thinking about {s}' into French.",
    "What is 12 plus 30, and what has {s} to do with it?",
    "Hello! Can you help me with a question about {s}?",
    "Summarize in one sentence why {s} matters.",
    "Pretend that you are an expert for {s}. What is a common mistake?",
    "Suggest a title for a book about {s} and {t}.",
)


def draw_requests(count: int, seed: int) -> list[str]:
    """Different requests, a function of the seed."""
    random = Random(seed)  # noqa: S311 - draws training data, guards no secret
    requests: dict[str, None] = {}
    while len(requests) < count:
        subject, other = random.sample(SUBJECTS, 2)
        requests[random.choice(REQUESTS).format(s=subject, t=other)] = None
    return list(requests)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the chat model")
    parser.add_argument("--out", type=Path, required=True, help="file of {request, answer} lines")
    parser.add_argument("--count", type=int, default=160)
    options = parser.parse_args()
    tokenizer = TextTokenizer.load(options.model)
    requests = draw_requests(options.count, seed=0)
    prompts = [tokenizer.encode_chat([ChatTurn("user", request)]) for request in requests]
    llm = LLM(options.model, threads=1)
    params = [
        SamplingParams(temperature=TEMPERATURE, top_p=0.95, max_tokens=MAX_ANSWER_TOKENS, seed=seed)
        for seed in range(len(prompts))
    ]
    answers = llm.generate(prompts, params)
    lines = (
        json.dumps({"request": request, "answer": answer.text.strip()}, ensure_ascii=False)
        for request, answer in zip(requests, answers, strict=True)
        if answer.text.strip()
    )
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
