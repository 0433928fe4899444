"""How much of their prompts questions share, by the order of the passages: tokens not computed again.

    python -m tests.bench.bench_passage_order --model DIR|FILE [--xquad FILE] [--k 3] [--draws 2000]

The questions are those of the documentation, XQuAD's, and XQuAD's drawn again and again, the n-th of a
shuffled order with a chance of 1/n. Their passages are those that a retriever finds without a reranker, the
prompts those of a stack's tokenizer, and a token counts as cached where its block was one of an earlier
prompt's: nothing is ever forgotten. `tree` is no order that is served: passages stand as most earlier prompts
began, which depends on what others have asked. What an order does to answers, `bench_answers --order` says.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from services.gateway.request.prompt_passages import standing_order
from services.gateway.request.retrieval_use import ORDERS
from services.retriever.question import SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.blocks.block_hash import HASH_BLOCK_TOKENS, BlockHasher, max_cached_blocks
from shared.deadline import Deadline
from shared.messages import ChatTurn, Retrieve, Retrieved, ScoredPassage, Tokenize, unpack_hashes
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.text.tokenizer import TextTokenizer
from tests.bench.bench_retrieval import index_of
from tests.bench.retrieval_sets import RetrievalSet, documentation_set, xquad_set

PATIENCE_S = 3600.0
MAX_TEXT_BYTES = 4 << 20
SHUFFLE_SEED = 12
TREE = "tree"

Orderer = Callable[[Sequence[ScoredPassage]], Sequence[int]]
"""Passages, best first, to their places as they stand in the prompt."""


@dataclass(frozen=True, slots=True)
class FoundQuestion:
    """`passages` are best first."""

    question: str
    passages: tuple[ScoredPassage, ...]


class PassageTree:
    """Puts passages as most earlier prompts began."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, ...]] = Counter()

    def order(self, passages: Sequence[ScoredPassage]) -> list[int]:
        left, standing = list(range(len(passages))), list[int]()
        begun: tuple[str, ...] = ()
        while left:
            beginnings = {at: (*begun, passages[at].text) for at in left}
            best = max(left, key=lambda at: self._begun[beginnings[at]])
            left.remove(best)
            standing.append(best)
            begun = beginnings[best]
            self._begun[begun] += 1
        return standing


def found_questions(asked: RetrievalSet, k: int) -> list[FoundQuestion]:
    """Each with its best `k` passages."""
    embedder = Embedder.load(threads=1)
    with tempfile.TemporaryDirectory(prefix="penstock-order-") as folder:
        searcher = Searcher(QuestionVectors(embedder, 0))
        corpus = ServedCorpus.of_index(index_of(asked, embedder, Path(folder)))
        found = []
        for question in asked.questions:
            ask = SearchAsk(Retrieve(question, k, may_degrade=False), Deadline.after(PATIENCE_S), corpus)
            (answer,) = searcher.search_passages([ask])
            assert isinstance(answer, Retrieved), answer
            found.append(FoundQuestion(question, answer.passages))
    return found


def cached_share(prompts: PromptTokenizer, asked: Sequence[FoundQuestion], order: Orderer) -> float:
    """Of all tokens of these prompts, one after another."""
    cached_blocks, tokens, known = 0, 0, set[bytes]()
    for each in asked:
        answer = prompts.tokenize_prompt(
            Tokenize(
                chat=(ChatTurn("user", each.question),),
                passages=tuple(passage.text for passage in each.passages),
                passage_order=tuple(order(each.passages)),
                template_optional=True,
            )
        )
        count = len(answer.token_ids) // 4
        names = unpack_hashes(answer.block_hashes)
        cached_blocks += sum(name in known for name in names[: max_cached_blocks(count)])
        tokens += count
        known.update(names)
    return HASH_BLOCK_TOKENS * cached_blocks / tokens


def drawn_again(asked: Sequence[FoundQuestion], draws: int) -> list[FoundQuestion]:
    """By Zipf's law, from a shuffled order."""
    random = Random(SHUFFLE_SEED)
    shuffled = random.sample(list(asked), len(asked))
    return random.choices(shuffled, [1 / rank for rank in range(1, len(asked) + 1)], k=draws)


def report(name: str, prompts: PromptTokenizer, asked: Sequence[FoundQuestion]) -> None:
    """One line: the cached share by each order."""
    orders: dict[str, Orderer] = {each: partial(standing_order, order=each) for each in ORDERS.values()}
    orders[TREE] = PassageTree().order
    shares = {each: cached_share(prompts, asked, order) for each, order in orders.items()}
    told = "  ".join(f"{each} {share:.3f}" for each, share in shares.items())
    print(f"{name:22} {len(asked):5} prompts  {told}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="folder or GGUF file whose tokenizer counts"
    )
    parser.add_argument("--xquad", type=Path, help="folder of XQuAD's files")
    parser.add_argument("--k", type=int, default=3, help="passages of a prompt")
    parser.add_argument("--draws", type=int, default=2000, help="of XQuAD's questions, drawn again and again")
    options = parser.parse_args()
    prompts = PromptTokenizer(TextTokenizer.load(options.model), BlockHasher(), MAX_TEXT_BYTES)
    report("documentation", prompts, found_questions(documentation_set("all"), options.k))
    if options.xquad is not None:
        found = found_questions(xquad_set(options.xquad, "en"), options.k)
        report("xquad-en", prompts, found)
        report("xquad-en by Zipf", prompts, drawn_again(found, options.draws))


if __name__ == "__main__":
    main()
