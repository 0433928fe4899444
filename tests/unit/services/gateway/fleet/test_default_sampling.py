"""Requests that leave sampling open: whose defaults they get, and that nothing is open after that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.default_sampling import defaults_in_force, resolve_sampling, sampling_in_force
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.response_key import response_key
from services.gateway.request.request import Request, validate_request
from shared.bus.fleet import InstanceView
from shared.errors import InvalidRequest
from shared.messages import AdapterId
from shared.sampling.defaults import DEFAULTED, SamplingDefault, all_defaults
from tests.integration.gateway_peers import heartbeat

MODEL = ModelIdentity("test-model")
COLD = (SamplingDefault("temperature", 0.2, "model"), SamplingDefault("top_p", 0.9, "model"))
WARM = (SamplingDefault("temperature", 0.8, "default_sampling"),)
GREEDY = (SamplingDefault("temperature", 0.0, "generation_config.json"),)
KEY = b"k" * 32


def decode(number: int, defaults: tuple[SamplingDefault, ...], **fields: object) -> InstanceView:
    values: dict[str, object] = {"incarnation": number, "default_sampling": defaults, **fields}
    return InstanceView(heartbeat("decode", f"decode-{number}", **values), 0.0)


def in_force(*views: InstanceView, model: ModelIdentity = MODEL) -> dict[str, float]:
    found = defaults_in_force(model, lambda role: [view for view in views if view.heartbeat.role == role])
    return {each.name: each.value for each in found}


def asked(**sampling: object) -> Request:
    options = pb.Sampling(**sampling)  # type: ignore[arg-type]
    return validate_request(pb.GenerateRequest(text="hi", sampling=options), drawn_seed=7)


def test_what_the_model_says_counts_and_the_rest_is_built_in() -> None:
    assert in_force(decode(1, COLD)) == {each.name: each.value for each in all_defaults(COLD)}


def test_workers_of_another_checkpoint_of_the_name_are_not_asked() -> None:
    other = decode(2, WARM, weights_digest="other")
    assert in_force(decode(1, COLD), other, replace(other)) == in_force(decode(1, COLD))


def test_with_an_adapter_it_is_that_of_its_model() -> None:
    adapted = replace(MODEL, adapter=AdapterId("sql", "d"))
    assert in_force(decode(1, COLD), model=adapted)["temperature"] == 0.2


@pytest.mark.parametrize("order", [1, -1])
def test_while_workers_differ_what_most_of_them_say_counts(order: int) -> None:
    views = [decode(1, COLD), decode(2, COLD), decode(3, WARM)]
    assert in_force(*views[::order])["temperature"] == 0.2


@pytest.mark.parametrize("order", [1, -1])
def test_of_as_many_those_of_the_worker_that_started_last_count(order: int) -> None:
    views = [decode(1, COLD), decode(2, WARM)]
    found = in_force(*views[::order])
    assert (found["temperature"], found["top_p"]) == (0.8, 1.0)  # one worker's, never a mixture


def test_what_a_request_says_counts_field_by_field() -> None:
    settled = resolve_sampling(asked(temperature=1.0), all_defaults(COLD))
    assert settled.sampling.temperature == 1.0
    assert settled.sampling.top_p == pb.Sampling(top_p=0.9).top_p
    assert settled.open_sampling == ()


def test_zero_is_said_and_not_left_open() -> None:
    zeros = asked(temperature=0, top_k=0, min_p=0, presence_penalty=0, frequency_penalty=0)
    assert zeros.open_sampling == ("top_p", "repetition_penalty")


def test_a_request_that_says_nothing_leaves_all_open() -> None:
    assert asked().open_sampling == DEFAULTED


def test_a_default_of_a_later_version_changes_nothing_here() -> None:
    defaults = (*COLD, SamplingDefault("typical_p", 0.5, "model"))
    assert resolve_sampling(asked(), defaults) == resolve_sampling(asked(), COLD)


def test_an_answer_is_kept_under_what_was_in_force() -> None:
    """Said or left open is the same request; another default makes it another one."""

    def key(request: Request, defaults: tuple[SamplingDefault, ...]) -> bytes:
        settled = resolve_sampling(request, all_defaults(defaults))
        return response_key(settled, (MODEL,), KEY, "none").exact

    said = asked(seed=3, temperature=0.2, top_p=0.9)
    assert key(said, ()) == key(asked(seed=3), COLD) == key(said, WARM)
    assert key(asked(seed=3), COLD) != key(asked(seed=3), WARM)


def test_a_request_for_kept_answers_alone_is_settled_with_its_sampling() -> None:
    message = pb.GenerateRequest(text="hi", cache=pb.Cache(mode=pb.CACHE_MODE_EXACT))
    request = validate_request(message, drawn_seed=7)
    assert resolve_sampling(request, all_defaults(GREEDY)).cache.wanted
    with pytest.raises(InvalidRequest, match="cache needs an answer that comes again"):
        resolve_sampling(request, all_defaults(COLD))


def test_a_client_is_told_all_that_is_in_force() -> None:
    settled = resolve_sampling(asked(max_tokens=9), all_defaults(GREEDY))
    told = sampling_in_force(settled.sampling)
    assert all(told.HasField(name) for name in DEFAULTED)
    assert (told.temperature, told.top_p, told.max_tokens) == (0.0, 1.0, 9)
