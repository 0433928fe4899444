"""Sampling options and outputs on their way between the bus and the engine."""

from __future__ import annotations

import dataclasses

import pytest

from shared import messages
from shared.bus.codec import decode, encode
from shared.engine.results import TokenOutput
from shared.engine.scheduling.order import NORMAL_PRIORITY
from shared.errors import InvalidRequest
from shared.messages import Envelope, Prefill, Sampling, pack_hashes, pack_ids
from shared.sampling import Grammar, SamplingParams
from shared.worker.wire import JobOutput, engine_priority, sampling_params, tokens_messages

CONSTRAINED = Sampling(
    temperature=0.5,
    top_k=7,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    logit_bias=((4, 1.5),),
    seed=9,
    max_tokens=11,
    min_tokens=2,
    stop_token_ids=(3,),
    ignore_eos=True,
    logprobs=4,
    allowed_ids=(1, 2),
    bad_words=((5,), (6, 7)),
    grammar=messages.Grammar("regex", "a+"),
)


def test_every_option_crosses_the_bus_as_itself() -> None:
    sent = Prefill(pack_ids([1]), 1, pack_hashes([]), CONSTRAINED, "g", "d", "w", 0)
    _, received = decode(encode(sent, Envelope("r")))
    assert received == sent


def test_every_option_reaches_the_engine() -> None:
    params = sampling_params(CONSTRAINED)
    for field in dataclasses.fields(Sampling):
        if field.name != "grammar":
            assert getattr(params, field.name) == getattr(CONSTRAINED, field.name)
    assert params.grammar == Grammar("regex", "a+")


def test_the_engines_options_are_all_on_the_wire_but_those_of_the_prompt() -> None:
    missing = {field.name for field in dataclasses.fields(SamplingParams)} - {
        field.name for field in dataclasses.fields(Sampling)
    }
    assert missing == {"prompt_logprobs"}


@pytest.mark.parametrize(
    ("reason", "finish"), [(None, ""), ("stop", "stop"), ("length", "length"), ("error", "error")]
)
def test_a_reason_to_finish_has_a_word_on_the_bus(reason: str | None, finish: str) -> None:
    output = TokenOutput("r/1", 3, (), (), reason, 0, 0)
    ((_, tokens),) = tokens_messages([JobOutput("detokenizer-0", "r", 1, output, ())])
    assert tokens.finish == (finish,)


def test_priorities_keep_their_order_in_the_engine() -> None:
    normal, low, high = 0, 1, 2  # as penstock.v1.Priority numbers them
    assert sorted((normal, low, high), key=engine_priority) == [high, normal, low]
    assert engine_priority(normal) == NORMAL_PRIORITY
    with pytest.raises(InvalidRequest, match="priority 3"):
        engine_priority(3)
