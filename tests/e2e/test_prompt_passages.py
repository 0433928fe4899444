"""Passages in the prompts of a whole stack whose model has a small context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.text.retrieval_prompt import retrieval_prompt
from tests.support.client import Answer, connect, generate, request
from tests.support.oracle import Oracle
from tests.support.stack import Stack

pytestmark = pytest.mark.thorough
PATIENCE_MS = 50_000
SHORT = {
    "canal.md": "The old canal was dug by hand in nine years.",
    "lock.md": "The lock of the canal lifts boats by four metres.",
}
LONG = {
    f"{name}.md": f"The {name} of the harbour was built of {stone} by masons from beyond the mountains, "
    f"who carried every block of {stone} across the frozen river in winter, when heavy sledges could pass, "
    f"and who were paid in silver for each of the blocks that the {name} of the harbour needed until it "
    "stood; what was left over of stones, ropes and timber went back to where it had come from."
    for name, stone in (("tower", "granite"), ("bridge", "limestone"))
}
MAX_TOKENS = 16
ALL_PASSAGES = {"PENSTOCK_GATEWAY_PASSAGE_LEAST_SHARE": "0"}
"""None is left out for its score alone."""


@pytest.fixture(scope="module")
def stack(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("corpora")
    argv = ["--model", str(model_dir), "--draft", "none"]
    for corpus, documents in {"short": SHORT, "long": LONG}.items():
        (folder / corpus).mkdir()
        for name, text in documents.items():
            (folder / corpus / name).write_text(f"{text}\n")
        argv += ["--corpus", f"{corpus}={folder / corpus}"]
    with Stack(*argv, environ=ALL_PASSAGES) as stack:
        yield stack


async def answer_from(stack: Stack, corpus: str, question: str, max_tokens: int) -> Answer:
    message = request(question, max_tokens=max_tokens, ignore_eos=True)
    message.deadline_ms = message.ttft_deadline_ms = PATIENCE_MS
    message.retrieval.CopyFrom(pb.Retrieval(enabled=True, k=2, may_degrade=False, corpus=corpus))
    async with connect(stack.grpc) as stub:
        return await generate(stub, message)


def told_prompt(answer: Answer, question: str) -> str:
    """The prompt that the passages make at the places which are told."""
    assert answer.prompt is not None, answer.details
    told = sorted((each.prompt_place, each.text) for each in answer.prompt.passages if each.prompt_place)
    assert [place for place, _ in told] == list(range(1, len(told) + 1))
    return retrieval_prompt([text for _, text in told], question)


async def test_passages_that_a_small_context_has_no_room_for_are_left_out_and_the_rest_is_answered_from(
    stack: Stack, oracle: Oracle
) -> None:
    question = "Who built the tower of the harbour?"
    answer = await answer_from(stack, "long", question, MAX_TOKENS)
    assert answer.prompt is not None, answer.details
    assert answer.prompt.warning == "the prompt had no room for 1 of 2 passages"
    prompt = oracle.encode(told_prompt(answer, question))
    assert answer.prompt.prompt_tokens == len(prompt) <= oracle.context_tokens - MAX_TOKENS
    assert len(answer.ids) == MAX_TOKENS
    assert answer.text == oracle.continuation(prompt, answer.ids)


async def test_prompts_with_the_same_passages_share_them_whatever_is_asked(
    stack: Stack, oracle: Oracle
) -> None:
    about_canal, about_lock = "How was the old canal dug?", "By how many metres does the lock lift boats?"
    first = await answer_from(stack, "short", about_canal, 8)
    second = await answer_from(stack, "short", about_lock, 8)
    assert first.prompt is not None
    assert second.prompt is not None
    best = [answer.prompt.passages[0].text for answer in (first, second) if answer.prompt]
    assert best == [SHORT["canal.md"], SHORT["lock.md"]]
    prompts = [oracle.encode(told_prompt(*each)) for each in ((first, about_canal), (second, about_lock))]
    shared = next(at for at, pair in enumerate(zip(*prompts, strict=False)) if pair[0] != pair[1])
    assert shared > len(oracle.encode(retrieval_prompt(list(SHORT.values()), "").split("Question")[0])) - 4
    assert second.end is not None
    assert second.end.usage.cached_tokens == shared // 16 * 16
