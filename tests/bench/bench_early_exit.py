"""The worth of ending an answer early where its tokens become unlikely, by the mean of the last few.

    python -m tests.bench.bench_early_exit [--model DIR] [--temperature 0]

The questions about the documentation are answered from retrieved passages as a stack answers them, with the
log-probabilities of all tokens. For each width of the window: whether its least mean tells right answers from
wrong ones (the area under the ROC curve), and what is saved by the highest threshold that ends no more than
one in twenty right answers before they are whole.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from shared.engine import LLM, SamplingParams
from shared.messages import ChatTurn
from shared.text.retrieval_prompt import retrieval_prompt
from shared.text.tokenizer import TextTokenizer
from tests.bench.bench_answers import MAX_ANSWER_TOKENS, document_passages
from tests.bench.document_questions import DEVELOPMENT_NAME, is_right, read_questions
from tests.support.data import REPOSITORY

WIDTHS = (4, 8, 16, 32)
MOST_LOST = 0.05
THRESHOLDS = [-step / 50 for step in range(1, 200)]


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    is_right: bool
    logprobs: tuple[float, ...]

    def means(self, width: int) -> list[float]:
        """Return those of all windows, the first of which ends with token `width`."""
        ends = range(width, len(self.logprobs) + 1)
        return [mean(self.logprobs[end - width : end]) for end in ends]

    def saved(self, width: int, threshold: float) -> int:
        """Return how many of its tokens are not drawn where it ends with the first window below that."""
        ends = (at for at, each in enumerate(self.means(width), width) if each < threshold)
        return len(self.logprobs) - next(ends, len(self.logprobs))


def answers_of(model: Path, temperature: float) -> list[GivenAnswer]:
    questions = [*read_questions(DEVELOPMENT_NAME), *read_questions("all")]
    with tempfile.TemporaryDirectory(prefix="penstock-early-exit-") as folder:
        passages = document_passages(questions, "retrieved", Path(folder))
    tokenizer, llm = TextTokenizer.load(model), LLM(model, threads=1)
    prompts = [
        tokenizer.encode_chat([ChatTurn("user", retrieval_prompt(found, question.question))])
        for question, found in zip(questions, passages, strict=True)
    ]
    params = SamplingParams(temperature=temperature, max_tokens=MAX_ANSWER_TOKENS, logprobs=0, seed=5)
    return [
        GivenAnswer(
            is_right(question, tokenizer.decode(given.token_ids).strip()),
            tuple(each.logprob for each in given.logprobs),
        )
        for question, given in zip(questions, llm.generate(prompts, params), strict=True)
    ]


def report_width(answers: Sequence[GivenAnswer], width: int) -> None:
    least = [(each.is_right, min(each.means(width), default=0.0)) for each in answers]
    right, wrong = ([value for is_right, value in least if is_right == kind] for kind in (True, False))
    area = mean((a > b) + (a == b) / 2 for a in right for b in wrong)
    drawn = sum(len(each.logprobs) for each in answers)
    for threshold in THRESHOLDS:
        saved = [each.saved(width, threshold) for each in answers]
        lost = sum(each.is_right and tokens > 0 for each, tokens in zip(answers, saved, strict=True))
        if lost <= MOST_LOST * len(right):
            print(
                f"last {width:2} tokens: area {area:.2f}; below {threshold:.2f} end "
                f"{sum(map(bool, saved))} of {len(answers)} answers, {lost} right ones of {len(right)}, and "
                f"{sum(saved) / drawn:.1%} of all tokens are saved"
            )
            return


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=REPOSITORY / "shared/demo/models/target")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    answers = answers_of(options.model, options.temperature)
    print(f"{len(answers)} answers of {mean(len(each.logprobs) for each in answers):.1f} tokens on average")
    for width in WIDTHS:
        report_width(answers, width)


if __name__ == "__main__":
    main()
