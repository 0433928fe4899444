"""Ask two models the same questions through a gateway, one at a time, and judge what they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.generate_call import OpenGateway, start_call, terminal_of
from services.cli.router.accepted_questions import AcceptedQuestion
from services.cli.router.cascade_curve import JudgedAnswer, JudgedPair
from services.cli.view.answer_output import sentence
from shared.errors import Unavailable


def ask_both(
    gateway: OpenGateway,
    request: pb.GenerateRequest,
    models: tuple[str, str],
    questions: Sequence[AcceptedQuestion],
    on_answer: Callable[[int], None],
) -> list[JudgedPair]:
    """Return what the small one of `models` and the large one say to `questions`, which are sent as
    `request`, without what was answered before. `on_answer` gets how many are answered.

    Raises Unavailable where a call fails, with its reason.
    """
    pairs = []
    for done, question in enumerate(questions, 1):
        small, large = (_ask(gateway, request, model, question) for model in models)
        pairs.append(JudgedPair(small, large))
        on_answer(done)
    return pairs


def _ask(
    gateway: OpenGateway, request: pb.GenerateRequest, model: str, question: AcceptedQuestion
) -> JudgedAnswer:
    asked = pb.GenerateRequest()
    asked.CopyFrom(request)
    asked.model = model
    asked.chat.messages.add(role="user", content=question.text)
    asked.chat.template_optional = True
    asked.fallback.SetInParent()  # allowed: false
    asked.cache.mode = pb.CACHE_MODE_OFF
    asked.sampling.logprobs = 0
    began_s, parts, logprobs, end = time.monotonic(), [], [], pb.Terminal()
    try:
        for event in start_call(gateway, asked, asked.deadline_ms / 1e3):
            if event.HasField("text"):
                parts.append(event.text.text)
                logprobs += [each.logprob for each in event.text.logprobs]
            elif event.HasField("end"):
                end = event.end
    except grpc.RpcError as error:
        end = terminal_of(error, gateway.address)
    if end.outcome != pb.OUTCOME_FINISHED:
        raise Unavailable(f"{model} did not answer {question.text[:60]!r}: {sentence(end)}")
    computed = end.usage.prompt_tokens - end.usage.cached_tokens
    return JudgedAnswer(
        right=question.is_right("".join(parts)),
        mean_logprob=sum(logprobs) / len(logprobs) if logprobs else 0.0,
        seconds=time.monotonic() - began_s,
        tokens=computed + end.usage.completion_tokens,
    )
