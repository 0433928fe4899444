"""Models, ids, texts and vectors, asked of a whole stack on its closed bus."""

from __future__ import annotations

from pathlib import Path

from protos.penstock.v1 import inference_pb2 as pb
from tests.e2e.conftest import WITH_RETRIEVER, GetStack
from tests.support.client import connect, generate, request
from tests.support.oracle import Oracle

TEXT = "Once upon a time, über größere Straßen"


async def test_the_model_is_listed_with_its_context_and_who_serves_it(
    get_stack: GetStack, oracle: Oracle, model_dir: Path
) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        (model,) = (await stub.ListModels(pb.ListModelsRequest())).models
    assert (model.name, model.kind) == (model_dir.name, pb.MODEL_KIND_GENERATION)
    assert model.context_tokens == oracle.context_tokens
    serving = {(instance.role, instance.name) for instance in model.instances}
    others = ("gateway", "nats", "retriever", "speculator")
    assert serving == {(row.role, row.id) for row in stack.instances() if row.role not in others}


async def test_the_ids_of_a_text_are_its_prompt_and_become_it_again(get_stack: GetStack) -> None:
    async with connect(get_stack().grpc) as stub:
        ids = list((await stub.Tokenize(pb.TokenizeRequest(text=TEXT))).token_ids)
        text = (await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text
        answers = [await generate(stub, request(prompt, max_tokens=8, seed=1)) for prompt in (TEXT, ids)]
    assert text.strip() == TEXT
    assert answers[0].ids == answers[1].ids
    assert answers[0].prompt is not None
    assert answers[0].prompt.prompt_tokens == len(ids)


async def test_texts_become_vectors_without_any_documents(get_stack: GetStack) -> None:
    async with connect(get_stack(*WITH_RETRIEVER).grpc) as stub:
        texts = ["Where is the gate?", "The location of the gate", "Cook the carrots"]
        answer = await stub.Embed(pb.EmbedRequest(texts=texts))
        names = {model.name for model in (await stub.ListModels(pb.ListModelsRequest())).models}
    near, far = (_cosine(answer.embeddings[0], other) for other in answer.embeddings[1:])
    assert near > far
    assert answer.model in names


def _cosine(one: pb.Embedding, other: pb.Embedding) -> float:
    return sum(a * b for a, b in zip(one.values, other.values, strict=True))
